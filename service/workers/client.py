"""One HTTP/1.1 connection to a worker: writes a request, hands the answer to a sink straight from the socket."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, cast

import httptools

from service.domain.event import FailureCause
from service.workers.upload import Pace, Upload

_HEAD_MAX_BYTES = 64 * 1024
"""A worker's status line and headers may not be larger; the same bound as h11's default times four."""


def _ignore(data: bytes) -> None:
    """Takes nothing: before a sink has seen the head."""


_UNANSWERED = 0
_READING = 1


class ReplySink(Protocol):
    """Receives one answer. Called from the socket's callback: must not block; only ``on_head`` and ``on_body`` may
    raise, which comes back as ``on_fault``."""

    def on_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Status and headers (names in lower case)."""
        ...

    @property
    def on_body(self) -> Callable[[bytes], None]:
        """Takes a piece of the body; asked for once, after the head."""
        ...

    def on_end(self) -> None:
        """The body is complete."""
        ...

    def on_failure(self, cause: FailureCause) -> None:
        """The answer cannot be completed."""
        ...

    def on_fault(self, error: BaseException) -> None:
        """Our own code failed while it took the answer in; nothing more comes."""
        ...


class ConnectionHome(Protocol):
    """Where a connection belongs."""

    reads: int
    """Grows with every read of an answer."""

    @property
    def write(self) -> Callable[[asyncio.Transport, bytes], None]:
        """Sends on a transport, now or at the end of the loop's turn."""
        ...

    @property
    def pace(self) -> Pace:
        """Spreads what is large over the turns of the loop."""
        ...

    def freed(self, connection: "WorkerConnection") -> None:
        """An answer is complete and the connection may be used again."""
        ...

    def closed(self, connection: "WorkerConnection") -> None:
        """The socket is gone."""
        ...


class WorkerConnection(asyncio.Protocol):
    """Carries one exchange at a time.

    Exactly one of ``sink.on_end``, ``sink.on_failure`` and ``sink.on_fault`` ends an exchange, unless it was aborted.
    """

    __slots__ = (
        "_answered",
        "_framed",
        "_halted",
        "_head_bytes",
        "_headers",
        "_home",
        "_keep_alive",
        "_parser",
        "_phase",
        "_sink",
        "_take_body",
        "_transport",
        "_upload",
        "answered_once",
        "idle_since",
    )

    def __init__(self, home: ConnectionHome) -> None:
        self._home = home
        self._take_body: Callable[[bytes], None] = _ignore
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._sink: ReplySink | None = None
        self._answered: ReplySink | None = None  # its answer is complete, and it has not heard so yet
        self._halted = False
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._framed = False
        self._keep_alive = False
        self._phase = _UNANSWERED
        self._upload: Upload | None = None
        self.answered_once = False
        self.idle_since = 0.0

    # ---------------------------------------------------------------- used by the pool

    def send(self, head: bytes, body: Sequence[bytes | memoryview], sink: ReplySink) -> None:
        """Start an exchange on this idle connection."""
        transport = self._transport
        assert transport is not None, "sent on a connection that was never made"  # noqa: S101
        self._sink = sink
        self._take_body = _ignore
        self._phase = _UNANSWERED
        if len(body) == 1 and len(body[0]) < 65536:
            self._home.write(transport, head + body[0])
        else:
            self._upload = Upload(transport, [head, *body], self._home.pace)

    def divert(self, take_body: Callable[[bytes], None]) -> None:
        """Hand the pieces of the present answer's body straight to ``take_body``: one call less for each chunk."""
        self._take_body = take_body

    @property
    def usable(self) -> bool:
        """Idle and, as far as we know, open at the other end."""
        return self._sink is None and self._transport is not None and not self._transport.is_closing()

    @property
    def untouched(self) -> bool:
        """Not a byte of the present answer has come."""
        return self._phase == _UNANSWERED and self._head_bytes == 0

    def abort(self) -> None:
        """Close at once without telling the sink; the worker sees its client leave."""
        self._sink = self._answered = None
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Stop reading: the worker's own send buffer fills, then it waits."""
        if self._transport is not None and not self._transport.is_closing():
            self._halted = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        self._halted = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # ---------------------------------------------------------------- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by shape, not by class

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone; an answer framed by its end is complete, any other is broken."""
        sink, self._sink = self._sink, None
        self._transport = None
        self._home.closed(self)
        if sink is None:
            return
        if self._phase == _READING and not self._framed and exc is None:
            sink.on_end()
        else:
            sink.on_failure(FailureCause.BROKEN)

    def pause_writing(self) -> None:
        """The worker takes the request more slowly than we send it."""
        if self._upload is not None:
            self._upload.pause()

    def resume_writing(self) -> None:
        """The worker takes more."""
        if self._upload is not None:
            self._upload.resume()

    def data_received(self, data: bytes) -> None:
        """Bytes of the answer; anything outside an exchange, or that is not HTTP, closes the connection."""
        if self._sink is None:
            self.abort()
            return
        self._home.reads += 1
        if self._phase == _UNANSWERED:
            if self._head_bytes + len(data) > _HEAD_MAX_BYTES and self._head_too_large(data):
                self._fail(FailureCause.FAULTY)
                return
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self._fault(error.__context__ or error)
            return
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if self._answered is None:
                self._fail(FailureCause.FAULTY)
                return
            self._keep_alive = False  # the answer is whole, and what follows it is not HTTP
        if self._answered is not None:
            self._finish()

    def _head_too_large(self, data: bytes) -> bool:
        """A read may hold a small head and the beginning of a large body."""
        end = data.find(b"\r\n\r\n")
        return end < 0 or self._head_bytes + end > _HEAD_MAX_BYTES

    def _finish(self) -> None:
        """The answer is complete and all that was read is parsed: the connection is free before the sink hears of
        it, so that the sink may use it again; unless more came than was asked for, which belongs to nobody."""
        sink, self._answered = self._answered, None
        if self._halted:
            self.resume()
        upload, self._upload = self._upload, None
        if upload is not None and not upload.done:  # it has answered before it had heard all
            self._keep_alive = False
        if self._keep_alive and self._framed:
            self._home.freed(self)
        elif self._transport is not None:
            self._transport.abort()
        if sink is not None:
            sink.on_end()

    def _fail(self, cause: FailureCause) -> None:
        sink = self._sink
        self.abort()
        if sink is not None:
            sink.on_failure(cause)

    def _fault(self, error: BaseException) -> None:
        sink = self._sink or self._answered
        self.abort()
        if sink is not None:
            sink.on_fault(error)

    # ---------------------------------------------------------------- httptools callbacks

    def on_message_begin(self) -> None:
        """A status line begins."""
        self._headers = []
        self._framed = False
        if self._answered is not None:  # a second answer, which nobody asked for
            self._keep_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        name = name.lower()
        if name == b"content-length" or name == b"transfer-encoding":
            self._framed = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Head complete; interim answers (1xx) are not answers."""
        status = self._parser.get_status_code()
        sink = self._sink
        if status < 200 or sink is None:
            return
        self._phase = _READING
        self._head_bytes = 0
        self._keep_alive = self._parser.should_keep_alive()
        if status in (204, 304):
            self._framed = True
        sink.on_head(status, self._headers)

    def on_body(self, data: bytes) -> None:
        """A piece of the body, without its framing."""
        if self._sink is not None:
            self._take_body(data)

    def on_message_complete(self) -> None:
        """Body complete; the sink hears of it once the parser is done with what was read."""
        if self._phase != _READING or self._sink is None:
            return
        self._answered, self._sink = self._sink, None
        self._take_body = _ignore
        self.answered_once = True
