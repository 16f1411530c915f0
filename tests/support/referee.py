"""Watches a flow controller from outside and objects when it breaks a promise.

The referee keeps books of its own from events and commands and compares them with the controller's after every event.
It takes the controller's word for what is learned: estimates, bands and limits (as the grounds of its commands tell
them) and whether a worker rests (and even that within bounds).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from service.domain.command import Command, Dispatch, Enqueue, Grounds, Refuse, Revoke
from service.domain.event import (
    AttemptFailed,
    DrainBegan,
    Event,
    FailureCause,
    FirstTokenSeen,
    PermitEnded,
    RequestAbandoned,
    RequestArrived,
    WorkerDrainChanged,
    WorkerHealthChanged,
    WorkerJoined,
    WorkerLeft,
    WorkerLoadSeen,
)
from service.domain.outcome import Outcome
from service.domain.request import Request
from service.domain.units import RequestId, WorkerId
from service.flow.band import is_guaranteed
from service.flow.config import FlowConfig, Reconfigured
from service.flow.controller import FlowController
from service.flow.harm import NEEDED_MAX_S, keeps_pace
from service.flow.shedding import _LOOKED_AT
from service.flow.waiting import Waiting
from service.flow.worker import STALE_AFTER_S, WorkerState, find_unread_tokens


@dataclass
class Case:
    """One request that has not ended. ``worker_id`` is where it runs, ``None`` while it waits."""

    request: Request
    worker_id: WorkerId | None = None
    attempts: int = 0
    failed_on: set[WorkerId] = field(default_factory=set)
    first_token_seen: bool = False
    first_token_at: float = 0.0
    revoked: bool = False
    taken_back: int = 0
    returned: bool = False
    spared: bool = False
    band: int = 0
    tokens: int = 0
    unread: int = 0
    give_up_at: float = 0.0
    due_at: float | None = None

    @property
    def choosy(self) -> bool:
        """Whether not every worker will do."""
        return bool(self.failed_on) or self.request.pinned_to is not None

    @property
    def guaranteed(self) -> bool:
        """Whether it is what somebody was promised."""
        return is_guaranteed(self.band)

    def presses(self, now: float) -> bool:
        """Whether half of the time to its promise has gone; where nothing is promised, always."""
        return self.due_at is None or now > (self.request.arrived_at + self.due_at) / 2.0

    def learn(self, grounds: Grounds) -> None:
        """What the controller made of it."""
        self.band, self.tokens = grounds.band, grounds.prompt_tokens
        self.unread = grounds.prompt_tokens - (grounds.cached_tokens or 0)
        self.give_up_at, self.due_at = grounds.give_up_at, grounds.due_at


@dataclass
class Station:
    """One worker as the referee sees it."""

    healthy: bool = False
    draining: bool = False
    listed: bool = True
    held: set[RequestId] = field(default_factory=set)
    rest_until: float = 0.0
    limit: int = 0

    @property
    def usable(self) -> bool:
        """Whether it may be given work at all."""
        return self.healthy and self.listed and not self.draining


class Referee:
    """Books of one controller. ``live`` are requests without an ending, ``ended`` counts the others."""

    def __init__(self, config: FlowConfig) -> None:
        self.config = config
        self.live: dict[RequestId, Case] = {}
        self.ended: dict[RequestId, str] = {}
        self.offered = 0
        self.stations: dict[WorkerId, Station] = {}
        self.budget = config.retry.budget_burst
        self.draining = False
        self.floor_earned_s = self.floor_spent_s = 0.0
        self.made_tokens = 0
        self.reconfigured = False

    @property
    def waiting(self) -> list[Case]:
        """Requests without a worker."""
        return [case for case in self.live.values() if case.worker_id is None]

    @property
    def running(self) -> list[Case]:
        """Requests on a worker."""
        return [case for case in self.live.values() if case.worker_id is not None]

    # ---------------------------------------------------------------- what happened

    def see(
        self, controller: FlowController, event: Event | Reconfigured, now: float, commands: Sequence[Command]
    ) -> None:
        """Enter an event with what followed."""
        self._enter(event, now)
        self._check_limits(controller, event, now)
        for command in commands:
            self._follow(controller, event, now, command)
        if isinstance(event, RequestArrived | AttemptFailed):
            name = event.request.request_id if isinstance(event, RequestArrived) else event.request_id
            assert any(command.request_id == name for command in commands), f"no answer to {name}"
        if isinstance(event, WorkerHealthChanged) and not event.healthy:
            kept = [name for name in self.stations[event.worker_id].held if not self.live[name].revoked]
            assert not kept, f"not taken back from the sick worker: {kept}"

    def _enter(self, event: Event | Reconfigured, now: float) -> None:
        match event:
            case RequestArrived():
                self.offered += 1
                self.live[event.request.request_id] = Case(event.request)
                if self.budget < self.config.retry.budget_burst:
                    self.budget = min(self.budget + self.config.retry.budget_ratio, self.config.retry.budget_burst)
            case RequestAbandoned():
                self._end(event.request_id, "abandoned")
            case FirstTokenSeen():
                case = self.live[event.request_id]
                case.first_token_at = case.first_token_at if case.first_token_seen else now
                case.first_token_seen = True
            case PermitEnded():
                self.made_tokens += event.output_tokens or 0
                self._note_trouble(self._leave_worker(event.request_id), now)
                self._end(event.request_id, "permit ended")
            case AttemptFailed():
                case = self.live[event.request_id]
                healthy = case.worker_id is not None and self.stations[case.worker_id].healthy
                worker_id = self._leave_worker(event.request_id)
                case.returned = case.revoked and event.cause is FailureCause.REVOKED and healthy
                case.spared = case.spared or case.revoked
                if not case.returned:
                    case.failed_on.add(worker_id)
                self._note_trouble(worker_id, now)
            case DrainBegan():
                self.draining = True
            case Reconfigured():
                self.config = event.config
                self.reconfigured = True
            case _:
                self._enter_worker(event)

    def _enter_worker(self, event: Event | Reconfigured) -> None:
        match event:
            case WorkerJoined():
                self.stations.setdefault(event.worker_id, Station()).listed = True
            case WorkerLeft():
                station = self.stations[event.worker_id]
                station.listed = station.healthy = False
                self._forget(event.worker_id)
            case WorkerHealthChanged():
                station = self.stations[event.worker_id]
                station.healthy = event.healthy and station.listed
            case WorkerDrainChanged():
                self.stations[event.worker_id].draining = event.draining
            case _:
                pass  # loads, tokens and wakes change nothing in the books

    def _check_limits(self, controller: FlowController, event: Event | Reconfigured, now: float) -> None:
        """What a worker is granted changes only by what it said or did, and never grows by stale or missing figures."""
        for worker_id, station in self.stations.items():
            limit = controller._state.ledger.workers[worker_id].limit.limit
            if isinstance(event, WorkerLoadSeen) and event.worker_id == worker_id:
                load = event.load
                told = load.running_requests is not None and load.waiting_requests is not None
                assert told or limit <= station.limit, f"{worker_id} is granted more without being told"
                assert load.age_s(now) <= STALE_AFTER_S or limit <= station.limit, "granted more by a stale reading"
            elif isinstance(event, FirstTokenSeen):
                assert limit <= station.limit + 1, f"{worker_id} is granted more than one for a first token"
            elif station.limit and not isinstance(event, PermitEnded):
                assert limit == station.limit, f"the limit of {worker_id} changes out of turn"
            station.limit = limit

    def _follow(self, controller: FlowController, event: Event | Reconfigured, now: float, command: Command) -> None:
        name = command.request_id
        assert name in self.live, f"a command for {name}, which is not alive: ended twice or never came"
        case = self.live[name]
        match command:
            case Enqueue():
                self._check_enqueue(event, case, command)
            case Dispatch():
                self._check_dispatch(controller, event, case, now, command)
                self._check_order(controller, case, now)
                station = self.stations[command.worker_id]
                station.held.add(name)
                case.worker_id, case.attempts = command.worker_id, command.attempt
                case.first_token_seen = case.revoked = case.returned = False
            case Refuse():
                self._check_refuse(event, case, now, command)
                self._end(name, command.outcome.label)
            case Revoke():
                assert case.worker_id is not None, f"{name} is taken back and runs nowhere"
                assert not case.revoked, f"{name} is taken back twice"
                if command.outcome is Outcome.REVOKED:
                    self._check_taken_back(controller, event, case, now)
                else:
                    assert not self.stations[case.worker_id].healthy, f"{name} is taken back from a healthy worker"
                case.revoked = True

    def _check_taken_back(
        self, controller: FlowController, event: Event | Reconfigured, case: Case, now: float
    ) -> None:
        name = case.request.request_id
        assert isinstance(event, RequestArrived), "taken back for nobody"
        winner = self.live[event.request.request_id]
        assert winner.worker_id is None
        assert not case.guaranteed, f"{name} is taken back, and was promised"
        case.taken_back += 1
        assert case.taken_back == 1, f"{name} is taken back a second time"
        assert case.worker_id is not None
        assert self.stations[case.worker_id].usable, f"{name} is taken back from a worker that helps nobody"
        if case.first_token_seen:
            pace_s = max(controller.stats(now).mean_tpot_s or 0.02, 1e-4)
            wasted = (now - case.first_token_at) / pace_s
            allowed = self.config.shedding.revoked_ratio * (self.made_tokens + 500.0)
            assert wasted <= allowed + 1e-6, "more is wasted than may be"

    def _check_order(self, controller: FlowController, case: Case, now: float) -> None:
        """Dearer bands first, unless their promises have time and this one has not, or they wait for a worker of their
        own; what is beyond contracts before guaranteed work only as far as it has earned it."""
        room, running = controller._state.room, controller._state.ledger.running
        waiting = [other for other in self.waiting if other is not case and not other.choosy]

        def stands_aside(name: RequestId) -> bool:
            sent = running.get(name)  # by a later command of the same event
            entry = room._entries.get(name) if sent is None else sent.entry
            return entry is not None and entry.home is not None

        ready = [other for other in waiting if not stands_aside(other.request.request_id)]
        work_s = controller._state.ledger.running[case.request.request_id].entry.work_s
        if case.guaranteed:
            if not case.choosy:
                dearer = [other for other in ready if other.band < case.band]
                patient = case.presses(now) and not any(other.presses(now) for other in self._list_heads(dearer))
                assert not dearer or patient, "a cheaper promise goes first"
            if any(not other.guaranteed for other in waiting):
                self.floor_earned_s += self.config.shedding.floor_ratio * work_s
        elif not case.choosy and any(other.guaranteed for other in ready):
            assert self.config.shedding.brownout_forced < 2, "the floor is kept in spite of the operator"
            self.floor_spent_s += work_s
            assert self.floor_spent_s <= self.floor_earned_s + 1e-9, "beyond contract goes before promised work"

    def _list_heads(self, cases: list[Case]) -> list[Case]:
        """Who is due first of the dearest band among ``cases``."""
        band = min((case.band for case in cases), default=0)
        heads = [case for case in cases if case.band == band]
        return [min(heads, key=lambda case: case.due_at or case.request.deadline_at)] if heads else []

    def _check_enqueue(self, event: Event | Reconfigured, case: Case, command: Enqueue) -> None:
        if command.grounds is not None:
            case.learn(command.grounds)
            assert case.give_up_at <= case.request.deadline_at
        else:
            case.give_up_at = case.request.deadline_at
        assert case.worker_id is None, "it waits and runs"
        assert not (self.draining and isinstance(event, RequestArrived)), "admitted while draining"
        assert command.queued_requests == len(self.waiting), "wrong length of the queue"
        if isinstance(event, AttemptFailed):
            assert event.cause not in (FailureCause.TIMEOUT, FailureCause.FAULTY), f"{event.cause} is tried again"
            assert case.returned or case.attempts < self.config.retry.attempts_max, "too many attempts"
            if event.cause is not FailureCause.REVOKED:
                self.budget -= 1.0
            assert self.budget > -1e-9, "retry budget overdrawn"
        else:
            assert isinstance(event, RequestArrived), "queued out of turn"
            assert len(self.waiting) <= self.config.queued_requests_max, "queue too long"

    def _check_dispatch(
        self, controller: FlowController, event: Event | Reconfigured, case: Case, now: float, command: Dispatch
    ) -> None:
        name, grounds = command.request_id, command.grounds
        assert case.worker_id is None, f"{name} gets a second permit"
        assert grounds is not None
        case.learn(grounds)
        assert now <= case.give_up_at, f"{name} is sent after it gave up"
        if not case.guaranteed:
            load = controller._state.ledger.workers[command.worker_id].load
            assert load is None or load.age_s(now) <= STALE_AFTER_S, "beyond contract on the word of yesterday"
        assert command.worker_id in self.stations, f"{name} is sent to a worker that is not there"
        station = self.stations[command.worker_id]
        assert station.usable, f"{name} is sent to a worker that is sick, draining or left"
        bound = min(self.config.requests_per_worker, station.limit)
        assert (grounds.held, grounds.limit) == (len(station.held), bound), "grounds and books differ"
        assert len(station.held) < bound, f"{command.worker_id} is above its limit"
        expected = case.attempts + (not case.returned)
        assert command.attempt == expected, f"{name}: attempts are counted wrongly"
        assert command.worker_id not in case.failed_on, f"{name} returns to the worker on which it failed"
        assert case.request.pinned_to in (None, command.worker_id), f"{name} is sent away from its worker"
        assert now >= case.request.arrived_at, f"{name} is sent before it arrived"
        assert not (self.draining and isinstance(event, RequestArrived)), "admitted while draining"

    def _check_refuse(self, event: Event | Reconfigured, case: Case, now: float, command: Refuse) -> None:
        assert case.worker_id is None, "refused while it runs"
        own = isinstance(event, RequestArrived) and event.request.request_id == command.request_id
        failed = isinstance(event, AttemptFailed) and event.request_id == command.request_id
        displaced = isinstance(event, RequestArrived) and not own and command.outcome is Outcome.SHED
        if displaced:
            assert not case.guaranteed, "a promise makes room for another"
        elif not own and not failed:
            assert now >= case.give_up_at, "evicted before its deadline"
        if command.outcome is Outcome.EXPIRED:
            assert now >= case.give_up_at, "called expired before its deadline"
        if own and command.grounds is not None:
            case.learn(command.grounds)
            self._check_sacrifice(case, now, command)
        if own and self.draining:
            assert command.outcome is Outcome.DRAINING
        if command.outcome.retryable:
            assert command.retry_after_s is not None, "no advice"
            assert 0.1 <= command.retry_after_s <= self.config.retry_after_max_s, "advice out of bounds"
        else:
            assert command.retry_after_s is None, "advice where none can help"

    def _check_sacrifice(self, case: Case, now: float, command: Refuse) -> None:
        """A guaranteed request is refused for want of capacity only when nothing beyond contracts could make room."""
        if not case.guaranteed:
            return
        others = [other for other in self.waiting if other is not case and not other.guaranteed and not other.choosy]
        if command.outcome is Outcome.QUEUE_FULL:
            waiting = [other for other in self.waiting if other is not case]
            requests = len(waiting) + 1 - self.config.queued_requests_max
            tokens = sum(other.tokens for other in waiting) + case.tokens - self.config.queued_tokens_max
            room = requests <= len(others) and tokens <= sum(other.tokens for other in others)
            assert not room, "a promise is refused while others wait"
        hopeless = now > case.give_up_at or case.due_at is None or case.request.pinned_to is not None
        hopeless = hopeless or self.reconfigured or len(self.running) > _LOOKED_AT
        if command.outcome is Outcome.DEADLINE_UNATTAINABLE and not hopeless:
            for other in self.running:
                assert other.worker_id is not None
                fresh = not other.guaranteed and not other.spared and not other.revoked
                silent = fresh and not other.first_token_seen and self.stations[other.worker_id].usable
                assert not silent, "a promise is refused while others run who have said nothing"

    # ---------------------------------------------------------------- what must hold between events

    def check(self, controller: FlowController, now: float) -> None:
        """Compare the books with the controller's; to be called when no wake is due."""
        self._check_counts(controller, now)
        self._check_deadlines(controller, now)
        self._check_work_conservation(controller, now)

    def _check_counts(self, controller: FlowController, now: float) -> None:
        stats = controller.stats(now)
        assert self.offered == len(self.ended) + len(self.live), "a request was lost"
        waiting = self.waiting
        assert stats.queued_requests == len(waiting), "queue and books differ"
        tokens = sum(case.tokens for case in waiting)
        assert stats.queued_tokens == tokens, "queued tokens and books differ"
        assert stats.in_flight == len(self.running), "permits and books differ"
        seen = {worker.worker_id: worker for worker in stats.workers}
        assert seen.keys() == self.stations.keys(), "workers and books differ"
        for worker_id, station in self.stations.items():
            worker = seen[worker_id]
            assert worker.in_flight == len(station.held), f"permits on {worker_id} and books differ"
            if worker.resting and not station.held:
                assert now < station.rest_until, f"{worker_id} rests without end"

        self._check_workers(controller)
        self._check_bands(controller)

    def _check_workers(self, controller: FlowController) -> None:
        ledger = controller._state.ledger
        for worker_id, station in self.stations.items():
            worker, held = ledger.workers[worker_id], [self.live[name] for name in station.held]
            entries = [ledger.running[name].entry for name in station.held]
            silent = sum(case.unread for case in held if not case.first_token_seen)
            assert worker.backlog_tokens == silent, "prompt tokens on a worker and books differ"
            decoding = sum(case.first_token_seen for case in held)
            assert worker.decoding == decoding, "decoding and books differ"
            promised = Counter(entry.tpot_s for entry in entries if entry.tpot_s is not None)
            assert worker.promises == promised, "promises and books differ"
        fresh = {
            case.request.request_id
            for case in self.running
            if not case.guaranteed and not case.revoked and not case.spared
        }
        assert set(ledger.sheddable) == fresh, "what may be taken back and books differ"
        usable = [worker.limit.limit for worker in ledger.workers.values() if self.stations[worker.worker_id].usable]
        assert ledger.permits == sum(min(limit, self.config.requests_per_worker) for limit in usable), "permits differ"

    def _check_bands(self, controller: FlowController) -> None:
        room = controller._state.room
        ordinary = [case for case in self.waiting if not case.choosy]
        assert room.choosy == len(self.waiting) - len(ordinary), "choosy and books differ"
        for band, queue in room._bands.items():
            here = [case for case in ordinary if case.band == band]
            assert queue.size == len(here), "a band and books differ"
            at_home = sum(queue.homes.count(home) for home in queue.homes)
            assert queue.ready + at_home == queue.size, "who stands aside and books differ"
            assert queue.tokens == sum(case.tokens for case in here), "a band's tokens and books differ"
            assert queue.active == len({case.request.tenant_id for case in here}), "active tenants and books differ"
            hold_s = sum(room._entries[case.request.request_id].hold_s for case in here)
            assert abs(queue.hold_s - hold_s) < 1e-6, "a band's work and books differ"
            assert abs(queue._due.sum_until(1e9) - hold_s) < 1e-6, "work by deadline and books differ"
            assert len(queue._by_deadline) <= 2 * queue.size + 66, "what left piles up"

    def _check_deadlines(self, controller: FlowController, now: float) -> None:
        wake_at = controller.next_wake_at()
        deadlines = [case.give_up_at for case in self.waiting]
        if not deadlines:
            return
        assert min(deadlines) > now, "a request waits past its deadline"
        assert wake_at is not None, "somebody waits and no wake is asked for"
        assert wake_at <= min(deadlines), "the wake comes after a deadline"

    def _check_work_conservation(self, controller: FlowController, now: float) -> None:
        resting = {worker.worker_id for worker in controller.stats(now).workers if worker.resting}
        wake_at = controller.next_wake_at()
        room = controller._state.room
        heads = {next(iter(line)) for line in room.lines()}
        heads |= {queue.next(now).request.request_id for _, queue in islice(room.bands(), 1)}
        for _, queue in islice(room.all_bands(), 1):
            heads |= {first.request.request_id for home in queue.homes if (first := queue.homes.first(home))}
        for worker_id, station in self.stations.items():
            worker = controller._state.ledger.workers[worker_id]
            free = len(station.held) < min(self.config.requests_per_worker, station.limit)
            if not (station.usable and free and worker_id not in resting):
                continue
            for case in self.waiting:
                mine = worker_id not in case.failed_on and case.request.pinned_to in (None, worker_id)
                entry = room._entries[case.request.request_id]
                if not mine or case.request.request_id not in heads or not self._may_go(worker, case, entry, now):
                    continue
                held_back = worker.promises and worker.prefill.known
                assert held_back, f"{worker_id} has room and {case.request.request_id} waits"
                enough_at = self._find_enough_at(worker, entry, now)
                assert enough_at > now - 1e-9, f"{worker_id} has room and {case.request.request_id} waits"
                assert wake_at is not None, "time will make a place and no wake is asked for"
                assert wake_at < enough_at + 0.002, "time makes a place and the wake comes later"

    def _may_go(self, worker: WorkerState, case: Case, entry: Waiting, now: float) -> bool:
        """Whether nothing but the slack of others can keep ``case`` from ``worker``: pace, no prompts ahead, fresh
        figures."""
        if not case.guaranteed and worker.is_stale(now):
            return False
        if not worker.held:
            return True
        if case.request.prefix and entry.home != worker.worker_id:  # it may be better off waiting for who has read it
            return False
        return not worker.backlog_tokens and case.due_at is None and keeps_pace(entry, worker)

    def _find_enough_at(self, worker: WorkerState, entry: Waiting, now: float) -> float:
        """When those who decode there have slack enough for the prompt of ``entry``."""
        slack = worker.slack
        needed_s = min(find_unread_tokens(entry, worker) * worker.reading.per_kilotoken_s * 1e-3, NEEDED_MAX_S)
        return max(slack.busy_until, slack._at) + (needed_s - slack.seconds) / slack.rate

    # ---------------------------------------------------------------- books

    def _leave_worker(self, name: RequestId) -> WorkerId:
        case = self.live[name]
        worker_id = case.worker_id
        assert worker_id is not None
        case.worker_id = None
        self.stations[worker_id].held.discard(name)
        self._forget(worker_id)
        return worker_id

    def _forget(self, worker_id: WorkerId) -> None:
        station = self.stations[worker_id]
        if not station.listed and not station.held:
            del self.stations[worker_id]

    def _note_trouble(self, worker_id: WorkerId, now: float) -> None:
        breaker = self.config.breaker
        longest_s = max(breaker.open_max_s, breaker.busy_rest_s, breaker.busy_rest_max_s)
        if worker_id in self.stations:
            self.stations[worker_id].rest_until = max(self.stations[worker_id].rest_until, now + longest_s)

    def _end(self, name: RequestId, how: str) -> None:
        assert name not in self.ended, f"{name} ends twice"
        del self.live[name]
        self.ended[name] = how
