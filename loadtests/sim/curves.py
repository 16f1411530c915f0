"""Measures in the detailed simulator how a pool does at each load, for simulations of days that cannot afford steps.

A curve is a table over load: offered work over what the workers can do. ``python -m loadtests.sim.curves`` measures it
anew (some ten minutes) and writes ``loadtests/reports/scaling.curves.json``; simulations read that file.
"""

import json
import sys
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from loadtests.sim.arms import ARMS, Plant
from loadtests.sim.bounds import compute_peak
from loadtests.sim.measure import Verdict, compute_ttft_s, judge
from loadtests.sim.population import TenantSpec
from loadtests.sim.scenario import SCENARIOS, Scenario
from loadtests.sim.world import World

CURVES = Path(__file__).parents[1] / "reports" / "scaling.curves.json"

PRIORITY, DEFAULT, EXCESS, BEST_EFFORT = 0.25, 0.35, 0.10, 0.30
"""How the work of a day is made up: 60 % within contracts."""
GUARANTEED = PRIORITY + DEFAULT

MIX = (
    TenantSpec("acme", "priority", PRIORITY),
    TenantSpec("core", "default", DEFAULT),
    TenantSpec("dune", "default", EXCESS, 0.0),
    TenantSpec("fern", "flex", BEST_EFFORT, 0.0),
)

LOADS = (0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2.0, 2.3, 2.6, 3.0)


@dataclass(frozen=True, slots=True)
class Point:
    """A steady state at ``load``. Counts are per worker; ``miss`` is bad over offered within contracts.

    ``queued`` waits in the gateway, ``queued_within`` that part of it which is within contracts; ``engine_waiting`` is
    vLLM's ``num_requests_waiting`` where no gateway holds requests back. ``ttft_s`` is the mean over all answers.
    """

    load: float
    miss: float = 0.0
    excess_good: float = 1.0
    best_effort_good: float = 1.0
    queued: float = 0.0
    queued_within: float = 0.0
    engine_waiting: float = 0.0
    ttft_s: float = 0.0
    held_within: float = 0.0


def read_curves(path: Path = CURVES) -> list[Point]:
    """The table as measured."""
    return [Point(**row) for row in json.loads(path.read_text())["points"]]


def interpolate(points: Sequence[Point], load: float) -> Point:
    """The steady state at ``load``, between the two nearest; the last holds beyond the end."""
    index = bisect_right([point.load for point in points], load)
    if index == 0:
        return replace(points[0], load=load)
    if index == len(points):
        return replace(points[-1], load=load)
    low, high = points[index - 1], points[index]
    part = (load - low.load) / (high.load - low.load)
    return Point(
        *(getattr(low, name) + part * (getattr(high, name) - getattr(low, name)) for name in _NAMES)
    )  # fmt: skip


_NAMES = [field.name for field in fields(Point)]


def build_scenario(load: float, workers: int, duration_s: float, warmup_s: float = 60.0) -> Scenario:
    """The mix of a day at a steady load."""
    return replace(
        SCENARIOS["steady"], name="curve", tenants=MIX, load=load, workers=workers, duration_s=duration_s,
        warmup_s=warmup_s,
    )  # fmt: skip


class _Gauges:
    """What waits and runs, looked at every second."""

    def __init__(self, world: World) -> None:
        self._world, self.count = world, 0
        self.queued = self.within = self.waiting = self.held = 0
        world.driver.schedule(world.scenario.warmup_s, self._look)

    def _look(self) -> None:
        world, now = self._world, self._world.driver.now
        if now >= world.scenario.until_s:
            return
        self.count += 1
        for attempt in world.live():
            within = attempt.in_contract and world.tiers[attempt.offer.tenant].rank < 2
            if attempt.queued:
                self.queued += 1
                self.within += within
            else:
                self.held += within
        for worker in world.workers:
            load = worker.read_load(now)
            self.waiting += 0 if load is None else load.waiting_requests or 0
        world.driver.schedule(now + 1.0, self._look)


def measure_point(load: float, workers: int, duration_s: float, seed: int) -> Point:
    """One steady state; vLLM's own queue is measured in a second run, in which all is sent at once."""
    scenario = build_scenario(load, workers, duration_s)
    world, gauges = _run(scenario, "sluice", seed)
    _, bare = _run(replace(scenario, warmup_s=30.0, duration_s=30.0, settle_s=0.0), "round-robin", seed)
    good, judged = [0] * len(MIX), [0] * len(MIX)
    ttfts: list[float] = []
    end_at = scenario.until_s + scenario.settle_s
    for attempt in world.attempts:
        if attempt.arrived_at < scenario.warmup_s:
            continue
        verdict = judge(attempt, world.tiers[attempt.offer.tenant], end_at)
        good[attempt.offer.tenant] += verdict is Verdict.GOOD
        judged[attempt.offer.tenant] += verdict is not Verdict.EXCLUDED
        if (ttft_s := compute_ttft_s(attempt)) is not None:
            ttfts.append(ttft_s)
    batch = compute_peak(scenario.engine_profile, scenario.compute_mean(), scenario.compute_tightest_tpot_s()).batch
    each = gauges.count * workers
    return Point(
        load,
        1.0 - (good[0] + good[1]) / max(judged[0] + judged[1], 1),
        good[2] / max(judged[2], 1),
        good[3] / max(judged[3], 1),
        gauges.queued / each,
        gauges.within / each,
        bare.waiting / (bare.count * workers),
        sum(ttfts) / max(len(ttfts), 1),
        min(gauges.held / (each * batch), 1.0),
    )


def _run(scenario: Scenario, arm: str, seed: int) -> tuple[World, _Gauges]:
    plant = Plant(scenario, scenario.compute_capacity_rps(), seed)
    world = World(scenario, lambda: ARMS[arm].build(plant), seed, ARMS[arm].configure_engine(plant))
    gauges = _Gauges(world)
    world.run()
    return world, gauges


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all points, smooth what must be monotone, write the table."""
    seeds = (1,)
    points: list[Point] = []
    miss = 0.0
    for load in LOADS:
        found = [measure_point(load, 8, 240.0, seed) for seed in seeds]
        mean = Point(*(sum(getattr(one, name) for one in found) / len(found) for name in _NAMES))
        miss = max(miss, mean.miss)  # a greater load never misses less: what says so is noise
        points.append(replace(mean, miss=miss))
        print(points[-1], flush=True)
    record = {"workers": 8, "seconds": 240.0, "seeds": seeds, "profile": "m3.1-flash", "points": [*map(asdict, points)]}
    (CURVES if not arguments else Path(arguments[0])).write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
