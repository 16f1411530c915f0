"""How a request ends: what its client hears, what becomes of its permit, and the one settlement.

Every way out goes through :meth:`Ending._end`, once. ``stage`` says what the core believes: that the request waits,
that it holds a permit, or nothing. It is set before the core is told, so that a fault on the way gives back what is
held and no more.
"""

from collections.abc import Callable, Sequence
from enum import Enum

from service.domain.event import AttemptFailed, FailureCause, PermitEnded, RequestAbandoned
from service.domain.outcome import Outcome
from service.domain.permit import PermitEnding
from service.domain.request import Request
from service.domain.units import WorkerId
from service.domain.value import value
from service.runtime.account import Accounts, Settlement
from service.runtime.advice import compute_retry_after_s
from service.runtime.bypass import Dispatcher
from service.runtime.limits import RelayConfig
from service.runtime.ports import ClientStream, Clock, Dialect, Later, StreamTap, WorkerCall, WorkerTransport
from service.runtime.relay import Relay


@value
class Road:
    """What all journeys of a gateway share. ``opaque`` gives a worker's name as clients may see it."""

    driver: Dispatcher
    transport: WorkerTransport
    accounts: Accounts
    clock: Clock
    later: Later
    relay: RelayConfig
    opaque: Callable[[WorkerId], bytes]


@value
class Outbound:
    """What goes to the worker: ``target`` is method and path, ``headers`` are rendered lines."""

    target: bytes
    headers: bytes
    body: Sequence[bytes | memoryview]
    strip_usage: bool = False


class Stage(Enum):
    """What the core believes of a journey."""

    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"


_ENDED = Stage.ENDED


class Ending:
    """The ways out of one request, and what they need to know."""

    stage = Stage.QUEUED
    stream = False
    tap: StreamTap | None = None
    head_sent = False
    relay: Relay | None = None
    _said = False  # the client has all of its answer, or was cut off
    _call: WorkerCall | None = None
    _worker_status: int | None = None

    def __init__(
        self,
        road: Road,
        request: Request,
        out: Outbound,
        client: ClientStream,
        dialect: Dialect,
        head: bytes,
        settlement: Settlement,
    ) -> None:
        self._road = road
        self._out: Outbound | None = out
        self._client = client
        self._head = head
        self._now = road.clock.now
        self.request = request
        self.settlement = settlement
        self.dialect = dialect
        self.last_sent_at = request.arrived_at
        if request.stream:
            self.stream = True

    def on_fault(self) -> None:
        """Our own code failed: whatever the state, tell the client if it can be told, give everything back, settle.
        Each step is made even if the one before fails too."""
        if self.settlement.outcome is not None:
            return
        try:
            self._abort_call()
        finally:
            try:
                if not self._said:
                    self._tell_end(Outcome.GATEWAY_FAULT)
            finally:
                try:
                    self._give_up_place(PermitEnding.IGNORED)
                finally:
                    if not self._said:
                        self._client.cut()
                    self._end(Outcome.GATEWAY_FAULT)

    # ---------------------------------------------------------------- what the client hears

    def _commit(self, status: int, headers: bytes, length: int | None) -> None:
        settlement = self.settlement
        settlement.status = status
        worker = b"" if settlement.worker_id is None else self._road.opaque(settlement.worker_id)
        queue_ms = int((settlement.queue_s or 0.0) * 1000.0)
        ours = b"%b%bx-sluice-queue-ms: %d\r\nx-sluice-worker: %b\r\n" % (headers, self._head, queue_ms, worker)
        self._client.begin(status, ours, length)
        self.head_sent = True

    def _finish(self) -> None:
        self._said = True
        self._client.finish()

    def _answer_refusal(self, outcome: Outcome, retry_after_s: float | None) -> None:
        client = self._client
        if self.head_sent:
            client.write(self.dialect.build_error_events(outcome))
        else:
            status, headers, body = self.dialect.build_refusal(outcome, retry_after_s, None)
            if outcome is Outcome.WORKER_BUSY and self._worker_status is not None:
                status = self._worker_status  # the worker's own word: 429 or 503
            self.settlement.status = status
            client.begin(status, headers + self._head, len(body))
            self.head_sent = True
            client.write(body)
        self._finish()

    def _tell_end(self, outcome: Outcome) -> None:
        """Say that the answer will not be completed: by its status if nothing was sent, by one error event in a
        stream (the worker's own, if it sent one), by closing in the middle of any other."""
        if not self.head_sent:
            self._answer_refusal(outcome, self._retry_after_s())
        elif self.stream:
            tap = self.tap
            if tap is not None and tap.torn:
                self._client.write(b"\n\n")
            if tap is None or not (tap.failed or tap.done):
                self._client.write(self.dialect.build_error_events(outcome))
            elif not tap.done:
                self._client.write(self.dialect.build_stream_end())
            self._finish()
        else:
            self._said = True
            self._client.cut()

    def _retry_after_s(self) -> float:
        return compute_retry_after_s(self.request.arrived_at)

    # ---------------------------------------------------------------- ways out

    def _leave_worker(self, cause: FailureCause, outcome: Outcome) -> None:
        """Another worker may serve it if nothing was sent, else it ends in ``outcome``."""
        if self.relay is None or not self.relay.started:
            self._fail_attempt(cause, None, None)
        else:
            self._break(outcome, PermitEnding.DROPPED)

    def _fail_attempt(self, cause: FailureCause, status: int | None, retry_after_s: float | None) -> None:
        """Nothing was sent: the core decides whether another worker tries."""
        self._abort_call()
        self.relay = self.tap = None
        self._worker_status = status
        self.stage = Stage.QUEUED
        self._road.driver.submit(AttemptFailed(self.request.request_id, cause, retry_after_s))

    def _break(self, outcome: Outcome, ending: PermitEnding) -> None:
        """End an answer that has begun."""
        self._abort_call()
        self._tell_end(outcome)
        self._give_back(ending)
        self._end(outcome)

    def _give_up(self, outcome: Outcome) -> None:
        """End without a word to the client, which is gone."""
        if self.stage is Stage.ENDED:
            return
        self._said = True
        self._abort_call()
        self._give_up_place(PermitEnding.IGNORED)
        self._end(outcome)

    def _give_up_place(self, ending: PermitEnding) -> None:
        if self.stage is Stage.RUNNING:
            self._give_back(ending)
        elif self.stage is Stage.QUEUED:
            self.stage = _ENDED
            self._road.driver.submit(RequestAbandoned(self.request.request_id))

    def _abort_call(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.abort()

    def _give_back(self, ending: PermitEnding) -> None:
        """Give the permit back, with the tokens that were produced as far as anybody knows."""
        self.stage = _ENDED
        tap, settlement = self.tap, self.settlement
        if tap is not None:
            if settlement.first_token_at is not None and self.relay is not None:
                settlement.last_token_at = self.relay.last_byte_at
            if tap.output_tokens is not None:
                settlement.prompt_tokens, settlement.cached_tokens = tap.prompt_tokens, tap.cached_tokens
                settlement.output_tokens = tap.output_tokens
            elif settlement.first_token_at is not None:
                settlement.output_tokens = max(tap.events - 1, 1)  # the first says only whose turn it is
                settlement.output_estimated = True
        tokens = (settlement.output_tokens, settlement.prompt_tokens, settlement.cached_tokens)
        self._road.driver.submit(PermitEnded(self.request.request_id, ending, *tokens))

    def _end(self, outcome: Outcome) -> None:
        self.stage = _ENDED
        self.relay = self._call = None  # no cycle is left behind for the collector
        try:
            self._road.driver.alight(self.request.request_id)
            self._client.release()
        finally:
            self._road.accounts.settle(self.settlement, outcome, self._now())
