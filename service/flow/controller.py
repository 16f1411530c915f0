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
from service.domain.units import RequestId, WorkerId
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
from service.flow.stats import FlowStats, WorkerStats
from service.flow.wait import ServiceTime, compute_retry_after_s


class FlowController:
    """The flow core. Not thread-safe: one writer, no re-entry.

    Trade-offs: first come first served with a fixed number of permits per worker is blind to tiers and sizes.
    """

    def __init__(self, config: FlowConfig, chance: Chance) -> None:
        self._config = config
        self._chance = chance
        self._queue = ArrivalQueue()
        self._ledger = PermitLedger()
        self._workers: list[WorkerState] = []
        self._usable: list[WorkerState] = []
        self._budget = RetryBudget(config.retry.budget_burst)
        self._service = ServiceTime()
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
                self._worker(event.worker_id).load = event.load
                return
            case WorkerJoined():
                self._joined(event)
            case WorkerLeft():
                self._left(event)
            case WorkerHealthChanged():
                self._health_changed(event)
            case WorkerDrainChanged():
                self._worker(event.worker_id).draining = event.draining
            case _:
                assert_never(event)
        self._usable = [worker for worker in self._workers if worker.healthy and not worker.draining]
        self._pump(None, now)

    def next_wake_at(self) -> float | None:
        """When a :class:`Woken` event is due: the next deadline in the queue or the end of a worker's rest."""
        if not self._queue:
            return None
        deadline_at = self._queue.next_deadline_at()
        if self._wakes and (deadline_at is None or self._wakes[0] < deadline_at):
            return self._wakes[0]
        return deadline_at

    def stats(self, now: float) -> FlowStats:
        """Snapshot of queue, permits and workers; O(workers)."""
        workers = tuple(
            WorkerStats(
                worker.worker_id,
                worker.in_flight,
                worker.healthy,
                worker.draining,
                worker.listed,
                next_change_at(worker.breaker, now) is not None or worker.breaker.probing,
            )
            for worker in self._ledger.workers.values()
        )
        return FlowStats(
            len(self._queue),
            self._queue.tokens,
            len(self._ledger.running),
            self._draining,
            self._service.mean_s,
            workers,
        )

    # ---------------------------------------------------------------- requests

    def _arrived(self, event: RequestArrived, now: float) -> None:
        request = event.request
        self._budget.earn(self._config.retry)
        if self._draining:
            self._refuse(request.request_id, Outcome.DRAINING, 1.0)
            return
        entry = Waiting(request, estimate_request(request).prompt_tokens)
        if entry.choosy or self._queue.first() is None:  # else nobody has room for it
            worker = self._pick(None, entry, now)
            if worker is not None:
                self._dispatch(entry, worker, now)
                return
        outcome = self._refusal(entry, now)
        if outcome is None:
            self._queue.add(entry)
            self._out.append(Enqueue(request.request_id, len(self._queue)))
        else:
            self._refuse(request.request_id, outcome, self._wait_s(1))

    def _refusal(self, entry: Waiting, now: float) -> Outcome | None:
        """Why ``entry`` may not wait; ``None`` if it may."""
        config = self._config
        if not self._usable:
            return Outcome.NO_WORKERS
        if entry.request.pinned_to is not None and entry.request.pinned_to not in self._ledger.workers:
            return Outcome.UNKNOWN_RESPONSE
        too_many = len(self._queue) >= config.queued_requests_max
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
        elsewhere = not pinned and any(other.worker_id != worker.worker_id for other in self._usable)
        attempt = running.permit.attempt
        in_time = now < running.request.deadline_at
        if elsewhere and in_time and self._budget.spend(event.cause, attempt, self._config.retry):
            entry = Waiting(running.request, running.prompt_tokens, attempt + 1, worker.worker_id)
            self._queue.add(entry)
            self._out.append(Enqueue(event.request_id, len(self._queue)))
        else:
            self._refuse(event.request_id, outcome_of(event.cause), event.retry_after_s or self._wait_s(1))
        self._pump(worker, now)

    # ---------------------------------------------------------------- workers

    def _joined(self, event: WorkerJoined) -> None:
        worker = self._ledger.workers.get(event.worker_id)
        if worker is None:
            worker = self._ledger.workers[event.worker_id] = WorkerState(event.worker_id)
        worker.listed = True
        if worker not in self._workers:
            self._workers.append(worker)

    def _left(self, event: WorkerLeft) -> None:
        worker = self._worker(event.worker_id)
        worker.listed = False
        worker.healthy = False
        self._workers = [other for other in self._workers if other is not worker]
        if not worker.held:
            del self._ledger.workers[worker.worker_id]

    def _health_changed(self, event: WorkerHealthChanged) -> None:
        worker = self._worker(event.worker_id)
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
        """Expire what waited too long, then dispatch while somebody waits and some worker has room."""
        if not self._queue:
            return
        for entry in self._queue.take_expired(now):
            outcome = Outcome.EXPIRED if self._usable else Outcome.NO_WORKERS
            self._refuse(entry.request.request_id, outcome, self._wait_s(1))
        if self._queue.has_special():
            for entry in self._queue.special():
                self._try(entry, self._pick(hint, entry, now), now)
        while (first := self._queue.first()) is not None and self._try(first, self._pick(hint, first, now), now):
            pass

    def _pick(self, hint: WorkerState | None, entry: Waiting, now: float) -> WorkerState | None:
        """A worker with room for ``entry``; ``hint`` is the only one that can have got room since the last event."""
        limit = self._config.requests_per_worker
        if entry.choosy:
            pinned = entry.request.pinned_to
            if pinned is None:
                return choose_worker(self._workers, limit, entry.failed_on, now, self._chance)
            hint = self._ledger.workers.get(pinned)
            return hint if hint is not None and has_room(hint, limit, now) else None
        if hint is not None:
            return hint if has_room(hint, limit, now) else None
        return choose_worker(self._workers, limit, None, now, self._chance)

    def _try(self, entry: Waiting, worker: WorkerState | None, now: float) -> bool:
        if worker is None:
            return False
        self._queue.remove(entry.request.request_id)
        self._dispatch(entry, worker, now)
        return True

    def _dispatch(self, entry: Waiting, worker: WorkerState, now: float) -> None:
        self._ledger.grant(entry.request, entry.prompt_tokens, worker, entry.attempt, now)
        observe_dispatch(worker.breaker)
        self._out.append(Dispatch(entry.request.request_id, worker.worker_id, entry.attempt))

    def _refuse(self, request_id: RequestId, outcome: Outcome, wait_s: float | None) -> None:
        retry_after_s = None
        if outcome.retryable:
            retry_after_s = compute_retry_after_s(wait_s, self._config.retry_after_max_s, self._chance.random())
        self._out.append(Refuse(request_id, outcome, retry_after_s))

    def _wait_s(self, more: int) -> float | None:
        permits = len(self._usable) * self._config.requests_per_worker
        return self._service.estimate_wait_s(len(self._queue) + more, permits)

    def _note_rest(self, worker: WorkerState, now: float) -> None:
        moment = next_change_at(worker.breaker, now)
        if moment is not None:
            heapq.heappush(self._wakes, moment)

    def _worker(self, worker_id: WorkerId) -> WorkerState:
        worker = self._ledger.workers.get(worker_id)
        if worker is None:
            raise InvariantError(f"worker {worker_id} is not known")
        return worker
