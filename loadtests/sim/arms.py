"""The policies that are compared: small controllers in the manner of peers, and the shipped one.

Each is driven as the shipped controller is: events in, commands out. They are models of what the peers do, not their
code: constants are their documented defaults, and where a default is hopeless the better setting is taken.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from loadtests.sim.bounds import compute_peak
from loadtests.sim.driver import Core
from loadtests.sim.population import TenantSpec
from loadtests.sim.scenario import Scenario
from service.domain.command import Command, Dispatch, Enqueue, Refuse
from service.domain.contract import Allowance, Measure
from service.domain.event import (
    AttemptFailed,
    Event,
    FailureCause,
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
from service.domain.load import WorkerLoad
from service.domain.outcome import Outcome
from service.domain.request import Request
from service.domain.units import RequestId, TenantId, WorkerId
from service.emulator.steps import EngineConfig
from service.flow.config import FlowConfig, Reconfigured
from service.flow.controller import FlowController
from service.flow.failure import outcome_of


@dataclass(frozen=True, slots=True)
class Plant:
    """What an operator knows when the policy is configured."""

    scenario: Scenario
    capacity_rps: float
    seed: int

    def build_chance(self) -> random.Random:
        """The policy's own generator."""
        return random.Random(f"{self.seed}:policy")  # noqa: S311 - repeatable on purpose

    def compute_contract_rps(self, tenant: TenantSpec) -> float | None:
        """Requests a second that the tenant has bought; ``None`` for no bound."""
        return None if tenant.contract_ratio is None else tenant.contract_ratio * self.capacity_rps

    @property
    def sheddable_ranks(self) -> frozenset[int]:
        """Ranks of tiers that peers may be told to shed."""
        return frozenset(spec.tier.rank for spec in self.scenario.tiers if spec.sheddable)


@dataclass(frozen=True, slots=True)
class ArmStats:
    """Snapshot of a baseline."""

    queued_requests: int
    in_flight: int


@dataclass(slots=True)
class Place:
    """One worker as a baseline sees it."""

    worker_id: WorkerId
    healthy: bool = False
    draining: bool = False
    in_flight: int = 0
    load: WorkerLoad | None = None


class Baseline:
    """What baselines have in common: they know who is healthy, and pass every failure on to the client."""

    def __init__(self) -> None:
        self.places: dict[WorkerId, Place] = {}
        self.running: dict[RequestId, Place] = {}
        self._homes: dict[str, Place] = {}
        self.out: list[Command] = []

    def handle(self, event: Event | Reconfigured, now: float) -> list[Command]:
        """See ``driver.Core``."""
        match event:
            case RequestArrived(request=request):
                self.arrive(request, now)
            case PermitEnded():
                self._release(event.request_id, now)
            case AttemptFailed():
                self._release(event.request_id, now)
                self.fail(event, now)
            case RequestAbandoned():
                self.abandon(event.request_id)
            case Woken():
                self.wake(now)
            case WorkerJoined():
                self.places.setdefault(event.worker_id, Place(event.worker_id))
            case WorkerLeft():
                self.places.pop(event.worker_id, None)
            case WorkerHealthChanged():
                self.places[event.worker_id].healthy = event.healthy
                self.wake(now)
            case WorkerDrainChanged():
                self.places[event.worker_id].draining = event.draining
                self.wake(now)
            case WorkerLoadSeen():
                self.places[event.worker_id].load = event.load
            case _:
                pass
        out = self.out
        self.out = []
        return out

    def next_wake_at(self) -> float | None:
        """See ``driver.Core``."""
        return None

    def stats(self, now: float) -> ArmStats:
        """Snapshot."""
        return ArmStats(0, len(self.running))

    def arrive(self, request: Request, now: float) -> None:
        """Decide about a request."""
        raise NotImplementedError

    def fail(self, event: AttemptFailed, now: float) -> None:
        """An attempt failed."""
        self.refuse(event.request_id, outcome_of(event.cause))

    def abandon(self, request_id: RequestId) -> None:
        """A queued client left."""

    def wake(self, now: float) -> None:
        """Something became free, or time passed."""

    def list_usable(self) -> list[Place]:
        """Workers that take requests."""
        return [place for place in self.places.values() if place.healthy and not place.draining]

    def dispatch(self, request_id: RequestId, place: Place, attempt: int = 1) -> None:
        """Send it."""
        place.in_flight += 1
        self.running[request_id] = place
        self.out.append(Dispatch(request_id, place.worker_id, attempt))

    def find_home(self, request: Request) -> Place | None:
        """Where the session was served last: peers route by prefix, which comes to the same here."""
        return None if request.session is None else self._homes.get(request.session)

    def remember_home(self, request: Request, place: Place) -> None:
        """The session's prefix is there from here on."""
        if request.session is not None:
            self._homes[request.session] = place

    def refuse(self, request_id: RequestId, outcome: Outcome, retry_after_s: float = 1.0) -> None:
        """Turn it away with a constant advice, as peers do."""
        self.out.append(Refuse(request_id, outcome, retry_after_s if outcome.retryable else None))

    def _release(self, request_id: RequestId, now: float) -> None:
        self.running.pop(request_id).in_flight -= 1
        self.wake(now)


class RoundRobin(Baseline):
    """All is sent at once, each worker in turn; with ``tries`` > 1 a busy answer goes to the next one.

    Also the arm of engine priority and of the engine's own valves, which differ in the engine only.
    """

    def __init__(self, tries: int = 1) -> None:
        super().__init__()
        self._next = 0
        self._tries = tries
        self._tried: dict[RequestId, int] = {}

    def arrive(self, request: Request, now: float) -> None:
        """See :class:`Baseline`."""
        self._send(request.request_id, 1)

    def fail(self, event: AttemptFailed, now: float) -> None:
        """See :class:`Baseline`."""
        tried = self._tried.pop(event.request_id, 1)
        if event.cause is FailureCause.BUSY and tried < self._tries:
            self._tried[event.request_id] = tried + 1
            self._send(event.request_id, tried + 1)
        else:
            super().fail(event, now)

    def _send(self, request_id: RequestId, attempt: int) -> None:
        usable = self.list_usable()
        if not usable:
            self.refuse(request_id, Outcome.NO_WORKERS)
            return
        self._next = (self._next + 1) % len(usable)
        self.dispatch(request_id, usable[self._next], attempt)


class StaticConcurrency(Baseline):
    """A fixed number of requests per worker and a queue with a bound and deadlines, in order of arrival or of tier.

    In order of tier, whoever arrives at a full queue takes the place of the last of a cheaper tier.
    """

    def __init__(self, per_worker: int, queued_max: int, by_rank: bool = False) -> None:
        super().__init__()
        self._per_worker, self._queued_max, self._by_rank = per_worker, queued_max, by_rank
        self._arrivals = 0
        self._queue: dict[RequestId, Request] = {}
        self._order: list[tuple[int, int, RequestId]] = []
        self._last: list[tuple[int, int, RequestId]] = []
        self._deadlines: list[tuple[float, RequestId]] = []

    def arrive(self, request: Request, now: float) -> None:
        """See :class:`Baseline`."""
        place = None if self._queue else self._find_room(request)
        if place is not None:
            self._send(request, place)
        elif len(self._queue) >= self._queued_max and not self._displace(request.rank):
            self.refuse(request.request_id, Outcome.QUEUE_FULL)
        else:
            self._queue[request.request_id] = request
            self._arrivals += 1
            rank = request.rank if self._by_rank else 0
            heapq.heappush(self._order, (rank, self._arrivals, request.request_id))
            if self._by_rank:
                heapq.heappush(self._last, (-rank, -self._arrivals, request.request_id))
            heapq.heappush(self._deadlines, (request.deadline_at, request.request_id))
            self.out.append(Enqueue(request.request_id, len(self._queue)))

    def abandon(self, request_id: RequestId) -> None:
        """See :class:`Baseline`."""
        self._queue.pop(request_id, None)

    def wake(self, now: float) -> None:
        """See :class:`Baseline`."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, request_id = heapq.heappop(self._deadlines)
            if self._queue.pop(request_id, None) is not None:
                self.refuse(request_id, Outcome.EXPIRED)
        while self._order:
            request = self._queue.get(self._order[0][2])
            if request is not None:
                place = self._find_room(request)
                if place is None:
                    return
                del self._queue[request.request_id]
                self._send(request, place)
            heapq.heappop(self._order)

    def next_wake_at(self) -> float | None:
        """See ``driver.Core``."""
        while self._deadlines and self._deadlines[0][1] not in self._queue:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def stats(self, now: float) -> ArmStats:
        """Snapshot."""
        return ArmStats(len(self._queue), len(self.running))

    def _displace(self, rank: int) -> bool:
        """Turn the last of the cheapest tier away, if that is cheaper than ``rank``."""
        while self._last and self._last[0][2] not in self._queue:
            heapq.heappop(self._last)
        if not self._last or -self._last[0][0] <= rank:
            return False
        request_id = heapq.heappop(self._last)[2]
        del self._queue[request_id]
        self.refuse(request_id, Outcome.QUEUE_FULL)
        return True

    def _send(self, request: Request, place: Place) -> None:
        self.remember_home(request, place)
        self.dispatch(request.request_id, place)

    def _find_room(self, request: Request) -> Place | None:
        usable = [place for place in self.list_usable() if place.in_flight < self._per_worker]
        home = self.find_home(request)
        return home if home in usable else min(usable, key=lambda place: place.in_flight, default=None)


QUEUE_THRESHOLD = 5.0
KV_THRESHOLD = 0.8
"""Defaults of llm-d's saturation detector."""


class LeastLoaded(Baseline):
    """Sends at once to the worker whose last scrape shows the least; sheds what is sheddable by ``choose_shed``."""

    def __init__(self, sheddable: frozenset[int], chance: random.Random) -> None:
        super().__init__()
        self.chance = chance
        self._sheddable = sheddable

    def arrive(self, request: Request, now: float) -> None:
        """See :class:`Baseline`."""
        usable = self.list_usable()
        if not usable:
            self.refuse(request.request_id, Outcome.NO_WORKERS)
        elif request.rank in self._sheddable and self.choose_shed([compute_saturation(place) for place in usable]):
            self.refuse(request.request_id, Outcome.QUEUE_FULL)
        else:
            home = self.find_home(request)
            scores = [(compute_saturation(place) - (place is home), self.chance.random(), place) for place in usable]
            place = min(scores, key=lambda one: one[:2])[2]
            self.remember_home(request, place)
            self.dispatch(request.request_id, place)

    def choose_shed(self, saturations: list[float]) -> bool:
        """Whether to turn a sheddable request away, given how full each worker is (1 = at its threshold)."""
        raise NotImplementedError


class UtilisationGate(LeastLoaded):
    """llm-d's gate: sheddable traffic passes while any worker is below both thresholds."""

    def choose_shed(self, saturations: list[float]) -> bool:
        """See :class:`LeastLoaded`."""
        return min(saturations) >= 1.0


class ProbabilisticAdmitter(LeastLoaded):
    """llm-d's probabilistic admitter: p = min(1, 300 x s^5), s = mean over workers of their saturation."""

    def choose_shed(self, saturations: list[float]) -> bool:
        """See :class:`LeastLoaded`."""
        mean = sum(saturations) / len(saturations)
        return self.chance.random() < min(1.0, 300.0 * mean**5)


def compute_saturation(place: Place) -> float:
    """The worse of queue depth and KV usage over their thresholds; nothing known is empty (as the peer has it)."""
    load = place.load
    if load is None:
        return 0.0
    return max((load.waiting_requests or 0) / QUEUE_THRESHOLD, (load.kv_cache_ratio or 0.0) / KV_THRESHOLD)


@dataclass(frozen=True, slots=True)
class Arm:
    """A policy and how the engines are started for it."""

    name: str
    about: str
    build: Callable[[Plant], Core]
    configure_engine: Callable[[Plant], EngineConfig] = field(default=lambda plant: EngineConfig())


def build_controller(plant: Plant) -> Core:
    """The shipped policy as a service with default settings would run it on this plant: it is told tiers and contracts,
    never what the workers can do."""
    scenario = plant.scenario
    capacity_rps = scenario.compute_capacity_rps()
    contracts = {
        TenantId(tenant.name): Allowance(
            tenant.contract_ratio * capacity_rps,
            max(tenant.contract_ratio * capacity_rps * tenant.burst_s, 1.0) if tenant.contract_ratio else 0.0,
            Measure.REQUESTS,
        )
        for tenant in scenario.tenants
        if tenant.contract_ratio is not None
    }
    tiers = {spec.tier.name: spec.tier for spec in scenario.tiers}
    return FlowController(FlowConfig(tiers=tiers, contracts=contracts), plant.build_chance())


def _build_static(plant: Plant) -> Core:
    seqs = plant.scenario.engine_profile.max_num_seqs
    return StaticConcurrency(seqs, 2 * seqs * plant.scenario.workers)


def _build_told(plant: Plant) -> Core:
    scenario = plant.scenario
    peak = compute_peak(scenario.engine_profile, scenario.compute_mean(), scenario.compute_tightest_tpot_s())
    return StaticConcurrency(peak.batch, 2 * peak.batch * scenario.workers, by_rank=True)


def _set_valves(plant: Plant) -> EngineConfig:
    profile = plant.scenario.engine_profile
    return EngineConfig(
        max_num_queued_reqs=int(1.25 * profile.max_num_seqs),
        max_num_queued_tokens=4 * profile.max_num_batched_tokens,
    )


ARMS: dict[str, Arm] = {
    arm.name: arm
    for arm in (
        Arm("round-robin", "all is sent at once, in turn", lambda plant: RoundRobin()),
        Arm(
            "priority-only",
            "all is sent at once; the engine orders by tier",
            lambda plant: RoundRobin(),
            lambda plant: EngineConfig(priority_scheduling=True),
        ),
        Arm("valves", "the engine's own limits; one more try elsewhere", lambda plant: RoundRobin(2), _set_valves),
        Arm("static", "as many per worker as it runs, first come first served", _build_static),
        Arm("smg-told", "SMG: strict priority in the queue, told each worker's best batch by a human", _build_told),
        Arm("llmd-gate", "llm-d: sheddable refused while all workers are full",
            lambda plant: UtilisationGate(plant.sheddable_ranks, plant.build_chance())),
        Arm("llmd-prob", "llm-d: sheddable refused with a probability that grows with saturation",
            lambda plant: ProbabilisticAdmitter(plant.sheddable_ranks, plant.build_chance())),
        Arm("sluice", "the shipped controller with default settings", build_controller),
    )
}  # fmt: skip
