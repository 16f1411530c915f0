"""Moves one attempt's answer from the worker to the client, bytes untouched, and reads along."""

import re
from collections.abc import Callable
from typing import Protocol

from service.domain.event import FailureCause
from service.domain.outcome import Outcome
from service.runtime.guard import contain, guard
from service.runtime.ports import StreamTap

_ERROR_BODY_MAX = 256 * 1024
_COMPLETED = Outcome.COMPLETED
_TAIL = 4096
"""How much of the end of a long answer is kept: usage stands there."""
_ABORTED = re.compile(rb'"finish_reason"\s*:\s*"abort"')
_HOP_BY_HOP = frozenset(
    (
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
        b"trailer", b"trailers", b"transfer-encoding", b"upgrade",
    )
)  # fmt: skip
_OURS = frozenset(
    (
        b"content-length", b"date", b"server", b"set-cookie", b"x-request-id", b"x-sluice-tier", b"x-sluice-queue-ms",
        b"x-sluice-worker", b"access-control-allow-origin", b"access-control-allow-credentials",
        b"access-control-expose-headers", b"alt-svc", b"www-authenticate", b"retry-after",
    )
)  # fmt: skip
"""Framing is computed anew; the rest says things of the worker that are the gateway's to say."""


class Traveller(Protocol):
    """What a relay needs of the request it serves."""

    tap: StreamTap | None
    stream: bool

    @property
    def relay(self) -> "Relay | None":
        """The relay of its present attempt."""
        ...

    def on_answer(self, headers: bytes, length: int | None, data: bytes) -> None:
        """The answer begins: commit the head and send ``data``."""
        ...

    def on_first_token(self) -> None:
        """The first token has come."""
        ...

    def on_complete(self, outcome: Outcome, whole: bytes | None) -> None:
        """The answer is complete; ``whole`` is its body, or the end of a long one, if it was not a stream."""
        ...

    def on_broken(self, outcome: Outcome) -> None:
        """The answer began and cannot be completed."""
        ...

    def on_worker_refusal(self, status: int, content_type: bytes, body: bytes) -> None:
        """The worker found fault with the request."""
        ...

    def on_attempt_failed(self, cause: FailureCause, status: int | None, retry_after_s: float | None) -> None:
        """Nothing of the answer was sent, and this attempt is over."""
        ...

    def on_hold(self) -> None:
        """Something is held back: call :meth:`Relay.release` soon."""
        ...

    def on_fault(self) -> None:
        """Our own code failed."""
        ...


class Relay:
    """Sink of one attempt. Every way out ends in exactly one of ``on_complete``, ``on_broken``, ``on_worker_refusal``,
    ``on_attempt_failed`` and ``on_fault`` of the traveller. A fault of our own code never leaves it."""

    __slots__ = (
        "_content_type", "_error", "_held", "_length", "_live", "_now", "_pass", "_retry_after_s", "_started",
        "_status", "_tail", "_tap", "_traveller", "_write", "hold_bytes", "last_byte_at",
    )  # fmt: skip

    def __init__(
        self, traveller: Traveller, write: Callable[[bytes], None], now: Callable[[], float], hold_bytes: int
    ) -> None:
        self._traveller = traveller
        self._write = write
        self._now = now
        self._tap: StreamTap | None = None
        self._held = b""
        self._tail = b""
        self._live = False
        self._started = False
        self._error: bytearray | None = None
        self._status = 0
        self._content_type = b""
        self._retry_after_s: float | None = None
        self._pass = b""
        self._length: int | None = None
        self.hold_bytes = hold_bytes
        self.last_byte_at: float | None = None

    # ---------------------------------------------------------------- sink

    def on_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Tell streams, whole answers and errors apart; nothing is sent yet."""
        self._status = status
        self._read_headers(headers)
        if status != 200:
            self._error = bytearray()
        elif self._traveller.stream and self._content_type.startswith(b"text/event-stream"):
            self._tap = self._traveller.tap

    def on_body(self, data: bytes) -> None:
        """A piece of the answer. After the first token of a stream this is all that happens per chunk."""
        self.last_byte_at = self._now()
        tap = self._tap
        if self._live:
            if tap is not None:
                data = tap.feed(data)
            else:
                self._tail = (self._tail + data)[-_TAIL:]
            if data:
                self._write(data)
        elif self._error is not None:
            if len(self._error) < _ERROR_BODY_MAX:
                self._error += data
        elif tap is not None:
            self._feed_early(tap, data)
        else:
            self._feed_whole(data)

    def on_end(self) -> None:
        """The worker's answer is complete, as far as HTTP can tell."""
        guard(self._traveller, "a relay at its end", self._close, None)

    def on_failure(self, cause: FailureCause) -> None:
        """The connection could not be made or broke."""
        guard(self._traveller, "a relay whose worker failed", self._close, cause)

    def on_fault(self, error: BaseException) -> None:
        """Our own code failed on the way of a piece of the answer."""
        contain(self._traveller, "a relay", error)

    def release(self) -> None:
        """Send what was held back for a while, unless another attempt has taken the place of this one."""
        if self._held and not self._started and self._traveller.relay is self:
            guard(self._traveller, "a relay that held back", self._start, b"")

    @property
    def started(self) -> bool:
        """Whether a byte of the answer was sent on."""
        return self._started

    # ---------------------------------------------------------------- inside

    def _feed_early(self, tap: StreamTap, data: bytes) -> None:
        out = tap.feed(data)
        if tap.first_token:
            self._start(out)
            self._live = True
            self._traveller.on_first_token()
        elif self._started:
            if out:
                self._write(out)
        else:
            was_empty = not self._held
            self._held += out
            if len(self._held) > self.hold_bytes:
                self._start(b"")
            elif was_empty and self._held:
                self._traveller.on_hold()

    def _feed_whole(self, data: bytes) -> None:
        self._held += data
        if len(self._held) > self.hold_bytes:
            self._tail = self._held[-_TAIL:]
            self._start(b"")
            self._live = True

    def _start(self, data: bytes) -> None:
        data = self._held + data
        self._held = b""
        if self._started:
            if data:
                self._write(data)
            return
        self._started = True
        self._traveller.on_answer(self._pass, self._length, data)

    def _close(self, cause: FailureCause | None) -> None:
        """Nothing more comes: ``None`` if HTTP says that the answer is complete, else why it is not."""
        tap = self._tap
        if self._error is not None:
            self._end_error()  # the status was the answer, whether or not all of its words came
        elif tap is not None:
            rest = tap.drain()
            if tap.done or tap.failed:
                self._end_stream(tap, rest)
            else:  # a stream must say that it is complete; the torn event is dropped
                self._break(cause or FailureCause.BROKEN)
        elif cause is None:
            self._end_whole()
        else:
            self._break(cause)

    def _end_stream(self, tap: StreamTap, rest: bytes) -> None:
        traveller = self._traveller
        if tap.aborted and not self._started:
            traveller.on_attempt_failed(FailureCause.BROKEN, None, None)
            return
        if rest and not tap.done:  # our mark of the end will follow
            rest += b"\n" if rest[-1:] in b"\r\n" else b"\n\n"
        self._start(rest)
        if tap.first_token and not self._live:
            traveller.on_first_token()
        traveller.on_complete(Outcome.STREAM_BROKEN if tap.failed or tap.aborted else Outcome.COMPLETED, None)

    def _end_whole(self) -> None:
        if self._live:
            self._traveller.on_complete(Outcome.COMPLETED, self._tail)
            return
        whole = self._held
        if b'"abort"' in whole and _ABORTED.search(whole):  # a worker that shuts down answers 200 with nothing in it
            self._traveller.on_attempt_failed(FailureCause.BROKEN, None, None)
            return
        self._length = len(whole)
        self._start(b"")
        self._traveller.on_complete(_COMPLETED, whole)

    def _end_error(self) -> None:
        status, body = self._status, bytes(self._error or b"")
        if status in (429, 503):
            self._traveller.on_attempt_failed(FailureCause.BUSY, status, self._retry_after_s)
        elif 400 <= status < 500 and status not in (401, 403):  # those two would be about our own credentials
            self._traveller.on_worker_refusal(status, self._content_type, body)
        elif b"after shutdown" in body:  # vLLM 0.32 while it drains: as good as a closed door
            self._traveller.on_attempt_failed(FailureCause.BROKEN, status, None)
        else:
            self._traveller.on_attempt_failed(FailureCause.FAULTY, status, None)

    def _break(self, cause: FailureCause) -> None:
        if self._started:
            self._traveller.on_broken(Outcome.STREAM_BROKEN)
        else:
            self._traveller.on_attempt_failed(cause, None, None)

    def _read_headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        named: frozenset[bytes] = frozenset()
        passed = []
        for item in headers:
            name, value = item
            if name == b"content-length":
                self._length = int(value) if value.isdigit() else None
            elif name == b"content-type":
                self._content_type = value
            elif name == b"connection" and value != b"keep-alive":
                named |= frozenset(token.strip().lower() for token in value.split(b","))
            elif name == b"retry-after":
                self._retry_after_s = _parse_seconds(value)
            if name not in _OURS and name not in _HOP_BY_HOP:
                passed.append(item)
        if named:
            passed = [item for item in passed if item[0] not in named]
        self._pass = b"".join([b"%b: %b\r\n" % item for item in passed])


def _parse_seconds(value: bytes) -> float | None:
    """Seconds of a ``Retry-After`` header; its date form is not worth a calendar here."""
    return float(value) if value.isdigit() and len(value) < 6 else None
