"""Takes events with their moment and returns commands: the one place where requests, queue and workers meet."""

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
    PoolEvent,
    ReplicasSeen,
    ReportDue,
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
from service.flow.admission import (
    assess,
    build_grounds,
    displace_for,
    find_bar,
    find_refusal,
    foresee_wait_s,
    name_lateness,
    note_congestion,
)
from service.flow.advice import compute_retry_after_s
from service.flow.balance import Chance
from service.flow.band import is_guaranteed
from service.flow.breaker import BreakerState, next_change_at, observe_failure, observe_nothing, observe_success
from service.flow.config import FlowConfig, Reconfigured
from service.flow.dispatch import find_place, send
from service.flow.failure import outcome_of
from service.flow.learning import learn_answer, learn_cut, learn_first_token
from service.flow.replicas import follow, guess_others
from service.flow.retry import RetryBudget
from service.flow.shedding import WasteBudget, revoke_for
from service.flow.state import FlowState
from service.flow.turns import pump, stand_aside
from service.flow.views import FlowViews
from service.flow.waiting import Waiting
from service.flow.worker import WorkerState


class FlowController(FlowViews):
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
                self._state.alarms.ring(now)
                self._pump(None, now)
            case DrainBegan():
                self._state.draining = True
            case Reconfigured():
                self._state.config = event.config
                self._state.ledger.sort_out(event.config.requests_per_worker)
                self._pump(None, now)
            case _:
                self._handle_worker(event, now)
        out, self._out = self._out, []
        return out

    def _handle_worker(self, event: PoolEvent, now: float) -> None:
        ledger = self._state.ledger
        match event:
            case WorkerLoadSeen():
                worker = ledger.worker(event.worker_id)
                if worker.has_restarted(event.load):
                    ledger.forget_cache(worker)
                guess_others(self._state, worker, event.load, now)
                worker.observe_load(event.load, self._state.loosest_tpot_s, now)
                ledger.sort_out(self._state.config.requests_per_worker)
                self._pump(worker, now)
                return
            case WorkerJoined():
                ledger.join(event.worker_id, self._state.config.requests_per_new_worker)
            case WorkerLeft():
                ledger.leave(event.worker_id)
            case WorkerHealthChanged():
                self._health_changed(event)
            case WorkerDrainChanged():
                ledger.worker(event.worker_id).draining = event.draining
            case ReportDue() | ReplicasSeen():
                follow(self._state, event, now)
            case _:
                assert_never(event)
        ledger.sort_out(self._state.config.requests_per_worker)
        self._pump(None, now)

    def next_wake_at(self) -> float | None:
        """When a :class:`Woken` event is due: somebody in the queue gives up, a worker has rested, or one that was
        given many prompts may be given more."""
        room = self._state.room
        if not room.size:
            return None
        deadline_at = room.next_deadline_at()
        return None if deadline_at is None else min(deadline_at, self._state.alarms.next_at())

    # ---------------------------------------------------------------- requests

    def _arrived(self, event: RequestArrived, now: float) -> None:
        state, request = self._state, event.request
        if request.request_id in state.ledger.running or (state.room.size and request.request_id in state.room):
            raise InvariantError(f"request {request.request_id} arrived twice")
        state.budget.earn(state.config.retry)
        if state.draining:
            self._refuse(request.request_id, Outcome.DRAINING, 1.0)
            return
        entry = assess(state, request, now)
        state.offered.observe(entry.band, entry.hold_s, entry.work_s, now)
        outcome = find_bar(state, entry, now)
        looked = outcome is None and (entry.choosy or state.room.is_dearest(entry.band))
        if looked:
            place = find_place(state, entry, None, now)
            if place is not None:
                self._out.append(send(state, entry, *place, now))
                return
        wait_s = foresee_wait_s(state, entry, now)
        if outcome is None:
            self._let_wait(entry, wait_s, now)
            if looked:
                stand_aside(state, entry, now)
        else:
            self._turn_away(entry, outcome, wait_s, now)

    def _abandoned(self, event: RequestAbandoned) -> None:
        if self._state.room.remove(event.request_id) is None:
            raise InvariantError(f"request {event.request_id} left the queue it does not stand in")

    def _let_wait(self, entry: Waiting, wait_s: float | None, now: float) -> None:
        """Let it wait if there is hope; if there is none for a promise, work beyond contracts makes room for it."""
        state = self._state
        outcome, taken_back = find_refusal(state, entry, wait_s, now), []
        if is_guaranteed(entry.band) and outcome is not Outcome.QUEUE_FULL:
            taken_back = revoke_for(state, entry, None if outcome is not None else wait_s, self._waste, now)
        if outcome is not None and not taken_back:
            self._turn_away(entry, outcome, wait_s, now)
            return
        for displaced in displace_for(state, entry):
            self._turn_away(displaced, Outcome.SHED, foresee_wait_s(state, displaced, now), now)
        state.room.add(entry)
        self._out.append(Enqueue(entry.request.request_id, state.room.size, build_grounds(state, entry, wait_s, now)))
        self._out += taken_back

    def _first_token(self, event: FirstTokenSeen, now: float) -> None:
        state = self._state
        running = state.ledger.running.get(event.request_id)
        if running is None:
            raise InvariantError(f"first token of request {event.request_id}, which holds no permit")
        worker = state.ledger.start_decoding(running, now)
        learn_first_token(state, running, worker, now)
        observe_success(worker.breaker)
        self._pump(worker, now)

    def _permit_ended(self, event: PermitEnded, now: float) -> None:
        state = self._state
        running, worker = state.ledger.release(event.request_id, now)
        match event.ending:
            case PermitEnding.SERVED:
                learn_answer(state, self._waste, event, running, worker, now)
                observe_success(worker.breaker)
            case PermitEnding.IGNORED:
                learn_cut(state, event, running)
                observe_nothing(worker.breaker)
            case PermitEnding.DROPPED:
                learn_cut(state, event, running)
                if not running.revoked:
                    observe_failure(worker.breaker, FailureCause.BROKEN, None, now, state.config.breaker)
                    self._note_rest(worker, now)
                else:
                    observe_nothing(worker.breaker)
            case _:
                assert_never(event.ending)
        self._pump(worker, now)

    def _attempt_failed(self, event: AttemptFailed, now: float) -> None:
        state = self._state
        running, worker = state.ledger.release(event.request_id, now)
        observe_failure(worker.breaker, event.cause, event.retry_after_s, now, state.config.breaker)
        self._note_rest(worker, now)
        entry = running.entry
        failed_on, revoked = entry.failed_on | {worker.worker_id}, entry.revoked + running.revoked
        if running.revoked and event.cause is FailureCause.REVOKED and worker.healthy:
            # taken back for somebody dearer: it waits again, for any worker
            self._wait_again(entry, entry.attempt, entry.failed_on, revoked, now)
            self._pump(None, now)
            return
        elif self._may_retry(entry, failed_on, event.cause, now):
            self._wait_again(entry, entry.attempt + 1, failed_on, revoked, now)
        else:
            told_s = event.retry_after_s
            wait_s = foresee_wait_s(state, entry, now) if told_s is None else told_s
            self._refuse(event.request_id, outcome_of(event.cause), wait_s, told=told_s is not None)
        self._pump(worker, now)

    def _may_retry(self, entry: Waiting, failed_on: frozenset[str], cause: FailureCause, now: float) -> bool:
        state, request = self._state, entry.request
        elsewhere = request.pinned_to is None and any(other.worker_id not in failed_on for other in state.ledger.usable)
        in_time = now < request.deadline_at
        return elsewhere and in_time and state.budget.spend(cause, entry.attempt, state.config.retry)

    def _wait_again(
        self, entry: Waiting, attempt: int, failed_on: frozenset[WorkerId], revoked: int, now: float
    ) -> None:
        """Queue what came back from a worker."""
        state = self._state
        state.sequence += 1
        entry = entry.renew(state.sequence, attempt, failed_on, revoked)
        in_time = entry.choosy and now < entry.give_up_at
        place = find_place(state, entry, None, now) if in_time else None
        state.room.add(entry)
        self._out.append(Enqueue(entry.request.request_id, state.room.size))
        if place is not None:
            self._out.append(send(state, entry, *place, now))

    # ---------------------------------------------------------------- workers and the queue

    def _health_changed(self, event: WorkerHealthChanged) -> None:
        worker = self._state.ledger.worker(event.worker_id)
        worker.healthy = event.healthy and worker.listed
        if event.healthy:
            worker.breaker, worker.known = BreakerState(), True
            return
        taken_back = self._state.ledger.take_all_back(worker)
        self._out += [Revoke(request_id, Outcome.STREAM_BROKEN) for request_id in taken_back]

    def _pump(self, hint: WorkerState | None, now: float) -> None:
        room = self._state.room
        if not room.size:
            return
        for entry in room.take_expired(now):
            outcome = Outcome.EXPIRED if is_guaranteed(entry.band) else Outcome.SHED
            wait_s = foresee_wait_s(self._state, entry, now)
            self._turn_away(entry, outcome if self._state.ledger.usable else Outcome.NO_WORKERS, wait_s, now)
        if room.size:
            self._out += pump(self._state, hint, now)

    def _turn_away(self, entry: Waiting, outcome: Outcome, wait_s: float | None, now: float) -> None:
        outcome = name_lateness(entry, outcome)
        note_congestion(self._state, entry, outcome, now)
        self._refuse(entry.request.request_id, outcome, wait_s, build_grounds(self._state, entry, wait_s, now))

    def _refuse(
        self, request_id: RequestId, outcome: Outcome, wait_s: float | None, grounds: Grounds | None = None,
        told: bool = False,
    ) -> None:  # fmt: skip
        state, retry_after_s = self._state, None
        if outcome.retryable:
            retry_after_s = compute_retry_after_s(wait_s, state.config.retry_after_max_s, state.chance.random(), told)
        self._out.append(Refuse(request_id, outcome, retry_after_s, grounds))

    def _note_rest(self, worker: WorkerState, now: float) -> None:
        if not self._state.room.size:
            self._state.alarms.ring(now)  # nobody waits for what has passed, so no Woken will come to take it out
        if (moment := next_change_at(worker.breaker, now)) is not None:
            self._state.alarms.note_rest(moment)
