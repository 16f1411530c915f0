"""Takes events with their moment and returns commands: the one place where requests, queue and workers meet."""

import heapq
from typing import assert_never

from service.domain.command import Command, Enqueue, Grounds, Refuse, Revoke
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
from service.flow.admission import assess, build_grounds, find_refusal, foresee_wait_s
from service.flow.advice import compute_retry_after_s
from service.flow.balance import Chance
from service.flow.band import is_guaranteed
from service.flow.breaker import BreakerState, next_change_at, observe_failure, observe_nothing, observe_success
from service.flow.config import FlowConfig, Reconfigured
from service.flow.dispatch import find_place, pump, send
from service.flow.failure import outcome_of
from service.flow.ledger import Running
from service.flow.retry import RetryBudget
from service.flow.shedding import WasteBudget, revoke_for
from service.flow.state import FlowState
from service.flow.stats import FlowStats, build_worker_stats
from service.flow.waiting import Waiting
from service.flow.worker import WorkerState

_CONGESTED_S = 5.0
"""For so long after a refusal or an expiry for want of capacity, tenants are served by fair share."""

_TPOT_WEIGHT = 0.05


class FlowController:
    """The flow core. Not thread-safe: one writer, no re-entry. Rules live beside it, its memory in ``FlowState``."""

    def __init__(self, config: FlowConfig, chance: Chance) -> None:
        self._state = FlowState(config, chance, RetryBudget(config.retry.budget_burst))
        self._waste = WasteBudget()
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
                self._state.draining = True
            case Reconfigured():
                self._state.config = event.config
                self._pump(None, now)
            case _:
                self._handle_worker(event, now)
        out = self._out
        self._out = []
        return out

    def _handle_worker(
        self, event: WorkerJoined | WorkerLeft | WorkerHealthChanged | WorkerDrainChanged | WorkerLoadSeen, now: float
    ) -> None:
        ledger = self._state.ledger
        match event:
            case WorkerLoadSeen():
                worker = ledger.worker(event.worker_id)
                worker.observe_load(event.load, self._state.loosest_tpot_s, now)
                ledger.sort_out()
                self._pump(worker, now)
                return
            case WorkerJoined():
                ledger.join(event.worker_id)
            case WorkerLeft():
                ledger.leave(event.worker_id)
            case WorkerHealthChanged():
                self._health_changed(event)
            case WorkerDrainChanged():
                ledger.worker(event.worker_id).draining = event.draining
            case _:
                assert_never(event)
        ledger.sort_out()
        self._pump(None, now)

    def next_wake_at(self) -> float | None:
        """When a :class:`Woken` event is due: somebody in the queue gives up, or a worker has rested."""
        room, wakes = self._state.room, self._state.wakes
        if not room.size:
            return None
        moment = room.next_deadline_at()
        if wakes and (moment is None or wakes[0] < moment):
            return wakes[0]
        return moment

    def stats(self, now: float) -> FlowStats:
        """Snapshot of queue, permits and workers; O(workers)."""
        state = self._state
        workers = tuple(build_worker_stats(worker, now) for worker in state.ledger.workers.values())
        return FlowStats(
            state.room.size, state.room.tokens, len(state.ledger.running), state.draining, state.tpot_s, workers
        )

    # ---------------------------------------------------------------- requests

    def _arrived(self, event: RequestArrived, now: float) -> None:
        state, request = self._state, event.request
        if request.request_id in state.room or request.request_id in state.ledger.running:
            raise InvariantError(f"request {request.request_id} arrived twice")
        state.budget.earn(state.config.retry)
        if state.draining:
            self._refuse(request.request_id, Outcome.DRAINING, 1.0)
            return
        entry = assess(state, request, now)
        state.offered.observe(entry.band, entry.hold_s, now)
        if state.room.size == state.room.choosy or entry.choosy or self._is_dearest(entry):
            place = find_place(state, entry, None, now)
            if place is not None and find_refusal(state, entry, now) is None:
                self._out.append(send(state, entry, *place, now))
                return
        outcome = find_refusal(state, entry, now)
        if outcome is not None and is_guaranteed(entry.band) and outcome is Outcome.DEADLINE_UNATTAINABLE:
            taken_back = revoke_for(state, entry, None, self._waste, now)
            if taken_back:
                self._out += taken_back
                outcome = None
        if outcome is not None:
            self._turn_away(entry, outcome, now)
            return
        wait_s = foresee_wait_s(state, entry, now)
        state.room.add(entry)
        self._out.append(Enqueue(request.request_id, state.room.size, build_grounds(state, entry, wait_s)))
        if is_guaranteed(entry.band):
            self._out += revoke_for(state, entry, wait_s, self._waste, now)

    def _is_dearest(self, entry: Waiting) -> bool:
        """Whether nobody waits in a band as dear as this one: then what is free is its own to take."""
        return all(entry.band < band for band, _ in self._state.room.bands())

    def _abandoned(self, event: RequestAbandoned) -> None:
        if self._state.room.remove(event.request_id) is None:
            raise InvariantError(f"request {event.request_id} left the queue it does not stand in")

    def _first_token(self, event: FirstTokenSeen, now: float) -> None:
        state = self._state
        running = state.ledger.running.get(event.request_id)
        if running is None:
            raise InvariantError(f"first token of request {event.request_id}, which holds no permit")
        worker = state.ledger.start_decoding(running, now)
        seconds = now - running.permit.granted_at
        state.calibration(running.entry.request.tier).observe(running.ttft_s, seconds)
        worker.prefill.observe(running.ahead_tokens, seconds)
        state.prefill.observe(running.ahead_tokens, seconds)
        observe_success(worker.breaker)
        self._pump(worker, now)

    def _permit_ended(self, event: PermitEnded, now: float) -> None:
        state = self._state
        running, worker = state.ledger.release(event.request_id, now)
        match event.ending:
            case PermitEnding.SERVED:
                self._learn(event, running, worker, now)
                observe_success(worker.breaker)
            case PermitEnding.IGNORED:
                observe_nothing(worker.breaker)
            case PermitEnding.DROPPED:
                if not running.revoked:
                    observe_failure(worker.breaker, FailureCause.BROKEN, None, now, state.config.breaker)
                    self._note_rest(worker, now)
                else:
                    observe_nothing(worker.breaker)
            case _:
                assert_never(event.ending)
        self._pump(worker, now)

    def _learn(self, event: PermitEnded, running: Running, worker: WorkerState, now: float) -> None:
        state, tokens = self._state, event.output_tokens
        state.estimator.observe(running.entry.request, event.prompt_tokens, tokens)
        self._waste.observe(tokens or 0, 0.0, now)
        if running.first_token_at is not None and tokens is not None and tokens >= 8:
            tpot_s = (now - running.first_token_at) / (tokens - 1)
            state.tpot_s = tpot_s if state.tpot_s is None else state.tpot_s + _TPOT_WEIGHT * (tpot_s - state.tpot_s)
            if worker.load is None:  # no word from the worker itself: its answers must do
                worker.pace.observe(worker.decoding + 1.0, tpot_s)
                worker.limit.observe(
                    None, worker.decoding + 1.0, worker.decoding + 1, 0.0, running.entry.tpot_s, worker.pace
                )
                state.ledger.sort_out()

    def _attempt_failed(self, event: AttemptFailed, now: float) -> None:
        state = self._state
        running, worker = state.ledger.release(event.request_id, now)
        observe_failure(worker.breaker, event.cause, event.retry_after_s, now, state.config.breaker)
        self._note_rest(worker, now)
        entry = running.entry
        failed_on = entry.failed_on | {worker.worker_id}
        if running.revoked and event.cause is FailureCause.REVOKED and worker.healthy:
            entry.revoked += 1  # taken back for somebody dearer: it waits again, for any worker
            self._wait_again(entry, now)
        elif self._may_retry(entry, failed_on, event.cause, now):
            entry.failed_on = failed_on
            entry.attempt += 1
            self._wait_again(entry, now)
        else:
            self._refuse(event.request_id, outcome_of(event.cause), event.retry_after_s or self._wait_s(entry, now))
        self._pump(worker, now)

    def _may_retry(self, entry: Waiting, failed_on: frozenset[str], cause: FailureCause, now: float) -> bool:
        state, request = self._state, entry.request
        elsewhere = request.pinned_to is None and any(other.worker_id not in failed_on for other in state.ledger.usable)
        in_time = now < request.deadline_at
        return elsewhere and in_time and state.budget.spend(cause, entry.attempt, state.config.retry)

    def _wait_again(self, entry: Waiting, now: float) -> None:
        state = self._state
        entry.gone = False
        entry.give_up_at = entry.request.deadline_at
        place = find_place(state, entry, None, now)
        state.room.add(entry)
        self._out.append(Enqueue(entry.request.request_id, state.room.size))
        if place is not None and entry.choosy:
            self._out.append(send(state, entry, *place, now))

    # ---------------------------------------------------------------- workers and the queue

    def _health_changed(self, event: WorkerHealthChanged) -> None:
        worker = self._state.ledger.worker(event.worker_id)
        worker.healthy = event.healthy and worker.listed
        if event.healthy:
            worker.breaker = BreakerState()
            return
        for request_id in worker.held:
            running = self._state.ledger.running[request_id]
            if not running.revoked:
                running.revoked = True
                self._out.append(Revoke(request_id, Outcome.STREAM_BROKEN))

    def _woken(self, now: float) -> None:
        wakes = self._state.wakes
        while wakes and wakes[0] <= now:
            heapq.heappop(wakes)
        self._pump(None, now)

    def _pump(self, hint: WorkerState | None, now: float) -> None:
        room = self._state.room
        if not room.size:
            return
        for entry in room.take_expired(now):
            outcome = Outcome.EXPIRED if is_guaranteed(entry.band) else Outcome.SHED
            self._turn_away(entry, outcome if self._state.ledger.usable else Outcome.NO_WORKERS, now)
        if room.size:
            self._out += pump(self._state, hint, now)

    def _turn_away(self, entry: Waiting, outcome: Outcome, now: float) -> None:
        if outcome is not Outcome.NO_WORKERS:
            self._state.congested_until = now + _CONGESTED_S
        wait_s = self._wait_s(entry, now)
        self._refuse(entry.request.request_id, outcome, wait_s, build_grounds(self._state, entry, wait_s))

    def _refuse(
        self, request_id: RequestId, outcome: Outcome, wait_s: float | None, grounds: Grounds | None = None
    ) -> None:
        state, retry_after_s = self._state, None
        if outcome.retryable:
            retry_after_s = compute_retry_after_s(wait_s, state.config.retry_after_max_s, state.chance.random())
        self._out.append(Refuse(request_id, outcome, retry_after_s, grounds))

    def _wait_s(self, entry: Waiting, now: float) -> float | None:
        return foresee_wait_s(self._state, entry, now)

    def _note_rest(self, worker: WorkerState, now: float) -> None:
        state = self._state
        while state.wakes and state.wakes[0] <= now and not state.room.size:
            heapq.heappop(state.wakes)  # nobody waits for it, and no Woken will come to take it out
        moment = next_change_at(worker.breaker, now)
        if moment is not None and not (state.wakes and state.wakes[0] == moment):
            heapq.heappush(state.wakes, moment)
