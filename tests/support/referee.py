"""Watches a flow controller from outside and objects when it breaks a promise.

The referee keeps books of its own from events and commands alone and compares them with the controller's after every
event. The only thing it takes the controller's word for is whether a worker rests (and even that within bounds).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from service.domain.command import Command, Dispatch, Enqueue, Refuse, Revoke
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
)
from service.domain.outcome import Outcome
from service.domain.request import Request
from service.domain.units import RequestId, WorkerId
from service.flow.config import FlowConfig, Reconfigured
from service.flow.controller import FlowController
from service.flow.estimator import estimate_request


@dataclass
class Case:
    """One request that has not ended. ``worker_id`` is where it runs, ``None`` while it waits."""

    request: Request
    worker_id: WorkerId | None = None
    attempts: int = 0
    failed_on: set[WorkerId] = field(default_factory=set)
    first_token_seen: bool = False
    revoked: bool = False


@dataclass
class Station:
    """One worker as the referee sees it."""

    healthy: bool = False
    draining: bool = False
    listed: bool = True
    held: set[RequestId] = field(default_factory=set)
    rest_until: float = 0.0

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

    @property
    def waiting(self) -> list[Case]:
        """Requests without a worker."""
        return [case for case in self.live.values() if case.worker_id is None]

    @property
    def running(self) -> list[Case]:
        """Requests on a worker."""
        return [case for case in self.live.values() if case.worker_id is not None]

    # ---------------------------------------------------------------- what happened

    def see(self, event: Event | Reconfigured, now: float, commands: Sequence[Command]) -> None:
        """Enter an event with what followed."""
        self._enter(event, now)
        for command in commands:
            self._follow(event, now, command)
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
                self.live[event.request_id].first_token_seen = True
            case PermitEnded():
                self._note_trouble(self._leave_worker(event.request_id), now)
                self._end(event.request_id, "permit ended")
            case AttemptFailed():
                worker_id = self._leave_worker(event.request_id)
                self.live[event.request_id].failed_on.add(worker_id)
                self._note_trouble(worker_id, now)
            case DrainBegan():
                self.draining = True
            case Reconfigured():
                self.config = event.config
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

    def _follow(self, event: Event | Reconfigured, now: float, command: Command) -> None:
        name = command.request_id
        assert name in self.live, f"a command for {name}, which is not alive: ended twice or never came"
        case = self.live[name]
        match command:
            case Enqueue():
                self._check_enqueue(event, case, command)
            case Dispatch():
                self._check_dispatch(event, case, now, command)
                station = self.stations[command.worker_id]
                station.held.add(name)
                case.worker_id, case.attempts = command.worker_id, command.attempt
                case.first_token_seen = case.revoked = False
            case Refuse():
                self._check_refuse(event, case, now, command)
                self._end(name, command.outcome.label)
            case Revoke():
                assert case.worker_id is not None, f"{name} is taken back and runs nowhere"
                assert not case.revoked, f"{name} is taken back twice"
                assert not self.stations[case.worker_id].healthy, f"{name} is taken back from a healthy worker"
                case.revoked = True

    def _check_enqueue(self, event: Event | Reconfigured, case: Case, command: Enqueue) -> None:
        assert case.worker_id is None, "it waits and runs"
        assert not (self.draining and isinstance(event, RequestArrived)), "admitted while draining"
        assert command.queued_requests == len(self.waiting), "wrong length of the queue"
        if isinstance(event, AttemptFailed):
            assert event.cause not in (FailureCause.TIMEOUT, FailureCause.FAULTY), f"{event.cause} is tried again"
            assert case.attempts < self.config.retry.attempts_max, "too many attempts"
            if event.cause is not FailureCause.REVOKED:
                self.budget -= 1.0
            assert self.budget > -1e-9, "retry budget overdrawn"
        else:
            assert isinstance(event, RequestArrived), "queued out of turn"
            assert len(self.waiting) <= self.config.queued_requests_max, "queue too long"

    def _check_dispatch(self, event: Event | Reconfigured, case: Case, now: float, command: Dispatch) -> None:
        name = command.request_id
        assert case.worker_id is None, f"{name} gets a second permit"
        assert command.worker_id in self.stations, f"{name} is sent to a worker that is not there"
        station = self.stations[command.worker_id]
        assert station.usable, f"{name} is sent to a worker that is sick, draining or left"
        assert len(station.held) < self.config.requests_per_worker, f"{command.worker_id} is above its limit"
        assert command.attempt == case.attempts + 1, f"{name}: attempts are counted wrongly"
        assert command.worker_id not in case.failed_on, f"{name} returns to the worker on which it failed"
        assert case.request.pinned_to in (None, command.worker_id), f"{name} is sent away from its worker"
        assert now >= case.request.arrived_at, f"{name} is sent before it arrived"
        assert not (self.draining and isinstance(event, RequestArrived)), "admitted while draining"

    def _check_refuse(self, event: Event | Reconfigured, case: Case, now: float, command: Refuse) -> None:
        assert case.worker_id is None, "refused while it runs"
        own = isinstance(event, RequestArrived) and event.request.request_id == command.request_id
        failed = isinstance(event, AttemptFailed) and event.request_id == command.request_id
        if not own and not failed:
            assert now >= case.request.deadline_at, "evicted before its deadline"
        if command.outcome is Outcome.EXPIRED:
            assert now >= case.request.deadline_at, "called expired before its deadline"
        if own and self.draining:
            assert command.outcome is Outcome.DRAINING
        if command.outcome.retryable:
            assert command.retry_after_s is not None, "no advice"
            assert 0.1 <= command.retry_after_s <= self.config.retry_after_max_s, "advice out of bounds"
        else:
            assert command.retry_after_s is None, "advice where none can help"

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
        tokens = sum(estimate_request(case.request).prompt_tokens for case in waiting)
        assert stats.queued_tokens == tokens, "queued tokens and books differ"
        assert stats.in_flight == len(self.running), "permits and books differ"
        seen = {worker.worker_id: worker for worker in stats.workers}
        assert seen.keys() == self.stations.keys(), "workers and books differ"
        for worker_id, station in self.stations.items():
            worker = seen[worker_id]
            assert worker.in_flight == len(station.held), f"permits on {worker_id} and books differ"
            if worker.resting and not station.held:
                assert now < station.rest_until, f"{worker_id} rests without end"

    def _check_deadlines(self, controller: FlowController, now: float) -> None:
        wake_at = controller.next_wake_at()
        deadlines = [case.request.deadline_at for case in self.waiting]
        if not deadlines:
            return
        assert min(deadlines) > now, "a request waits past its deadline"
        assert wake_at is not None, "somebody waits and no wake is asked for"
        assert wake_at <= min(deadlines), "the wake comes after a deadline"

    def _check_work_conservation(self, controller: FlowController, now: float) -> None:
        resting = {worker.worker_id for worker in controller.stats(now).workers if worker.resting}
        for worker_id, station in self.stations.items():
            room = len(station.held) < self.config.requests_per_worker
            if not (station.usable and room and worker_id not in resting):
                continue
            for case in self.waiting:
                fits = worker_id not in case.failed_on and case.request.pinned_to in (None, worker_id)
                assert not fits, f"{worker_id} has room and {case.request.request_id} waits"

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
