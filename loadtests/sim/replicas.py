"""Several gateways before the same engines in virtual time: the shipped controller N times, and the store between them.

Requests reach the gateways in turn, as behind a balancer. Each gateway reads the workers' figures at moments of its
own, publishes a report every ``period_s`` and hears the others' ``lag_s`` later; half of the lag lies before the moment
at which the store has it. A gateway that is killed takes its connections with it, and nothing more is sent to it.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from loadtests.sim.arms import Plant, build_controller
from loadtests.sim.driver import Core
from loadtests.sim.population import Bucket
from loadtests.sim.scenario import Scenario
from loadtests.sim.world import Attempt, World
from service.domain.command import Command
from service.domain.errors import InvariantError
from service.domain.event import (
    AttemptFailed,
    DrainBegan,
    Event,
    FirstTokenSeen,
    PermitEnded,
    ReplicasSeen,
    ReportDue,
    RequestAbandoned,
    RequestArrived,
    Woken,
    WorkerLoadSeen,
)
from service.domain.outcome import Outcome
from service.domain.replica import ReplicaReport
from service.domain.units import ReplicaId, RequestId, WorkerId
from service.emulator.steps import EngineConfig
from service.flow.config import Reconfigured
from service.flow.controller import FlowController
from service.flow.ledger import PermitLedger


@dataclass(frozen=True, slots=True)
class Exchange:
    """How gateways hear of each other; ``dark`` is when the store answers nobody, ``cut_off`` who cannot reach it then
    (all if empty). ``shared`` off: they do not know of each other, as peers do not."""

    period_s: float = 0.2
    lag_s: float = 0.02
    dark: tuple[float, float] | None = None
    cut_off: tuple[int, ...] = ()
    shared: bool = True

    def reaches(self, index: int, now: float) -> bool:
        """Whether gateway ``index`` can reach the store at ``now``."""
        dark = self.dark is not None and self.dark[0] <= now < self.dark[1]
        return not dark or (bool(self.cut_off) and index not in self.cut_off)


class ReplicaSet:
    """Looks like one core to the world, and is several. ``store`` holds the latest report of each."""

    def __init__(self, cores: Sequence[FlowController], exchange: Exchange) -> None:
        self.cores = tuple(cores)
        self.live = list(range(len(cores)))
        self.owners: dict[RequestId, int] = {}
        self.store: dict[ReplicaId, ReplicaReport] = {}
        self.exchange = exchange
        self._turn = 0
        self._scrapes: dict[WorkerId, int] = {}
        self._later: list[tuple[float, int, Callable[[float], list[Command]]]] = []
        self._count = 0
        if exchange.shared:
            for index in range(len(cores)):
                phase = exchange.period_s * index / len(cores)
                self.schedule(phase, partial(self._publish, index))

    @property
    def next_index(self) -> int:
        """The gateway that the next request reaches."""
        return self.live[self._turn % len(self.live)]

    def schedule(self, at: float, what: Callable[[float], list[Command]]) -> None:
        """Let ``what`` happen at ``at``."""
        self._count += 1
        heapq.heappush(self._later, (at, self._count, what))

    def kill(self, index: int) -> list[RequestId]:
        """From here on the gateway does nothing; returns what it held."""
        self.live.remove(index)
        return [request_id for request_id, owner in self.owners.items() if owner == index]

    def handle(self, event: Event | Reconfigured, now: float) -> list[Command]:
        """See ``driver.Core``."""
        match event:
            case RequestArrived():
                index = self.owners[event.request.request_id] = self.next_index
                self._turn += 1
                return self.cores[index].handle(event, now)
            case PermitEnded() | AttemptFailed() | FirstTokenSeen() | RequestAbandoned():
                return self._tell(self.owners[event.request_id], event, now)
            case WorkerLoadSeen():
                turn = self._scrapes[event.worker_id] = self._scrapes.get(event.worker_id, -1) + 1
                return self._tell(turn % len(self.cores), event, now)
            case Woken():
                return self._wake(now)
            case DrainBegan() | Reconfigured():
                raise InvariantError("the simulator's gateways are not told that")
            case _:
                return [command for index in self.live for command in self.cores[index].handle(event, now)]

    def _tell(self, index: int, event: Event, now: float) -> list[Command]:
        return self.cores[index].handle(event, now) if index in self.live else []

    def _wake(self, now: float) -> list[Command]:
        out: list[Command] = []
        while self._later and self._later[0][0] <= now:
            out += heapq.heappop(self._later)[2](now)
        for index in self.live:
            at = self.cores[index].next_wake_at()
            if at is not None and at <= now:
                out += self.cores[index].handle(Woken(), now)
        return out

    def next_wake_at(self) -> float | None:
        """See ``driver.Core``."""
        moments = [at for index in self.live if (at := self.cores[index].next_wake_at()) is not None]
        if self._later:
            moments.append(self._later[0][0])
        return min(moments, default=None)

    # ---------------------------------------------------------------- reports

    def _publish(self, index: int, now: float) -> list[Command]:
        if index not in self.live:
            return []
        exchange, core = self.exchange, self.cores[index]
        self.schedule(now + exchange.period_s, partial(self._publish, index))
        commands = core.handle(ReportDue(ReplicaId(f"g{index}")), now)
        report = core.report(now)
        if report is not None and exchange.reaches(index, now):
            self.schedule(now + exchange.lag_s / 2, partial(self._store, index, report))
        return commands

    def _store(self, index: int, report: ReplicaReport, now: float) -> list[Command]:
        self.store[report.replica_id] = report
        seen = ReplicasSeen(report.number, tuple(self.store.values()))
        self.schedule(now + self.exchange.lag_s / 2, lambda at: self._tell(index, seen, at))
        return []


def read_ledger(core: FlowController) -> PermitLedger:
    """The books of one gateway, for the measurements."""
    return core._state.ledger  # noqa: SLF001 - what a referee must see no policy shows


class _Buckets:
    """One tenant's contract, a part of it at each gateway: the request counts at the one that it reaches next."""

    def __init__(self, rate: float | None, burst: float, replicas: ReplicaSet) -> None:
        count = len(replicas.cores)
        self._replicas = replicas
        self._parts = [Bucket(None if rate is None else rate / count, burst / math.sqrt(count)) for _ in range(count)]
        self._whole = Bucket(rate, burst)
        self.taken = self.taken_whole = 0

    def take(self, now: float) -> bool:
        """See ``population.Bucket``."""
        within = self._parts[self._replicas.next_index].take(now)
        self.taken += within
        self.taken_whole += self._whole.take(now)
        return within


class ReplicaWorld(World):
    """A world with ``count`` gateways. ``killed`` names one that dies, and when. ``samples`` are, ten times a second:
    the moment, the requests that each gateway holds, and the most that any worker holds over its limit."""

    def __init__(
        self,
        scenario: Scenario,
        count: int,
        seed: int,
        exchange: Exchange,
        engine: EngineConfig | None = None,
        killed: tuple[int, float] | None = None,
    ) -> None:
        plants = [Plant(scenario, scenario.compute_capacity_rps(), seed + 1000 * index) for index in range(count)]
        self.samples: list[tuple[float, tuple[int, ...], int]] = []
        self.over: list[float] = []
        self.replicas: ReplicaSet
        exchange = exchange if count > 1 else replace(exchange, shared=False)
        often = replace(scenario.sensor, every_s=scenario.sensor.every_s / count)

        def build() -> Core:
            self.replicas = ReplicaSet([build_part(plant) for plant in plants], exchange)
            return self.replicas

        super().__init__(replace(scenario, sensor=often), build, seed, engine)
        self.scenario = scenario
        self.contracts = []
        for tenant in scenario.tenants:
            ratio = tenant.contract_ratio
            rate = None if ratio is None else ratio * self.capacity_rps
            self.contracts.append(_Buckets(rate, (rate or 0.0) * tenant.burst_s, self.replicas))
        self._buckets = self.contracts  # type: ignore[assignment]
        if killed is not None:
            self.driver.schedule(killed[1], partial(self._kill, killed[0]))
        self.driver.schedule(0.1, self._sample)

    def _kill(self, index: int) -> None:
        for request_id in self.replicas.kill(index):
            attempt: Attempt | None = self._live.get(request_id)
            if attempt is not None:
                self._take_back(attempt)
                self._end(attempt, Outcome.GATEWAY_FAULT)

    def _sample(self) -> None:
        now = self.driver.now
        books = [read_ledger(self.replicas.cores[index]) for index in self.replicas.live]
        held = tuple(len(ledger.running) for ledger in books)
        over = 0
        for worker in self.workers:
            limits = sorted(ledger.workers[worker.worker_id].limit.limit for ledger in books)
            here = sum(len(ledger.workers[worker.worker_id].held) for ledger in books)
            over = max(over, here - limits[(len(limits) - 1) // 2])
        self.samples.append((now, held, over))
        self.driver.schedule(now + 0.1, self._sample)


def build_part(plant: Plant) -> FlowController:
    """The shipped controller."""
    core = build_controller(plant)
    if not isinstance(core, FlowController):
        raise TypeError("the shipped policy is a FlowController")
    return core
