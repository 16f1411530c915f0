"""A small world around the asyncio driver: clients that come and leave, workers that serve, fail, drain and vanish.

Moments are multiples of 1/1024 s, so that sums of them are exact and both shells compute the same moments. Deadlines
and rests are longer by a sliver, so that no alarm falls on the moment of another event: which of the two comes first
is the one thing in which the shells may differ.
"""

import random
from dataclasses import replace

from service.domain.contract import Allowance, Measure
from service.domain.event import (
    AttemptFailed,
    DrainBegan,
    FailureCause,
    FirstTokenSeen,
    PermitEnded,
    ReplicasSeen,
    ReportDue,
    RequestAbandoned,
    RequestArrived,
    WorkerDrainChanged,
    WorkerHealthChanged,
    WorkerJoined,
    WorkerLeft,
    WorkerLoadSeen,
)
from service.domain.load import WorkerLoad
from service.domain.outcome import Outcome
from service.domain.permit import PermitEnding
from service.domain.replica import Certainty, ReplicaReport, WorkerUse
from service.domain.tier import Tier
from service.domain.units import ReplicaId, TenantId, TierName, WorkerId
from service.flow.config import BreakerConfig, FlowConfig, Reconfigured, RetryConfig
from service.flow.controller import FlowController
from service.runtime.driver import Driver
from service.runtime.journal import Journal, JournalHeader
from tests.support.flow import build_request
from tests.support.loop import FakeLoop, FakeTimer

TICK_S = 1 / 1024
SLIVER_S = TICK_S / 64
BREAKER = BreakerConfig(open_s=1.0 + SLIVER_S, busy_rest_s=0.5 + SLIVER_S)
TIERS = {
    TierName("gold"): Tier(TierName("gold"), 0, ttft_targets_s=((100_000, 1.0 + SLIVER_S),), tpot_target_s=0.5),
    TierName("standard"): Tier(TierName("standard"), 1),
    TierName("batch"): Tier(TierName("batch"), 2, best_effort=True),
}
CONTRACTS = {TenantId("small"): Allowance(0.5, 2.0, Measure.REQUESTS)}
KINDS = (("tenant", "standard", 1), ("tenant", "gold", 0), ("small", "gold", 0), ("other", "batch", 2))
CONFIG = FlowConfig(
    requests_per_worker=2,
    queued_requests_max=12,
    tiers=TIERS,
    contracts=CONTRACTS,
    breaker=BREAKER,
    retry=RetryConfig(attempts_max=3),
)
SMALLER = replace(CONFIG, requests_per_worker=1, queued_requests_max=6)

OTHER = ReplicaReport(
    ReplicaId("other"),
    7,
    ((0, 1.5),),
    (WorkerUse(WorkerId("a"), 2, Certainty.FOUND, 1, 1, 1, 0, 400, 0, ((0.5, 1),), 2.0),),
)

CAUSES = (FailureCause.UNREACHABLE, FailureCause.BROKEN, FailureCause.BUSY, FailureCause.TIMEOUT, FailureCause.FAULTY)


class Traveller:
    """One request on its way, as the driver's passenger."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.timers: list[FakeTimer] = []
        self.waits = self.first_token_seen = False

    def on_enqueue(self) -> None:
        self.waits = True
        if self.world.chance.random() < 0.1:
            self.later(1.0, self.leave)

    def on_dispatch(self, worker_id: WorkerId, attempt: int) -> None:
        self.waits = False
        self.cancel()
        if self.world.chance.random() < 0.15:
            self.later(0.5, self.fail, self.world.chance.choice(CAUSES))
        else:
            self.later(0.5, self.first_token)

    def on_refuse(self, outcome: Outcome, retry_after_s: float | None) -> None:
        self.end()

    def on_excess(self) -> None:
        """Nothing is told of it here."""

    def on_revoke(self, outcome) -> None:
        self.cancel()
        if self.first_token_seen:
            self.later(TICK_S, self.finish, PermitEnding.DROPPED)
        else:
            self.later(TICK_S, self.fail, FailureCause.REVOKED)

    def first_token(self) -> None:
        self.first_token_seen = True
        self.world.driver.submit(FirstTokenSeen(self.name))
        ending = self.world.chance.choices(list(PermitEnding), [8, 1, 1])[0]
        self.later(2.0, self.finish, ending)

    def finish(self, ending: PermitEnding) -> None:
        self.end()
        self.world.driver.submit(PermitEnded(self.name, ending, 7))

    def fail(self, cause: FailureCause) -> None:
        self.world.driver.submit(
            AttemptFailed(self.name, cause, 0.25 + SLIVER_S if cause is FailureCause.BUSY else None)
        )

    def leave(self) -> None:
        if self.waits:
            self.end()
            self.world.driver.submit(RequestAbandoned(self.name))

    def later(self, bound_s: float, action, *args) -> None:
        self.timers.append(self.world.loop.call_later(self.world.draw_s(bound_s), action, *args))

    def cancel(self) -> None:
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()

    def end(self) -> None:
        self.cancel()
        self.world.driver.alight(self.name)


class World:
    """Runs one history; ``records`` is what the driver's observer saw."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.loop = FakeLoop()
        self.records = []
        controller = FlowController(CONFIG, random.Random(seed))
        self.driver = Driver(controller, self.loop, self.loop, [self])

    def observe(self, now, event, commands) -> None:
        self.records.append((now, event, list(commands)))

    def draw_s(self, bound_s: float) -> float:
        """A whole number of ticks below ``bound_s``, at least one."""
        return max(1, int(self.chance.random() * bound_s * 1024)) * TICK_S

    def run(self, length_s: float, arrivals_per_s: float) -> Journal:
        """Let clients come for ``length_s`` seconds, all kinds of trouble at fixed moments, then drain."""
        for name in "abc":
            self.driver.submit(WorkerJoined(WorkerId(name)))
            self.driver.submit(WorkerHealthChanged(WorkerId(name), True))
        self.count = 0
        self.arrivals_per_s = arrivals_per_s
        self.loop.call_later(TICK_S, self.arrive)
        step = int(length_s * 1024 / 14) * TICK_S
        for turn, event in enumerate(
            (
                WorkerDrainChanged(WorkerId("a"), True),
                WorkerHealthChanged(WorkerId("b"), False),
                WorkerLoadSeen(WorkerId("c"), WorkerLoad(step, 2, 0, 0.1 + 0.2)),
                WorkerHealthChanged(WorkerId("b"), True),
                WorkerDrainChanged(WorkerId("a"), False),
                Reconfigured(SMALLER),
                WorkerLeft(WorkerId("c")),
                WorkerJoined(WorkerId("d")),
                WorkerHealthChanged(WorkerId("d"), True),
                Reconfigured(CONFIG),
                ReportDue(ReplicaId("one")),
                ReplicasSeen(1, (OTHER,)),
                DrainBegan(),
            ),
            1,
        ):
            self.loop.call_at(turn * step, self.driver.submit, event)
        self.loop.run(length_s)
        self.arrivals_per_s = 0.0
        self.loop.run(length_s + 64.0)
        return Journal(JournalHeader(self.seed, CONFIG), tuple(self.records))

    def arrive(self) -> None:
        if not self.arrivals_per_s:
            return
        self.count += 1
        name = f"r{self.count}"
        pinned_to = "a" if self.chance.random() < 0.08 else None
        ttl_s = self.draw_s(3.0) + SLIVER_S * (1 + self.count % 61) / 64  # what follows from one alarm meets no other
        tenant, tier, rank = self.chance.choice(KINDS)
        request = build_request(
            name,
            arrived_at=self.loop.moment,
            ttl_s=ttl_s,
            prompt_bytes=self.count * 13,
            pinned_to=pinned_to,
            tenant=tenant,
            tier=tier,
            rank=rank,
        )
        self.driver.board(name, Traveller(self, name))
        self.driver.submit(RequestArrived(request))
        self.loop.call_later(self.draw_s(2.0 / self.arrivals_per_s), self.arrive)
