"""The way of one admitted request: admit, queue, dispatch, relay, account.

Arithmetic of the bounds: accepted connections >= queued + in flight; a permit lives from dispatch to the last byte or
the abort. Nothing here awaits: the core's orders, the worker's bytes, the client's leaving and the sweep that looks at
the time are all plain calls on the loop. How it ends is told in :mod:`service.runtime.ending`.
"""

from collections.abc import Callable

from service.domain.event import FailureCause, FirstTokenSeen, RequestArrived
from service.domain.mark import Mark
from service.domain.outcome import Outcome
from service.domain.permit import PermitEnding
from service.domain.units import WorkerId
from service.runtime.ending import Ending, Outbound, Road, Stage
from service.runtime.guard import guard
from service.runtime.patience import Due, find_due
from service.runtime.relay import Relay

__all__ = ["Journey", "Outbound", "Road", "Stage"]

# Looking a member up in its Enum costs as much as the rest of a line that uses it.
_RUNNING, _ENDED = Stage.RUNNING, Stage.ENDED
_SERVED, _COMPLETED = PermitEnding.SERVED, Outcome.COMPLETED
_EXCESS = frozenset((Mark.EXCESS,))
_EVENT_STREAM = b"content-type: text/event-stream; charset=utf-8\r\n"


class Journey(Ending):
    """One request under way. ``start`` sets it off; from then on it is called, and ends exactly once.

    ``first_token_limit_at`` is the client's own deadline, if it gave one. ``on_answered`` hears which worker's answer
    goes to the client, when it begins.
    """

    paused_at: float | None = None
    first_token_limit_at: float | None = None
    on_answered: Callable[[WorkerId], None] | None = None

    def start(self) -> None:
        """Ask to be admitted."""
        self._road.driver.board(self.request.request_id, self)
        self.settlement.admitted_at = now = self._now()
        if self._client.paused:  # it was told so before, and will not be told again
            self.paused_at = now
        self._road.driver.submit(RequestArrived(self.request))

    # ---------------------------------------------------------------- orders of the core

    def on_enqueue(self) -> None:
        """Wait in the queue."""

    def on_dispatch(self, worker_id: WorkerId, attempt: int) -> None:
        """Send it to the worker."""
        road, settlement, out = self._road, self.settlement, self._out
        assert out is not None, "dispatched again after its answer began"  # noqa: S101
        self.stage = _RUNNING
        settlement.dispatched_at = self._now()
        settlement.worker_id = worker_id
        settlement.attempts = attempt
        if self.stream:
            self.tap = self.dialect.open_tap(out.strip_usage)
        hold_bytes = max(road.relay.hold_bytes, self.dialect.hold_bytes)
        self.relay = relay = Relay(self, self._client.write, self._now, hold_bytes)
        self._call = call = road.transport.open(worker_id, out.target, out.headers, out.body, relay)
        if self.paused_at is not None:
            call.pause()

    def on_refuse(self, outcome: Outcome, retry_after_s: float | None) -> None:
        """It will not be served: say so."""
        self.stage = Stage.ENDED
        self._answer_refusal(outcome, retry_after_s)
        self._end(outcome)

    def on_excess(self) -> None:
        """It is above its contract: say so in the answer and in the record."""
        if not self.settlement.excess:
            self.settlement.excess = True
            self.settlement.marks |= _EXCESS
            self._head += b"x-sluice-excess: true\r\n"

    def on_revoke(self, outcome: Outcome) -> None:
        """Leave the worker; ``outcome`` is how it ends if its answer has begun."""
        if self.stage is Stage.RUNNING:
            self._leave_worker(FailureCause.REVOKED, outcome)

    # ---------------------------------------------------------------- word from the relay

    def on_answer(self, headers: bytes, length: int | None, data: bytes) -> None:
        """Commit the head, unless a heartbeat did, and send the first bytes. No other worker will get the body now."""
        self._out = None
        self._client.release()
        if self.on_answered is not None and self.settlement.worker_id is not None:
            self.on_answered(self.settlement.worker_id)
        if length == len(data) and not self.stream:
            data = self.dialect.finish(data)
            length = len(data)
        if not self.head_sent:
            self._commit(200, headers, None if self.stream else length)
        self._client.write(data)
        if self.stream and self.settlement.first_token_at is None:
            self.last_sent_at = self._now()

    def on_first_token(self) -> None:
        """Stamp it and tell the core that the prefill is over."""
        relay = self.relay
        self.settlement.first_token_at = self._now() if relay is None else relay.last_byte_at
        self._road.driver.submit(FirstTokenSeen(self.request.request_id))

    def on_complete(self, outcome: Outcome, whole: bytes | None) -> None:
        """Last byte sent: read the usage, give the permit back."""
        tap = self.tap
        if tap is not None and tap.failed and not tap.done:
            self._client.write(self.dialect.build_stream_end())
        self._finish()
        if whole is not None:
            settlement, relay = self.settlement, self.relay
            settlement.last_token_at = settlement.first_token_at = None if relay is None else relay.last_byte_at
            usage = self.dialect.read_usage(whole)
            settlement.prompt_tokens, settlement.cached_tokens, settlement.output_tokens = usage
        self._give_back(_SERVED if outcome is _COMPLETED else PermitEnding.DROPPED)
        self._end(outcome)

    def on_broken(self, outcome: Outcome) -> None:
        """The answer began and cannot be completed."""
        self._break(outcome, PermitEnding.DROPPED)

    def on_worker_refusal(self, status: int, content_type: bytes, body: bytes) -> None:
        """The worker's own 4xx goes to the client as it is, if it can be read there."""
        if self.head_sent:
            self._client.write(self.dialect.build_error_events(Outcome.WORKER_REFUSED))
        else:
            headers, body = self.dialect.adopt_error(status, content_type, body)
            self._commit(status, headers, len(body))
            self._client.write(body)
        self._finish()
        self._give_back(PermitEnding.IGNORED)
        self._end(Outcome.WORKER_REFUSED)

    def on_attempt_failed(self, cause: FailureCause, status: int | None, retry_after_s: float | None) -> None:
        """Nothing was sent, and this attempt is over."""
        self._fail_attempt(cause, status, retry_after_s)

    def on_hold(self) -> None:
        """Something is held back: release it soon."""
        if self.relay is not None:
            self._road.later(self._road.relay.hold_s, self.relay.release)

    # ---------------------------------------------------------------- word from the client

    def on_client_gone(self) -> None:
        """Nobody listens any more: stop the worker at once."""
        queued = self.stage is Stage.QUEUED
        guard(self, "a client's leaving", self._give_up, Outcome.CLIENT_GONE_QUEUED if queued else Outcome.CLIENT_GONE)

    def on_client_paused(self) -> None:
        """The client reads slowly: let the worker's socket fill instead of our memory."""
        self.paused_at = self._now()
        if self._call is not None:
            guard(self, "holding a worker back", self._call.pause)

    def on_client_ready(self) -> None:
        """The client reads again."""
        self.paused_at = None
        if self._call is not None:
            if self.relay is not None and self.relay.last_byte_at is not None:
                self.relay.last_byte_at = self._now()  # the silence was the client's, not the worker's
            guard(self, "letting a worker go on", self._call.resume)

    # ---------------------------------------------------------------- time, and the end of the house

    def on_sweep(self, now: float) -> None:
        """Look at the time; called a few times a second for every request under way."""
        if self.stage is _ENDED:  # by what followed when another looked, in this very sweep
            return
        charged, tap = self.settlement.reservation, self.tap
        if charged is not None and tap is not None and tap.events > charged.output_tokens:
            charged.account.extend(charged, tap.events, now)
        due = find_due(self, self._road.relay, now)
        if due is None:
            return
        match due:
            case Due.CLIENT_STALLED:
                self._client.cut()
                self._give_up(Outcome.CLIENT_STALLED)
            case Due.WORKER_SILENT:
                self._leave_worker(FailureCause.TIMEOUT, Outcome.STREAM_STALLED)
            case Due.CLIENT_DEADLINE:
                self._break(Outcome.CLIENT_DEADLINE, PermitEnding.IGNORED)
            case Due.HEARTBEAT:
                if not self.head_sent:
                    self._commit(200, _EVENT_STREAM, None)
                self._client.write(self.dialect.build_heartbeat())
                self.last_sent_at = now

    def on_drain_cut(self) -> None:
        """The gateway's grace is over: end with an error rather than with a closed socket."""
        if self.stage is Stage.RUNNING:
            self._break(Outcome.DRAIN_CUT, PermitEnding.IGNORED)
        elif self.stage is Stage.QUEUED:
            self._give_up_place(PermitEnding.IGNORED)
            self.on_refuse(Outcome.DRAINING, self._retry_after_s())
