"""Holds the windows over which burn rates are measured, and what each pair of them spends of the budget."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from service.slo.objective import Objective, Speed

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
_UNITS = (("d", DAY_S), ("h", HOUR_S), ("m", MINUTE_S), ("s", 1))


@dataclass(frozen=True, slots=True)
class WindowPair:
    """One condition: the burn rate is above ``factor`` over ``long_s`` and over ``short_s`` seconds. The long window
    says that it matters, the short one that it goes on."""

    speed: Speed
    long_s: int
    short_s: int
    factor: float

    def budget_share(self, period_s: int) -> float:
        """Share of the period's budget that is gone when a steady burn at ``factor`` has lasted the long window:
        factor x long / period (The Site Reliability Workbook, chapter 5, "Alerting on SLOs", table 5-8)."""
        return self.factor * self.long_s / period_s


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """The pairs of one period. ``bucket_s`` is the window whose sums are added up to the period's, which is too long to
    be read from raw samples at each evaluation."""

    name: str
    period_s: int
    bucket_s: int
    pairs: tuple[WindowPair, ...]

    @property
    def windows_s(self) -> tuple[int, ...]:
        """All windows of the pairs, each once, ascending; without the period."""
        return tuple(sorted({self.bucket_s, *(w for pair in self.pairs for w in (pair.long_s, pair.short_s))}))

    def pairs_of(self, speed: Speed) -> tuple[WindowPair, ...]:
        """The pairs that mean this speed."""
        return tuple(pair for pair in self.pairs if pair.speed is speed)

    def shrink(self, divisor: int) -> "WindowPlan":
        """All windows and the period divided: the same plan in quick motion, for drills.

        Raises:
            ValueError: a window is no whole number of seconds afterwards.
        """
        if any(length % divisor for length in (*self.windows_s, self.period_s)):
            raise ValueError(f"a window of plan {self.name} cannot be divided by {divisor} into whole seconds")
        pairs = (replace(p, long_s=p.long_s // divisor, short_s=p.short_s // divisor) for p in self.pairs)
        return WindowPlan(self.name, self.period_s // divisor, self.bucket_s // divisor, tuple(pairs))


THIRTY_DAYS = WindowPlan(
    "30d",
    30 * DAY_S,
    HOUR_S,
    (
        WindowPair(Speed.FAST, HOUR_S, 5 * MINUTE_S, 14.4),
        WindowPair(Speed.FAST, 6 * HOUR_S, 30 * MINUTE_S, 6.0),
        WindowPair(Speed.SLOW, DAY_S, 2 * HOUR_S, 3.0),
        WindowPair(Speed.SLOW, 3 * DAY_S, 6 * HOUR_S, 1.0),
    ),
)
"""What a gateway watches its own budgets by: ``slo/windows/30d.yaml``, which names the source of the numbers; a test
holds the two together."""


def write_duration(length_s: int) -> str:
    """Seconds as Prometheus writes them, in one unit: ``5m``, ``30d``, ``90s``."""
    for unit, size in _UNITS[:-1]:
        if length_s >= size and length_s % size == 0:
            return f"{length_s // size}{unit}"
    return f"{length_s}s"


def read_duration(text: str) -> int:
    """The opposite.

    Raises:
        ValueError: not a whole number of one of the units s, m, h, d.
    """
    sizes = dict(_UNITS)
    if not (text[:-1].isascii() and text[:-1].isdigit() and text[-1:] in sizes and int(text[:-1])):
        raise ValueError(f"{text!r} is not a duration such as 5m, 1h or 30d")
    return int(text[:-1]) * sizes[text[-1]]


def find_unreachable(plan: WindowPlan, objectives: Iterable[Objective]) -> list[str]:
    """Alerts that could never fire, one line each: a burn rate above factor would need more than all events to be bad,
    which is so where factor x (1 - objective) >= 1."""
    return [
        f"{objective.tier}.{objective.indicator}: factor {pair.factor:g} x (1 - {objective.target:g}) is "
        f"{pair.factor * objective.budget_ratio:.3g}: the {write_duration(pair.long_s)} alert could never fire"
        for objective in objectives
        for pair in plan.pairs
        if objective.severity_of(pair.speed) is not None and not pair.factor * objective.budget_ratio < 1.0
    ]


def find_faults(plan: WindowPlan) -> list[str]:
    """What is wrong with a plan by itself, one line each."""
    found = []
    for pair in plan.pairs:
        name = f"{write_duration(pair.long_s)}/{write_duration(pair.short_s)}"
        if pair.short_s >= pair.long_s:
            found.append(f"pair {name}: the short window is not shorter than the long one")
        if not (math.isfinite(pair.factor) and pair.factor > 0.0):
            found.append(f"pair {name}: factor {pair.factor} is not a positive number")
        if pair.long_s > plan.period_s:
            found.append(f"pair {name}: the long window is longer than the period")
    if plan.period_s % plan.bucket_s:
        found.append(f"the period is no whole number of buckets of {write_duration(plan.bucket_s)}")
    return found
