"""The way of one admitted request: admit, queue, dispatch, relay, account.

Arithmetic of the bounds: accepted connections >= queued + in flight; a permit lives from dispatch to the last byte or
the abort; every way out goes through :meth:`Journey._end`, once.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from service.runtime.account import Accounts, Settlement
from service.runtime.bypass import Dispatcher
from service.runtime.limits import RelayConfig
from service.runtime.ports import ClientStream, Clock, Dialect, StreamTap, WorkerCall, WorkerTransport
from service.runtime.relay import Relay


@dataclass(frozen=True, slots=True)
class Outbound:
    """What goes to the worker: ``target`` is method and path, ``headers`` are rendered lines."""

    target: bytes
    headers: bytes
    body: Sequence[bytes | memoryview]
    strip_usage: bool = False


@dataclass(frozen=True, slots=True)
class Road:
    """What all journeys of a gateway share. ``opaque`` gives a worker's name as clients may see it."""

    driver: Dispatcher
    transport: WorkerTransport
    accounts: Accounts
    clock: Clock
    loop: asyncio.AbstractEventLoop
    relay: RelayConfig
    opaque: Callable[[WorkerId], bytes]


class _Stage(Enum):
    NEW = "new"
    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"


class Journey:
    """One request under way. Made by the edge, which then awaits :meth:`travel`."""

    __slots__ = (
        "_call", "_client", "_done", "_first_token_limit_at", "_head", "_head_sent", "_last_failure", "_last_sent_at",
        "_now", "_out", "_paused_at", "_relay", "_request", "_road", "_settlement", "_stage", "_timer", "dialect",
        "stream", "tap",
    )  # fmt: skip

    def __init__(
        self,
        road: Road,
        request: Request,
        out: Outbound,
        client: ClientStream,
        dialect: Dialect,
        head: bytes,
        settlement: Settlement,
        first_token_limit_at: float | None = None,
    ) -> None:
        self._road = road
        self._request = request
        self._out = out
        self._client = client
        self._head = head
        self._settlement = settlement
        self._now = road.clock.now
        self._stage = _Stage.NEW
        self._done: asyncio.Future[None] | None = None
        self._relay: Relay | None = None
        self._call: WorkerCall | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._head_sent = False
        self._last_sent_at = request.arrived_at
        self._paused_at: float | None = None
        self._first_token_limit_at = first_token_limit_at
        self._last_failure: int | None = None
        self.dialect = dialect
        self.stream = request.stream
        self.tap: StreamTap | None = None

    async def travel(self) -> None:
        """Admit the request and return when it has ended and its permit is given back."""
        driver = self._road.driver
        driver.board(self._request.request_id, self)
        try:
            self._settlement.admitted_at = self._now()
            driver.submit(RequestArrived(self._request))
            if self._stage is not _Stage.ENDED:
                self._done = self._road.loop.create_future()
                self._arm()
                await self._done
        finally:  # cancelled, or a fault of our own: whatever is held is given back
            if self._stage is not _Stage.ENDED:
                self._give_up(Outcome.GATEWAY_FAULT, PermitEnding.IGNORED)

    # ---------------------------------------------------------------- orders of the core

    def on_enqueue(self) -> None:
        """Wait in the queue."""
        self._stage = _Stage.QUEUED

    def on_dispatch(self, worker_id: WorkerId, attempt: int) -> None:
        """Send it to the worker."""
        settlement = self._settlement
        settlement.dispatched_at = self._now()
        settlement.worker_id = worker_id
        settlement.attempts = attempt
        self._stage = _Stage.RUNNING
        self.tap = self.dialect.open_tap(self._out.strip_usage) if self.stream else None
        self._relay = Relay(self, self._now, self._road.relay.hold_bytes)
        self._call = self._road.transport.open(
            worker_id, self._out.target, self._out.headers, self._out.body, self._relay
        )
        if self._client.paused:
            self._call.pause()

    def on_refuse(self, outcome: Outcome, retry_after_s: float | None) -> None:
        """It will not be served: say so."""
        self._stage = _Stage.QUEUED if self._stage is _Stage.NEW else self._stage
        self._answer_refusal(outcome, retry_after_s)
        self._end(outcome)

    def on_revoke(self) -> None:
        """Leave the worker: another may serve it if nothing was sent, else the stream ends with an error."""
        if self._stage is not _Stage.RUNNING or self._relay is None:
            return
        self._abort_call()
        if self._relay.started:
            self._break(Outcome.STREAM_STALLED, PermitEnding.DROPPED)
        else:
            self.on_attempt_failed(FailureCause.REVOKED, None, None)

    # ---------------------------------------------------------------- word from the relay

    def on_answer(self, headers: bytes, length: int | None, data: bytes) -> None:
        """Commit the head, unless a heartbeat did, and send the first bytes."""
        if not self._head_sent:
            self._commit(200, headers, None if self.stream else length)
        self.on_piece(data)

    def on_piece(self, data: bytes) -> None:
        """Send on."""
        self._client.write(data)

    def on_first_token(self) -> None:
        """Stamp it and tell the core that the prefill is over."""
        self._settlement.first_token_at = self._now()
        self._road.driver.submit(FirstTokenSeen(self._request.request_id))

    def on_complete(self, outcome: Outcome, whole: bytes | None) -> None:
        """Last byte sent: read the usage, give the permit back."""
        self._client.finish()
        settlement = self._settlement
        now = self._now()
        if whole is not None:
            usage = self.dialect.read_usage(whole)
            settlement.prompt_tokens, settlement.cached_tokens, settlement.output_tokens = usage
            settlement.first_token_at = now
        settlement.last_token_at = self._relay.last_byte_at if self._relay is not None else now
        ending = PermitEnding.SERVED if outcome is Outcome.COMPLETED else PermitEnding.DROPPED
        self._give_back(ending)
        self._end(outcome)

    def on_broken(self, outcome: Outcome) -> None:
        """The answer began and cannot be completed."""
        self._break(outcome, PermitEnding.DROPPED)

    def on_worker_refusal(self, status: int, content_type: bytes, body: bytes) -> None:
        """The worker's own 4xx goes to the client as it is, if it can be read there."""
        headers, body = self.dialect.adopt_error(status, content_type, body)
        if self._head_sent:
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
        self._call = None
        self._relay = None
        self._last_failure = status
        self._stage = _Stage.QUEUED
        self._road.driver.submit(AttemptFailed(self._request.request_id, cause, retry_after_s))

    def on_hold(self) -> None:
        """Something is held back: release it soon."""
        relay = self._relay
        if relay is not None:
            self._road.loop.call_later(self._road.relay.hold_s, relay.release)

    # ---------------------------------------------------------------- word from the client

    def on_client_gone(self) -> None:
        """Nobody listens any more: stop the worker at once."""
        if self._stage is _Stage.QUEUED:
            self._road.driver.submit(RequestAbandoned(self._request.request_id))
            self._end(Outcome.CLIENT_GONE_QUEUED)
        elif self._stage is _Stage.RUNNING:
            self._give_up(Outcome.CLIENT_GONE, PermitEnding.IGNORED)

    def on_client_paused(self) -> None:
        """The client reads slowly: let the worker's socket fill instead of our memory."""
        self._paused_at = self._now()
        if self._call is not None:
            self._call.pause()

    def on_client_ready(self) -> None:
        """The client reads again."""
        self._paused_at = None
        if self._call is not None:
            if self._relay is not None and self._relay.last_byte_at is not None:
                self._relay.last_byte_at = self._now()  # the silence was the client's, not the worker's
            self._call.resume()

    def on_drain_cut(self) -> None:
        """The gateway's grace is over: end with an error rather than with a closed socket."""
        if self._stage is _Stage.RUNNING:
            self._abort_call()
            self._break(Outcome.DRAIN_CUT, PermitEnding.IGNORED)
        elif self._stage is _Stage.QUEUED:
            self._road.driver.submit(RequestAbandoned(self._request.request_id))
            self._answer_refusal(Outcome.DRAINING, 1.0)
            self._end(Outcome.DRAINING)

    # ---------------------------------------------------------------- time

    def _arm(self) -> None:
        if self._stage is _Stage.ENDED:
            return
        delay_s = max(self._next_check_at() - self._now(), 0.0)
        self._timer = self._road.loop.call_later(delay_s, self._check)

    def _next_check_at(self) -> float:
        limits = self._road.relay
        moments = [self._worker_limit_at()]
        if self.stream and not (self._relay is not None and self._relay.started):
            every_s = limits.heartbeat_every_s if self._head_sent else limits.heartbeat_after_s
            moments.append(self._last_sent_at + every_s)
        if self._paused_at is not None:
            moments = [self._paused_at + limits.client_stall_s]
        elif len(moments) == 1:
            moments.append(self._now() + limits.client_stall_s)  # look whether the client has paused since
        return min(moments)

    def _worker_limit_at(self) -> float:
        """When the worker has been silent for too long; a queued request's own deadline is the core's business."""
        limits, dispatched_at = self._road.relay, self._settlement.dispatched_at
        if self._stage is not _Stage.RUNNING or dispatched_at is None or self._relay is None:
            return self._now() + limits.inter_token_s
        if not self.stream:
            return dispatched_at + limits.whole_s
        last_byte_at = self._relay.last_byte_at
        if self._settlement.first_token_at is None or last_byte_at is None:
            limit_at = dispatched_at + limits.first_token_s
            return limit_at if self._first_token_limit_at is None else min(limit_at, self._first_token_limit_at)
        return last_byte_at + limits.inter_token_s

    def _check(self) -> None:
        """Something may be due; look, act, arm again."""
        limits, now = self._road.relay, self._now()
        if self._paused_at is not None:
            if now >= self._paused_at + limits.client_stall_s:
                self._client.cut()
                self._give_up(Outcome.CLIENT_STALLED, PermitEnding.IGNORED)
        elif self._stage is _Stage.RUNNING and now >= self._worker_limit_at():
            self._abort_call()
            if self._relay is not None and self._relay.started:
                self._break(Outcome.STREAM_STALLED, PermitEnding.DROPPED)
            else:
                self.on_attempt_failed(FailureCause.TIMEOUT, None, None)
        elif self.stream and not (self._relay is not None and self._relay.started):
            every_s = limits.heartbeat_every_s if self._head_sent else limits.heartbeat_after_s
            if now >= self._last_sent_at + every_s:
                self._beat(now)
        self._arm()

    def _beat(self, now: float) -> None:
        if not self._head_sent:
            self._commit(200, b"content-type: text/event-stream; charset=utf-8\r\n", None)
        self._client.write(self.dialect.build_heartbeat())
        self._last_sent_at = now

    # ---------------------------------------------------------------- ways out

    def _commit(self, status: int, headers: bytes, length: int | None) -> None:
        settlement = self._settlement
        self._head_sent = True
        settlement.status = status
        queue_s = settlement.queue_s or 0.0
        worker = b"" if settlement.worker_id is None else self._road.opaque(settlement.worker_id)
        ours = b"%bx-sluice-queue-ms: %d\r\nx-sluice-worker: %b\r\n" % (self._head, queue_s * 1000.0, worker)
        self._client.begin(status, headers + ours, length)

    def _answer_refusal(self, outcome: Outcome, retry_after_s: float | None) -> None:
        client = self._client
        if self._head_sent:
            client.write(self.dialect.build_error_events(outcome))
        else:
            status, headers, body = self.dialect.build_refusal(outcome, retry_after_s, None)
            if outcome is Outcome.WORKER_BUSY and self._last_failure is not None:
                status = self._last_failure  # the worker's own word: 429 or 503
            self._settlement.status = status
            self._head_sent = True
            client.begin(status, headers + self._head, len(body))
            client.write(body)
        client.finish()

    def _break(self, outcome: Outcome, ending: PermitEnding) -> None:
        """End an answer that has begun: an error event in a stream; a whole answer can only be cut."""
        self._abort_call()
        if self.stream and self._head_sent:
            self._client.write(self.dialect.build_error_events(outcome))
            self._client.finish()
        elif self._head_sent:
            self._client.cut()
        else:
            self._answer_refusal(outcome, 1.0)
        self._count_events()
        self._give_back(ending)
        self._end(outcome)

    def _give_up(self, outcome: Outcome, ending: PermitEnding) -> None:
        """End without a word to the client: it is gone, or the fault is ours and the edge will speak."""
        if self._stage is _Stage.RUNNING:
            self._abort_call()
            self._count_events()
            self._give_back(ending)
        elif self._stage is _Stage.QUEUED:
            self._road.driver.submit(RequestAbandoned(self._request.request_id))
        self._end(outcome)

    def _abort_call(self) -> None:
        if self._call is not None:
            self._call.abort()

    def _count_events(self) -> None:
        """Without usage, the events that passed are the least that was produced."""
        tap, settlement = self.tap, self._settlement
        if tap is not None and tap.output_tokens is None and settlement.first_token_at is not None:
            settlement.output_tokens = max(tap.events - 1, 1)
            settlement.output_estimated = True
            settlement.last_token_at = self._relay.last_byte_at if self._relay is not None else None

    def _give_back(self, ending: PermitEnding) -> None:
        tap, settlement = self.tap, self._settlement
        if tap is not None and tap.output_tokens is not None:
            settlement.prompt_tokens, settlement.cached_tokens = tap.prompt_tokens, tap.cached_tokens
            settlement.output_tokens = tap.output_tokens
        self._stage = _Stage.ENDED
        self._road.driver.submit(PermitEnded(self._request.request_id, ending, settlement.output_tokens))

    def _end(self, outcome: Outcome) -> None:
        self._stage = _Stage.ENDED
        if self._timer is not None:
            self._timer.cancel()
        self._road.driver.alight(self._request.request_id)
        self._road.accounts.settle(self._settlement, outcome, self._now())
        if self._done is not None and not self._done.done():
            self._done.set_result(None)
