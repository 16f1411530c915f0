"""The way of one admitted request: admit, queue, dispatch, relay, account.

Arithmetic of the bounds: accepted connections >= queued + in flight; a permit lives from dispatch to the last byte or
the abort; every way out goes through :meth:`Journey._end`, once. Nothing here awaits: the core's orders, the worker's
bytes, the client's leaving and the sweep that looks at the time are all plain calls on the loop.
"""

from collections.abc import Callable, Sequence
from enum import Enum

from service.domain.event import (
    AttemptFailed,
    FailureCause,
    FirstTokenSeen,
    PermitEnded,
    RequestAbandoned,
    RequestArrived,
)
from service.domain.outcome import Outcome
from service.domain.permit import PermitEnding
from service.domain.request import Request
from service.domain.units import WorkerId
from service.domain.value import value
from service.runtime.account import Accounts, Settlement
from service.runtime.bypass import Dispatcher
from service.runtime.limits import RelayConfig
from service.runtime.patience import Due, find_due
from service.runtime.ports import ClientStream, Clock, Dialect, Later, StreamTap, WorkerCall, WorkerTransport
from service.runtime.relay import Relay


@value
class Outbound:
    """What goes to the worker: ``target`` is method and path, ``headers`` are rendered lines."""

    target: bytes
    headers: bytes
    body: Sequence[bytes | memoryview]
    strip_usage: bool = False


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


class Stage(Enum):
    """Where a journey stands."""

    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"


class Journey:
    """One request under way. ``start`` sets it off; from then on it is called, and ends exactly once.

    ``first_token_limit_at`` is the client's own deadline, if it gave one.
    """

    stage = Stage.QUEUED
    stream = False
    tap: StreamTap | None = None
    head_sent = False
    paused_at: float | None = None
    relay: Relay | None = None
    first_token_limit_at: float | None = None
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
        self._out = out
        self._client = client
        self._head = head
        self._now = road.clock.now
        self.request = request
        self.settlement = settlement
        self.dialect = dialect
        self.last_sent_at = request.arrived_at
        if request.stream:
            self.stream = True

    def start(self) -> None:
        """Ask to be admitted."""
        self._road.driver.board(self.request.request_id, self)
        self.settlement.admitted_at = self._now()
        self._road.driver.submit(RequestArrived(self.request))

    # ---------------------------------------------------------------- orders of the core

    def on_enqueue(self) -> None:
        """Wait in the queue."""

    def on_dispatch(self, worker_id: WorkerId, attempt: int) -> None:
        """Send it to the worker."""
        road, settlement, out = self._road, self.settlement, self._out
        settlement.dispatched_at = self._now()
        settlement.worker_id = worker_id
        settlement.attempts = attempt
        self.stage = Stage.RUNNING
        if self.stream:
            self.tap = self.dialect.open_tap(out.strip_usage)
        self.relay = relay = Relay(self, self._client.write, self._now, road.relay.hold_bytes)
        self._call = call = road.transport.open(worker_id, out.target, out.headers, out.body, relay)
        if self.paused_at is not None:
            call.pause()

    def on_refuse(self, outcome: Outcome, retry_after_s: float | None) -> None:
        """It will not be served: say so."""
        self._answer_refusal(outcome, retry_after_s)
        self._end(outcome)

    def on_revoke(self) -> None:
        """Leave the worker: another may serve it if nothing was sent, else the stream ends with an error."""
        if self.stage is Stage.RUNNING:
            self._leave_worker(FailureCause.REVOKED)

    # ---------------------------------------------------------------- word from the relay

    def on_answer(self, headers: bytes, length: int | None, data: bytes) -> None:
        """Commit the head, unless a heartbeat did, and send the first bytes."""
        if not self.head_sent:
            self._commit(200, headers, None if self.stream else length)
        self._client.write(data)

    def on_first_token(self) -> None:
        """Stamp it and tell the core that the prefill is over."""
        self.settlement.first_token_at = self._now()
        self._road.driver.submit(FirstTokenSeen(self.request.request_id))

    def on_complete(self, outcome: Outcome, whole: bytes | None) -> None:
        """Last byte sent: read the usage, give the permit back."""
        self._client.finish()
        settlement, relay = self.settlement, self.relay
        settlement.last_token_at = relay.last_byte_at if relay is not None else None
        if whole is not None:
            usage = self.dialect.read_usage(whole)
            settlement.prompt_tokens, settlement.cached_tokens, settlement.output_tokens = usage
            settlement.first_token_at = settlement.last_token_at
        self._give_back(PermitEnding.SERVED if outcome is Outcome.COMPLETED else PermitEnding.DROPPED)
        self._end(outcome)

    def on_broken(self, outcome: Outcome) -> None:
        """The answer began and cannot be completed."""
        self._break(outcome, PermitEnding.DROPPED)

    def on_worker_refusal(self, status: int, content_type: bytes, body: bytes) -> None:
        """The worker's own 4xx goes to the client as it is, if it can be read there."""
        headers, body = self.dialect.adopt_error(status, content_type, body)
        if self.head_sent:
            self._client.write(self.dialect.build_error_events(Outcome.WORKER_REFUSED))
        else:
            self._commit(status, headers, len(body))
            self._client.write(body)
        self._client.finish()
        self._give_back(PermitEnding.IGNORED)
        self._end(Outcome.WORKER_REFUSED)

    def on_attempt_failed(self, cause: FailureCause, status: int | None, retry_after_s: float | None) -> None:
        """Nothing was sent: the core decides whether another worker tries."""
        self._abort_call()
        self.relay = None
        self._worker_status = status
        self.stage = Stage.QUEUED
        self._road.driver.submit(AttemptFailed(self.request.request_id, cause, retry_after_s))

    def on_hold(self) -> None:
        """Something is held back: release it soon."""
        if self.relay is not None:
            self._road.later(self._road.relay.hold_s, self.relay.release)

    # ---------------------------------------------------------------- word from the client

    def on_client_gone(self) -> None:
        """Nobody listens any more: stop the worker at once."""
        queued = self.stage is Stage.QUEUED
        self._give_up(Outcome.CLIENT_GONE_QUEUED if queued else Outcome.CLIENT_GONE)

    def on_client_paused(self) -> None:
        """The client reads slowly: let the worker's socket fill instead of our memory."""
        self.paused_at = self._now()
        if self._call is not None:
            self._call.pause()

    def on_client_ready(self) -> None:
        """The client reads again."""
        self.paused_at = None
        if self._call is not None:
            if self.relay is not None and self.relay.last_byte_at is not None:
                self.relay.last_byte_at = self._now()  # the silence was the client's, not the worker's
            self._call.resume()

    # ---------------------------------------------------------------- time, and the end of the house

    def on_sweep(self, now: float) -> None:
        """Look at the time; called a few times a second for every request under way."""
        due = find_due(self, self._road.relay, now)
        if due is None:
            return
        match due:
            case Due.CLIENT_STALLED:
                self._client.cut()
                self._give_up(Outcome.CLIENT_STALLED)
            case Due.WORKER_SILENT:
                self._leave_worker(FailureCause.TIMEOUT)
            case Due.HEARTBEAT:
                if not self.head_sent:
                    self._commit(200, b"content-type: text/event-stream; charset=utf-8\r\n", None)
                self._client.write(self.dialect.build_heartbeat())
                self.last_sent_at = now

    def on_drain_cut(self) -> None:
        """The gateway's grace is over: end with an error rather than with a closed socket."""
        if self.stage is Stage.RUNNING:
            self._break(Outcome.DRAIN_CUT, PermitEnding.IGNORED)
        elif self.stage is Stage.QUEUED:
            self._road.driver.submit(RequestAbandoned(self.request.request_id))
            self.on_refuse(Outcome.DRAINING, 1.0)

    def on_fault(self) -> None:
        """Our own code failed: give everything back and say so if nothing was said."""
        if self.stage is Stage.RUNNING:
            self._break(Outcome.GATEWAY_FAULT, PermitEnding.IGNORED)
        elif self.stage is Stage.QUEUED:
            self._answer_refusal(Outcome.GATEWAY_FAULT, 1.0)
            self._end(Outcome.GATEWAY_FAULT)

    # ---------------------------------------------------------------- ways out

    def _commit(self, status: int, headers: bytes, length: int | None) -> None:
        settlement = self.settlement
        self.head_sent = True
        settlement.status = status
        worker = b"" if settlement.worker_id is None else self._road.opaque(settlement.worker_id)
        ours = b"%b%bx-sluice-queue-ms: %d\r\nx-sluice-worker: %b\r\n" % (
            headers, self._head, (settlement.queue_s or 0.0) * 1000.0, worker,
        )  # fmt: skip
        self._client.begin(status, ours, length)

    def _answer_refusal(self, outcome: Outcome, retry_after_s: float | None) -> None:
        client = self._client
        if self.head_sent:
            client.write(self.dialect.build_error_events(outcome))
        else:
            status, headers, body = self.dialect.build_refusal(outcome, retry_after_s, None)
            if outcome is Outcome.WORKER_BUSY and self._worker_status is not None:
                status = self._worker_status  # the worker's own word: 429 or 503
            self.settlement.status = status
            self.head_sent = True
            client.begin(status, headers + self._head, len(body))
            client.write(body)
        client.finish()

    def _leave_worker(self, cause: FailureCause) -> None:
        if self.relay is not None and self.relay.started:
            self._break(Outcome.STREAM_STALLED, PermitEnding.DROPPED)
        else:
            self.on_attempt_failed(cause, None, None)

    def _break(self, outcome: Outcome, ending: PermitEnding) -> None:
        """End an answer that has begun: an error event in a stream; a whole answer can only be cut."""
        self._abort_call()
        if not self.head_sent:
            self._answer_refusal(outcome, 1.0)
        elif self.stream:
            self._client.write(self.dialect.build_error_events(outcome))
            self._client.finish()
        else:
            self._client.cut()
        self._count_events()
        self._give_back(ending)
        self._end(outcome)

    def _give_up(self, outcome: Outcome) -> None:
        """End without a word to the client, which is gone."""
        if self.stage is Stage.RUNNING:
            self._abort_call()
            self._count_events()
            self._give_back(PermitEnding.IGNORED)
            self._end(outcome)
        elif self.stage is Stage.QUEUED:
            self._road.driver.submit(RequestAbandoned(self.request.request_id))
            self._end(outcome)

    def _abort_call(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.abort()

    def _count_events(self) -> None:
        """Without usage, the events that passed are the least that was produced."""
        tap, settlement = self.tap, self.settlement
        if tap is not None and tap.output_tokens is None and settlement.first_token_at is not None:
            settlement.output_tokens = max(tap.events - 1, 1)
            settlement.output_estimated = True
            settlement.last_token_at = self.relay.last_byte_at if self.relay is not None else None

    def _give_back(self, ending: PermitEnding) -> None:
        tap, settlement = self.tap, self.settlement
        if tap is not None and tap.output_tokens is not None:
            settlement.prompt_tokens, settlement.cached_tokens = tap.prompt_tokens, tap.cached_tokens
            settlement.output_tokens = tap.output_tokens
        self.stage = Stage.ENDED
        self._road.driver.submit(
            PermitEnded(
                self.request.request_id,
                ending,
                settlement.output_tokens,
                settlement.prompt_tokens,
                settlement.cached_tokens,
            )
        )

    def _end(self, outcome: Outcome) -> None:
        self.stage = Stage.ENDED
        self.relay = self._call = None  # no cycle is left behind for the collector
        self._road.driver.alight(self.request.request_id)
        self._client.release()
        self._road.accounts.settle(self.settlement, outcome, self._now())
