"""Simulates a day of a pool whose size somebody decides: demand, workers that start slowly, misses, and the bill.

The model is coarse: in steps of ten seconds a pool of n workers is offered work by class, and misses what the detailed
simulator missed at the same load (``curves``). So a day costs a second instead of hours, and ten seeds of every policy
can be compared. ``loadtests.sim.hour`` plays an hour in both and tells the difference.

Demand is counted in workers: worker-seconds of work per second. What is within contracts follows the sun and has two
bursts; best effort has its own, later curve, as batch work has.

*Trade-offs*: between two steps the pool is in steady state, so queues that last minutes are not seen; contracts are
kept by shedding what is beyond them, as the shipped policy does, whoever decides about workers.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from loadtests.sim.curves import GUARANTEED, Point, interpolate
from service.slo.reading import Burn, Demand

HOUR_S, DAY_S = 3600.0, 86_400.0
STEP_S = 10.0
DECIDE_S = 30.0
"""A scaler is asked as often as KEDA polls by default."""

DRAIN_S = 30.0
"""A worker that goes still costs for so long: the longest of most answers."""

REQUESTS_PER_WORK = 7.0
"""Requests per worker-second of work in the mix of ``curves``: 56.2 requests a second on eight workers."""

WORK_CV = 1.3
"""Coefficient of variation of the work of a request in that mix."""

OBJECTIVE = 0.99
"""What the contracts promise of requests within them: the attainment of the tiers in ``population``."""

EPOCH_S = 1_764_547_200.0
"""Midnight of some Monday: the pattern of an earlier week is found by time of day."""


@dataclass(frozen=True, slots=True)
class Burst:
    """``factor`` more than usual within contracts, up within ``ramp_s``."""

    at_h: float
    length_s: float
    factor: float
    ramp_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Day:
    """One day. ``peak`` is what is offered at the top, in workers; ``low_ratio`` of it in the small hours."""

    name: str = "day"
    peak: float = 20.0
    low_ratio: float = 0.25
    excess_ratio: float = 0.15
    best_effort: float = 6.0
    bursts: tuple[Burst, ...] = (Burst(10.0, 2400.0, 0.45), Burst(15.0, 1800.0, 0.30))
    loss_at_h: float | None = 14.0
    cold_start_s: float = 600.0
    dark_h: tuple[float, float] | None = None
    begin_h: float = 0.0
    hours: float = 24.0
    noise: float = 0.04
    first_full: float = 0.6
    """How full of contracts the workers are that are there at the begin."""


@dataclass(slots=True)
class Offered:
    """Demand by class at one step: what it is, and what a counter over ten seconds shows of it."""

    real: Demand
    seen: Demand


class Demands:
    """The demand of a day, the same for every policy: slow noise, and the grain of single requests on top of it."""

    def __init__(self, day: Day, seed: int | str) -> None:
        self._day = day
        self._chance = chance = random.Random(f"{seed}:day")  # noqa: S311 - repeatable on purpose
        self._wander = [0.0, 0.0, 0.0]
        self._bursts = [
            (burst.at_h * HOUR_S + chance.uniform(-1800.0, 1800.0), burst, burst.factor * chance.uniform(0.8, 1.2))
            for burst in day.bursts
        ]

    def __iter__(self) -> Iterator[tuple[float, Offered]]:
        day = self._day
        for step in range(int(day.hours * HOUR_S / STEP_S)):
            now = day.begin_h * HOUR_S + step * STEP_S
            yield now, self.draw(now)

    def draw(self, now: float) -> Offered:
        """The demand at second ``now`` of the day; to be called in order."""
        day, chance = self._day, self._chance
        keep = math.exp(-STEP_S / 1200.0)
        spread = day.noise * math.sqrt(1.0 - keep * keep)
        self._wander = [keep * value + chance.gauss(0.0, spread) for value in self._wander]
        sun = day.low_ratio + (1.0 - day.low_ratio) * 0.5 * (1.0 - math.cos(2.0 * math.pi * (now / DAY_S - 2.0 / 24.0)))
        guaranteed = day.peak * GUARANTEED * sun * self._rise(now) * (1.0 + self._wander[0])
        excess = day.peak * GUARANTEED * day.excess_ratio * sun * (1.0 + 3.0 * self._wander[1])
        moon = 0.5 * (1.0 + math.cos(2.0 * math.pi * (now / DAY_S - 20.0 / 24.0)))
        best_effort = day.best_effort * (0.3 + 0.7 * moon) * (1.0 + 3.0 * self._wander[2])
        real = Demand(max(guaranteed, 0.0), max(excess, 0.0), max(best_effort, 0.0))
        return Offered(real, Demand(*(self._blur(one) for one in (real.guaranteed, real.excess, real.best_effort))))

    def _rise(self, now: float) -> float:
        rise = 1.0
        for begin, burst, factor in self._bursts:
            up = min((now - begin) / burst.ramp_s, 1.0)
            down = min((begin + burst.length_s - now) / burst.ramp_s, 1.0)
            rise += factor * max(min(up, down), 0.0)
        return rise

    def _blur(self, mean: float) -> float:
        count = mean * REQUESTS_PER_WORK * STEP_S
        spread = math.sqrt(max(count, 1e-9) * (1.0 + WORK_CV * WORK_CV)) / (REQUESTS_PER_WORK * STEP_S)
        return max(self._chance.gauss(mean, spread), 0.0)


@dataclass(slots=True)
class Signals:
    """What a scaler may know at a decision: means over the half minute before it, counts of the moment."""

    now: float
    ready: int
    starting: int
    draining: int
    demand: Demand
    queued: float
    queued_within: float
    engine_waiting: float
    ttft_s: float
    held_within: float
    burn: Burn
    dark: bool


class Scaler(Protocol):
    """Decides the number of workers; ``None`` leaves it."""

    def choose(self, signals: Signals) -> int | None: ...


class Pool:
    """Workers that serve, start and drain, moved towards what is desired as Kubernetes does it."""

    def __init__(self, ready: int, cold_start_s: float, chance: random.Random) -> None:
        self.ready = self.desired = ready
        self.starting: list[float] = []
        self.draining: list[float] = []
        self._cold_start_s, self._chance = cold_start_s, chance

    def move(self, now: float) -> None:
        """Whoever is ready serves, whoever is empty goes, and what lacks is started."""
        came = [at for at in self.starting if at <= now]
        if came:
            self.ready += len(came)
            self.starting = [at for at in self.starting if at > now]
        if self.draining and self.draining[0] <= now:
            self.draining = [at for at in self.draining if at > now]
        have = self.ready + len(self.starting)
        for _ in range(have, self.desired):
            self.starting.append(now + self._cold_start_s * self._chance.uniform(0.85, 1.05))
        for _ in range(self.desired, have):
            if self.starting:
                self.starting.remove(max(self.starting))
            else:
                self.ready -= 1
                self.draining.append(now + DRAIN_S)

    def lose(self) -> None:
        """A worker dies; another one is started in its place."""
        self.ready = max(self.ready - 1, 0)

    @property
    def paid(self) -> int:
        """Machines on the bill."""
        return self.ready + len(self.starting) + len(self.draining)


@dataclass(slots=True)
class DayFigures:
    """What came of a day. Work is in worker-seconds; a direction change is a rise after a fall or the reverse."""

    offered: float = 0.0
    missed: float = 0.0
    missed_by_fault: float = 0.0
    excess_offered: float = 0.0
    excess_good: float = 0.0
    best_effort_offered: float = 0.0
    best_effort_good: float = 0.0
    worker_hours: float = 0.0
    direction_changes_most: int = 0
    """Most within any hour."""
    falls_in_the_dark: int = 0
    days: int = 1
    trail: list[tuple[float, float, float, int, int, float]] = field(default_factory=list)
    """A line a minute: hour, demand within contracts, all demand, target, ready, miss ratio."""

    @property
    def attainment(self) -> float:
        """Good over offered, within contracts."""
        return 1.0 - self.missed / self.offered

    def add(self, other: "DayFigures") -> None:
        """Take in another day."""
        for name in (
            "offered", "missed", "missed_by_fault", "excess_offered", "excess_good", "best_effort_offered",
            "best_effort_good", "worker_hours", "falls_in_the_dark", "days",
        ):  # fmt: skip
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.direction_changes_most = max(self.direction_changes_most, other.direction_changes_most)


class _Ledger:
    """Sums by step, so that any window is a difference."""

    def __init__(self) -> None:
        self._sums = [(0.0, 0.0, 0.0)]

    def note(self, offered: float, short: float, faulty: float) -> None:
        last = self._sums[-1]
        self._sums.append((last[0] + offered, last[1] + short, last[2] + faulty))

    def read(self) -> Burn:
        """Burn rates of the moment; before the day began the budget did not burn."""
        return Burn(
            self._rate(300.0, 1), self._rate(1800.0, 1), self._rate(3600.0, 1), self._rate(6 * HOUR_S, 1),
            self._rate(72 * HOUR_S, 1), self._rate(3600.0, 2),
        )  # fmt: skip

    def _rate(self, window_s: float, kinds: int) -> float:
        last = self._sums[-1]
        first = self._sums[max(len(self._sums) - 1 - int(window_s / STEP_S), 0)]
        offered = last[0] - first[0]
        bad = sum(last[kind] - first[kind] for kind in range(1, kinds + 1))
        return bad / offered / (1.0 - OBJECTIVE) if offered > 0.0 else 0.0


_GRAIN = 0.01


class Curve:
    """The table of :mod:`loadtests.sim.curves`, dense enough to be looked up."""

    def __init__(self, points: list[Point]) -> None:
        self._most = points[-1].load
        self._dense = [interpolate(points, index * _GRAIN) for index in range(int(self._most / _GRAIN) + 1)]

    def at(self, load: float) -> Point:
        """The steady state at a load."""
        return self._dense[min(int(load / _GRAIN + 0.5), len(self._dense) - 1)]

    def miss(self, within: float, ready: int) -> float:
        """Share of requests within contracts that miss when so much of them is offered to so many workers."""
        if ready <= 0:
            return 1.0
        load = within / ready / GUARANTEED
        miss = self.at(load).miss
        return miss if load <= self._most else 1.0 - (1.0 - miss) * self._most / load


def simulate_day(day: Day, scaler: Scaler, curve: Curve, seed: int, keep_trail: bool = False) -> DayFigures:
    """One day under one policy."""
    figures, ledger = DayFigures(), _Ledger()
    pool: Pool | None = None
    targets: list[tuple[float, int]] = []
    seen: list[Demand] = []
    lost = False
    for now, offered in Demands(day, seed):
        real = offered.real
        if pool is None:
            first = math.ceil(real.guaranteed / day.first_full) + 1
            pool = Pool(first, day.cold_start_s, random.Random(f"{seed}:pool"))  # noqa: S311 - repeatable on purpose
        pool.move(now)
        broken = 0.0
        if day.loss_at_h is not None and not lost and now >= day.loss_at_h * HOUR_S:
            lost = True
            broken = real.guaranteed / max(pool.ready, 1) * 6.0  # what it had in hand: six seconds of its share
            pool.lose()
        state, missed = _serve(figures, curve, real, pool, broken)
        ledger.note(real.guaranteed * STEP_S, missed, broken)
        seen.append(offered.seen)
        if now % DECIDE_S == 0.0:
            dark = day.dark_h is not None and day.dark_h[0] * HOUR_S <= now < day.dark_h[1] * HOUR_S
            signals = _look(now, pool, seen, state, ledger, dark)
            seen = []
            before = pool.desired
            choice = scaler.choose(signals)
            if choice is not None:
                pool.desired = choice
            targets.append((now, pool.desired))
            figures.falls_in_the_dark += dark and pool.desired < before
        if keep_trail and now % 60.0 == 0.0:
            total = real.guaranteed + real.excess + real.best_effort
            ratio = missed / (real.guaranteed * STEP_S)
            figures.trail.append((now / HOUR_S, real.guaranteed, total, pool.desired, pool.ready, ratio))
    figures.direction_changes_most = count_direction_changes(targets)
    return figures


def _serve(figures: DayFigures, curve: Curve, real: Demand, pool: Pool, broken: float) -> tuple[Point, float]:
    """Let a step pass: what is missed, what beyond contracts is served, and the state that it leaves."""
    total = real.guaranteed + real.excess + real.best_effort
    state = curve.at(total / max(pool.ready, 1))
    missed = curve.miss(real.guaranteed, pool.ready) * real.guaranteed * STEP_S
    figures.offered += real.guaranteed * STEP_S
    figures.missed += missed + broken
    figures.missed_by_fault += broken
    figures.excess_offered += real.excess * STEP_S
    figures.excess_good += real.excess * STEP_S * state.excess_good
    figures.best_effort_offered += real.best_effort * STEP_S
    figures.best_effort_good += real.best_effort * STEP_S * state.best_effort_good
    figures.worker_hours += pool.paid * STEP_S / HOUR_S
    return state, missed


def _look(now: float, pool: Pool, seen: list[Demand], state: Point, ledger: _Ledger, dark: bool) -> Signals:
    count = len(seen)
    demand = Demand(
        sum(one.guaranteed for one in seen) / count,
        sum(one.excess for one in seen) / count,
        sum(one.best_effort for one in seen) / count,
    )
    return Signals(
        EPOCH_S + now, pool.ready, len(pool.starting), len(pool.draining), demand, state.queued * pool.ready,
        state.queued_within * pool.ready, state.engine_waiting * pool.ready, state.ttft_s, state.held_within,
        ledger.read(), dark,
    )  # fmt: skip


def count_direction_changes(targets: list[tuple[float, int]], window_s: float = HOUR_S) -> int:
    """The most turns within any window of that length."""
    turns: list[float] = []
    direction = 0
    for (_, before), (at, after) in pairwise(targets):
        towards = (after > before) - (after < before)
        if towards and direction and towards != direction:
            turns.append(at)
        direction = towards or direction
    return max((sum(1 for other in turns if at <= other < at + window_s) for at in turns), default=0)
