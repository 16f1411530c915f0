"""Several gateways before the same engines in virtual time: the shipped controller N times, and the store between them.

Requests reach the gateways in turn, as behind a balancer. Each gateway reads the workers' figures at moments of its
own, publishes a report every ``period_s`` and hears the others' ``lag_s`` later; half of the lag lies before the moment
at which the store has it. A gateway that is killed takes its connections with it, and nothing more is sent to it.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from loadtests.sim.arms import Plant, build_controller
from loadtests.sim.driver import Core
from loadtests.sim.population import Bucket
from loadtests.sim.scenario import Scenario
from loadtests.sim.world import Attempt, World
from service.domain.command import Command, Revoke
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
from service.flow.band import is_guaranteed
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
        commands = core.handle(ReportDue(ReplicaId(f"g{index}")), now)
        report = core.report(now)
        if report is None or not exchange.reaches(index, now):
            self.schedule(now + exchange.period_s, partial(self._publish, index))
        else:
            self.schedule(now + exchange.lag_s / 2, partial(self._store, index, report))
        return commands

    def _store(self, index: int, report: ReplicaReport, now: float) -> list[Command]:
        self.store[report.replica_id] = report
        seen = ReplicasSeen(report.number, tuple(self.store.values()))
        self.schedule(now + self.exchange.lag_s / 2, partial(self._hear, index, seen))
        return []

    def _hear(self, index: int, seen: ReplicasSeen, now: float) -> list[Command]:
        exchange = self.exchange
        pause_s = max(exchange.period_s - exchange.lag_s, exchange.period_s / 4.0)
        self.schedule(now + pause_s, partial(self._publish, index))
        return self._tell(index, seen, now)


def read_ledger(core: FlowController) -> PermitLedger:
    """The books of one gateway, for the measurements."""
    return core._state.ledger  # noqa: SLF001 - what a referee must see no policy shows


_SAMPLE_S, _RECENT = 0.1, 100


class _Bucket:
    """One tenant's contract as one gateway would keep it; ``taken`` counts what it lets through. What is really within
    the contract the gateways say."""

    def __init__(self, rate: float | None, burst: float) -> None:
        self._bucket = Bucket(rate, burst)
        self.taken = 0

    def take(self, now: float) -> bool:
        """See ``population.Bucket``."""
        within = self._bucket.take(now)
        self.taken += within
        return within


class ReplicaWorld(World):
    """A world with ``count`` gateways. ``killed`` names one that dies, and when.

    Ten times a second it is looked how many ``permits`` living gateways have and how many requests the workers carry,
    by the lower median of what the gateways think; ``most_over`` is by how much any worker was asked for more, a few
    seconds being granted to requests that run when a limit comes down.
    """

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
        self.permits: list[tuple[float, int, int]] = []
        self.most_over = 0
        self._limits: dict[WorkerId, deque[int]] = {}
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
            self.contracts.append(_Bucket(rate, (rate or 0.0) * tenant.burst_s))
        self._buckets = self.contracts  # type: ignore[assignment]
        if killed is not None:
            self.driver.schedule(killed[1], partial(self._kill, killed[0]))
        self.driver.schedule(_SAMPLE_S, self._sample)

    def _on_command(self, now: float, command: Command) -> None:
        grounds = None if isinstance(command, Revoke) else command.grounds
        attempt = self._live[command.request_id]
        if grounds is not None and attempt.arrived_at == now and not attempt.dispatches:
            attempt.in_contract = is_guaranteed(grounds.band)
        super()._on_command(now, command)

    @property
    def contract_ratio(self) -> float:
        """What the gateways took for within contract, over what one of them would."""
        within = sum(attempt.in_contract for attempt in self.attempts)
        return within / max(sum(contract.taken for contract in self.contracts), 1)

    def _kill(self, index: int) -> None:
        for request_id in self.replicas.kill(index):
            attempt: Attempt | None = self._live.get(request_id)
            if attempt is not None:
                self._take_back(attempt)
                self._end(attempt, Outcome.GATEWAY_FAULT)

    def count_rejected(self) -> int:
        """How often the workers' own valves refused."""
        return sum(worker.rejected for worker in self.workers)

    def _sample(self) -> None:
        now = self.driver.now
        books = [read_ledger(self.replicas.cores[index]) for index in self.replicas.live]
        permits = carried = 0
        for worker in self.workers:
            views = [ledger.workers[worker.worker_id] for ledger in books]
            limit = sorted(view.limit.limit for view in views)[(len(views) - 1) // 2]
            held = sum(len(view.held) for view in views)
            recent = self._limits.setdefault(worker.worker_id, deque(maxlen=_RECENT))
            recent.append(limit)
            self.most_over = max(self.most_over, held - max(recent))
            permits += sum(view.permits for view in views)
            carried += limit
        self.permits.append((now, permits, carried))
        self.driver.schedule(now + _SAMPLE_S, self._sample)


def build_part(plant: Plant) -> FlowController:
    """The shipped controller."""
    core = build_controller(plant)
    if not isinstance(core, FlowController):
        raise TypeError("the shipped policy is a FlowController")
    return core
