"""Plays one hour in both simulators and tells how far the coarse one is off: ``python -m loadtests.sim.hour``.

The hour has a burst and the loss of a worker. The coarse model decides who is there when; then the detailed simulator,
with the real policy, gets the same workers at the same moments and the same demand, minute by minute.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadtests.sim.arms import ARMS, Plant
from loadtests.sim.arrivals import Process, Stretch
from loadtests.sim.curves import MIX, build_scenario, read_curves
from loadtests.sim.day import HOUR_S, Burst, Curve, Day, Demands, simulate_day
from loadtests.sim.measure import Verdict, judge
from loadtests.sim.scalers import build_law
from loadtests.sim.scenario import Fault, FaultKind, Scenario
from loadtests.sim.world import World

WARMUP_S = 60.0
DAY = Day(
    name="hour",
    peak=9.0,
    best_effort=2.5,
    bursts=(Burst(10.0, 1500.0, 0.5),),
    loss_at_h=10.6,
    begin_h=9.6,
    hours=1.0,
    first_full=0.85,
)
MINUTES_IN_STEP = 60.0


@dataclass(frozen=True, slots=True)
class HourFigures:
    """Attainment within contracts, and the parts of excess and best effort that were served in time."""

    within: float
    excess: float
    best_effort: float


def play_coarsely(seed: int) -> tuple[HourFigures, list[int]]:
    """The hour in the coarse model, and how many workers served in each minute."""
    figures = simulate_day(DAY, build_law(DAY, seed), Curve(read_curves()), seed, keep_trail=True)
    return (
        HourFigures(
            figures.attainment,
            figures.excess_good / figures.excess_offered,
            figures.best_effort_good / figures.best_effort_offered,
        ),
        [line[4] for line in figures.trail],
    )


def build_hour(seed: int, ready: Sequence[int]) -> Scenario:
    """The same hour as a scenario of the detailed simulator."""
    most = max(ready)
    minutes: list[list[float]] = []
    for now, offered in Demands(DAY, seed):
        if now % MINUTES_IN_STEP == 0.0:
            real = offered.real
            within = [real.guaranteed * tenant.share / (MIX[0].share + MIX[1].share) for tenant in MIX[:2]]
            minutes.append([*within, real.excess, real.best_effort])
    tenants = tuple(
        replace(
            tenant,
            arrivals=Process(
                shape=tuple(
                    Stretch(*_place(index), factor=minute[place] / (tenant.share * most))
                    for index, minute in enumerate(minutes)
                )
            ),
        )
        for place, tenant in enumerate(MIX)
    )
    scenario = build_scenario(1.0, most, HOUR_S, WARMUP_S)
    return replace(scenario, name="hour", tenants=tenants, faults=tuple(_list_absences(ready)))


def _place(index: int) -> tuple[float, float]:
    """The first minute lasts through the warm-up."""
    begin = 0.0 if index == 0 else WARMUP_S + index * MINUTES_IN_STEP
    return begin, WARMUP_S + (index + 1) * MINUTES_IN_STEP


def _list_absences(ready: Sequence[int]) -> list[Fault]:
    """Worker k is there in the minutes in which more than k serve."""
    faults: list[Fault] = []
    for worker in range(max(ready)):
        gone_at: float | None = None
        for index, count in enumerate(ready):
            at = _place(index)[0]
            if count <= worker and gone_at is None:
                gone_at = at
            elif count > worker and gone_at is not None:
                faults.append(Fault(FaultKind.DEATH, gone_at, at, worker))
                gone_at = None
        if gone_at is not None:
            faults.append(Fault(FaultKind.DEATH, gone_at, None, worker))
    return faults


def play_in_detail(seed: int, ready: Sequence[int]) -> HourFigures:
    """The hour with real steps and the real policy."""
    scenario = build_hour(seed, ready)
    plant = Plant(scenario, scenario.compute_capacity_rps(), seed)
    world = World(scenario, lambda: ARMS["sluice"].build(plant), seed)
    world.run()
    good, judged = [0] * len(MIX), [0] * len(MIX)
    end_at = scenario.until_s + scenario.settle_s
    for attempt in world.attempts:
        if attempt.arrived_at >= scenario.warmup_s:
            verdict = judge(attempt, world.tiers[attempt.offer.tenant], end_at)
            good[attempt.offer.tenant] += verdict is Verdict.GOOD
            judged[attempt.offer.tenant] += verdict is not Verdict.EXCLUDED
    return HourFigures((good[0] + good[1]) / (judged[0] + judged[1]), good[2] / judged[2], good[3] / judged[3])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    seeds = [int(text) for text in arguments or ()] or [1]
    for seed in seeds:
        coarse, ready = play_coarsely(seed)
        detailed = play_in_detail(seed, ready)
        print(f"seed {seed}, {min(ready)} to {max(ready)} workers")
        print(f"  {'':14}{'coarse':>8}{'detailed':>10}{'off by':>9}")
        for name in ("within", "excess", "best_effort"):
            one, other = getattr(coarse, name), getattr(detailed, name)
            print(f"  {name:14}{one:8.4f}{other:10.4f}{one - other:9.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
