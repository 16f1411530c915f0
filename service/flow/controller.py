"""Takes events with their moment and returns commands: the one place where requests, queue and workers meet."""

import heapq
from typing import assert_never

from service.domain.command import Command, Dispatch, Enqueue, Refuse, Revoke
from service.domain.errors import InvariantError
from service.domain.event import (
    AttemptFailed,
    DrainBegan,
    Event,
    FailureCause,
    FirstTokenSeen,
    PermitEnded,
    RequestAbandoned,
    RequestArrived,
    Woken,
    WorkerDrainChanged,
    WorkerHealthChanged,
    WorkerJoined,
    WorkerLeft,
    WorkerLoadSeen,
)
from service.domain.outcome import Outcome
from service.domain.permit import PermitEnding
from service.domain.units import RequestId
from service.flow.balance import Chance, choose_worker, has_room
from service.flow.breaker import (
    BreakerState,
    next_change_at,
    observe_dispatch,
    observe_failure,
    observe_nothing,
    observe_success,
)
from service.flow.config import FlowConfig, Reconfigured
from service.flow.estimator import estimate_request
from service.flow.failure import outcome_of
from service.flow.ledger import PermitLedger, WorkerState
from service.flow.queue import ArrivalQueue, Waiting
from service.flow.retry import RetryBudget
from service.flow.stats import FlowStats, build_worker_stats
from service.flow.wait import HoldingTime, compute_retry_after_s


class FlowController:
    """The flow core. Not thread-safe: one writer, no re-entry.

    Trade-offs: first come first served with a fixed number of permits per worker is blind to tiers and sizes.
    """

    def __init__(self, config: FlowConfig, chance: Chance) -> None:
        self._config = config
        self._chance = chance
        self._queue = ArrivalQueue()
        self._ledger = PermitLedger()
        self._budget = RetryBudget(config.retry.budget_burst)
        self._service = HoldingTime()
        self._wakes: list[float] = []
        self._draining = False
        self._out: list[Command] = []

    def handle(self, event: Event | Reconfigured, now: float) -> list[Command]:
        """Let ``event`` happen at ``now`` and return what follows, in order.

        Raises:
            InvariantError: the event cannot happen, e.g. the end of a permit that nobody holds.
        """
        match event:  # the three that every request causes stand first: a match is tried in order
            case RequestArrived():
                self._arrived(event, now)
            case PermitEnded():
                self._permit_ended(event, now)
            case FirstTokenSeen():
                self._first_token(event, now)
            case AttemptFailed():
                self._attempt_failed(event, now)
            case RequestAbandoned():
                self._abandoned(event)
            case Woken():
                self._woken(now)
            case DrainBegan():
                self._draining = True
            case Reconfigured():
                self._config = event.config
                self._pump(None, now)
            case _:
                self._handle_worker(event, now)
        out = self._out
        self._out = []
        return out

    def _handle_worker(
        self, event: WorkerJoined | WorkerLeft | WorkerHealthChanged | WorkerDrainChanged | WorkerLoadSeen, now: float
    ) -> None:
        match event:
            case WorkerLoadSeen():
                self._ledger.worker(event.worker_id).load = event.load
                return
            case WorkerJoined():
                self._ledger.join(event.worker_id)
            case WorkerLeft():
                self._ledger.leave(event.worker_id)
            case WorkerHealthChanged():
                self._health_changed(event)
            case WorkerDrainChanged():
                self._ledger.worker(event.worker_id).draining = event.draining
            case _:
                assert_never(event)
        self._ledger.sort_out()
        self._pump(None, now)

    def next_wake_at(self) -> float | None:
        """When a :class:`Woken` event is due: the next deadline in the queue or the end of a worker's rest."""
        if not self._queue.size:
            return None
        deadline_at = self._queue.next_deadline_at()
        if self._wakes and (deadline_at is None or self._wakes[0] < deadline_at):
            return self._wakes[0]
        return deadline_at

    def stats(self, now: float) -> FlowStats:
        """Snapshot of queue, permits and workers; O(workers)."""
        workers = tuple(build_worker_stats(worker, now) for worker in self._ledger.workers.values())
        return FlowStats(
            self._queue.size,
            self._queue.tokens,
            len(self._ledger.running),
            self._draining,
            self._service.mean_s,
            workers,
        )

    # ---------------------------------------------------------------- requests

    def _arrived(self, event: RequestArrived, now: float) -> None:
        request = event.request
        if request.request_id in self._queue or request.request_id in self._ledger.running:
            raise InvariantError(f"request {request.request_id} arrived twice")
        self._budget.earn(self._config.retry)
        if self._draining:
            self._refuse(request.request_id, Outcome.DRAINING, 1.0)
            return
        entry = Waiting(request, estimate_request(request).prompt_tokens)
        if entry.choosy or not self._queue.has_ordinary():  # else nobody has room for it
            worker = self._pick(entry, now)
            if worker is not None:
                self._dispatch(entry, worker, now)
                return
        outcome = self._refusal(entry, now)
        if outcome is None:
            self._queue.add(entry)
            self._out.append(Enqueue(request.request_id, self._queue.size))
        else:
            self._refuse(request.request_id, outcome, self._wait_s(1))

    def _refusal(self, entry: Waiting, now: float) -> Outcome | None:
        """Why ``entry`` may not wait; ``None`` if it may."""
        config = self._config
        if not self._ledger.usable:
            return Outcome.NO_WORKERS
        if entry.request.pinned_to is not None and entry.request.pinned_to not in self._ledger.workers:
            return Outcome.UNKNOWN_RESPONSE
        too_many = self._queue.size >= config.queued_requests_max
        if too_many or self._queue.tokens + entry.prompt_tokens > config.queued_tokens_max:
            return Outcome.QUEUE_FULL
        wait_s = self._wait_s(1)
        if wait_s is not None and now + wait_s > entry.request.deadline_at:
            return Outcome.DEADLINE_UNATTAINABLE
        return None

    def _abandoned(self, event: RequestAbandoned) -> None:
        if self._queue.remove(event.request_id) is None:
            raise InvariantError(f"request {event.request_id} left the queue it does not stand in")

    def _first_token(self, event: FirstTokenSeen, now: float) -> None:
        running = self._ledger.running.get(event.request_id)
        if running is None:
            raise InvariantError(f"first token of request {event.request_id}, which holds no permit")
        running.first_token_at = now
        worker = self._ledger.workers[running.permit.worker_id]
        rested = worker.breaker.open_until is not None
        observe_success(worker.breaker)
        if rested:
            self._pump(worker, now)

    def _permit_ended(self, event: PermitEnded, now: float) -> None:
        running, worker = self._ledger.release(event.request_id)
        match event.ending:
            case PermitEnding.SERVED:
                self._service.observe(now - running.permit.granted_at)
                observe_success(worker.breaker)
            case PermitEnding.IGNORED:
                observe_nothing(worker.breaker)
            case PermitEnding.DROPPED:
                observe_failure(worker.breaker, FailureCause.BROKEN, None, now, self._config.breaker)
                self._note_rest(worker, now)
            case _:
                assert_never(event.ending)
        self._pump(worker, now)

    def _attempt_failed(self, event: AttemptFailed, now: float) -> None:
        running, worker = self._ledger.release(event.request_id)
        observe_failure(worker.breaker, event.cause, event.retry_after_s, now, self._config.breaker)
        self._note_rest(worker, now)
        pinned = running.request.pinned_to is not None
        failed_on = running.failed_on | {worker.worker_id}
        elsewhere = not pinned and any(other.worker_id not in failed_on for other in self._ledger.usable)
        attempt = running.permit.attempt
        in_time = now < running.request.deadline_at
        if elsewhere and in_time and self._budget.spend(event.cause, attempt, self._config.retry):
            entry = Waiting(running.request, running.prompt_tokens, attempt + 1, failed_on)
            self._queue.add(entry)
            self._out.append(Enqueue(event.request_id, self._queue.size))
            self._try(entry, self._pick(entry, now), now)
        else:
            self._refuse(event.request_id, outcome_of(event.cause), event.retry_after_s or self._wait_s(1))
        self._pump(worker, now)

    # ---------------------------------------------------------------- workers

    def _health_changed(self, event: WorkerHealthChanged) -> None:
        worker = self._ledger.worker(event.worker_id)
        worker.healthy = event.healthy and worker.listed
        if event.healthy:
            worker.breaker = BreakerState()
            return
        for request_id in worker.held:
            running = self._ledger.running[request_id]
            if not running.revoked:
                running.revoked = True
                self._out.append(Revoke(request_id))

    # ---------------------------------------------------------------- the queue

    def _woken(self, now: float) -> None:
        while self._wakes and self._wakes[0] <= now:
            heapq.heappop(self._wakes)
        self._pump(None, now)

    def _pump(self, hint: WorkerState | None, now: float) -> None:
        """Expire what waited too long, then dispatch while somebody waits and some worker has room.

        ``hint`` is the only worker that can have got room since the last event; ``None`` if any can.
        """
        if not self._queue.size:
            return
        for entry in self._queue.take_expired(now):
            outcome = Outcome.EXPIRED if self._ledger.usable else Outcome.NO_WORKERS
            self._refuse(entry.request.request_id, outcome, self._wait_s(1))
        if hint is None:
            for line in self._queue.lines():
                while line and self._try(entry := next(iter(line.values())), self._pick(entry, now), now):
                    pass
            return
        limit = self._config.requests_per_worker
        if has_room(hint, limit, now):
            for line in self._queue.lines_for(hint.worker_id):
                while line:
                    self._try(next(iter(line.values())), hint, now)
                    if not has_room(hint, limit, now):
                        return

    def _pick(self, entry: Waiting, now: float) -> WorkerState | None:
        """A worker with room for ``entry``."""
        limit = self._config.requests_per_worker
        pinned = entry.request.pinned_to
        if pinned is None:
            return choose_worker(self._ledger.usable, limit, entry.failed_on, now, self._chance)
        worker = self._ledger.workers.get(pinned)
        return worker if worker is not None and has_room(worker, limit, now) else None

    def _try(self, entry: Waiting, worker: WorkerState | None, now: float) -> bool:
        if worker is None:
            return False
        self._queue.remove(entry.request.request_id)
        self._dispatch(entry, worker, now)
        return True

    def _dispatch(self, entry: Waiting, worker: WorkerState, now: float) -> None:
        self._ledger.grant(entry, worker, now)
        observe_dispatch(worker.breaker)
        self._out.append(Dispatch(entry.request.request_id, worker.worker_id, entry.attempt))

    def _refuse(self, request_id: RequestId, outcome: Outcome, wait_s: float | None) -> None:
        retry_after_s = None
        if outcome.retryable:
            retry_after_s = compute_retry_after_s(wait_s, self._config.retry_after_max_s, self._chance.random())
        self._out.append(Refuse(request_id, outcome, retry_after_s))

    def _wait_s(self, more: int) -> float | None:
        permits = len(self._ledger.usable) * self._config.requests_per_worker
        return self._service.estimate_wait_s(self._queue.size + more, permits)

    def _note_rest(self, worker: WorkerState, now: float) -> None:
        while self._wakes and self._wakes[0] <= now and not self._queue.size:
            heapq.heappop(self._wakes)  # nobody waits for it, and no Woken will come to take it out
        moment = next_change_at(worker.breaker, now)
        if moment is not None and not (self._wakes and self._wakes[0] == moment):
            heapq.heappush(self._wakes, moment)
