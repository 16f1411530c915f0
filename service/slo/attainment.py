"""Adds verdicts up: counts by SLI and reason, five-minute intervals, and sketches of how long things took.

A :class:`Tally` holds any set of requests; two are added with :meth:`Tally.merge`. Ratios are made of sums, never of
ratios. An interval is five minutes of UTC; it is down when its share of bad requests is above what the contract allows,
and up when it had no traffic.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from service.slo.sketch import Sketch
from service.slo.verdict import Standing

INTERVAL_S = 300
INTERVALS_AN_HOUR = 12

SLIS = ("availability", "ttft", "tpot", "all")
"""In the order in which their results are written."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """What is added of one request. ``slis`` has the letter of each result in the order of :data:`SLIS`;
    ``interval`` is the number of its five minutes since 1970. ``lost`` is not 0 where it only stands for so many
    requests of which nothing else is known."""

    standing: str
    reason: str
    slis: str
    interval: int
    ttft_s: float | None = None
    tpot_s: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    marks: tuple[str, ...] = ()
    lost: int = 0


@dataclass(slots=True)
class Tally:
    """Sums over requests. ``good`` and ``bad`` are by SLI in the order of :data:`SLIS`, ``intervals`` good and bad
    requests (availability) by number of the interval, ``reasons`` by standing and reason. ``lost`` requests left
    nothing but ``gaps`` in the record."""

    requests: int = 0
    good: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    bad: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    standings: Counter[str] = field(default_factory=Counter)
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)
    intervals: dict[int, list[int]] = field(default_factory=dict)
    ttft: Sketch = field(default_factory=Sketch)
    tpot: Sketch = field(default_factory=Sketch)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    gaps: int = 0
    lost: int = 0

    def add(self, one: Weighed) -> None:
        """Count one request."""
        if one.lost:
            self.gaps += 1
            self.lost += one.lost
            return
        self.requests += 1
        slis, good, bad = one.slis, self.good, self.bad
        for place in (0, 1, 2, 3):
            code = slis[place]
            if code == "g":
                good[place] += 1
            elif code == "b":
                bad[place] += 1
        self.standings[one.standing] += 1
        if one.reason:
            self.reasons[one.standing, one.reason] += 1
        for mark in one.marks:
            self.marks[mark] += 1
        available = slis[0]
        if available in "gb":
            pair = self.intervals.setdefault(one.interval, [0, 0])
            pair[available == "b"] += 1
        if one.ttft_s is not None:
            self.ttft.add(one.ttft_s)
        if one.tpot_s is not None:
            self.tpot.add(one.tpot_s)
        self.prompt_tokens += one.prompt_tokens
        self.cached_tokens += one.cached_tokens
        self.output_tokens += one.output_tokens

    def merge(self, other: "Tally") -> None:
        """Add everything that ``other`` counted."""
        self.requests += other.requests
        for place in range(len(SLIS)):
            self.good[place] += other.good[place]
            self.bad[place] += other.bad[place]
        self.standings.update(other.standings)
        self.reasons.update(other.reasons)
        self.marks.update(other.marks)
        for interval, (good, bad) in other.intervals.items():
            pair = self.intervals.setdefault(interval, [0, 0])
            pair[0] += good
            pair[1] += bad
        self.ttft.merge(other.ttft)
        self.tpot.merge(other.tpot)
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.output_tokens += other.output_tokens
        self.gaps += other.gaps
        self.lost += other.lost

    def attained(self, sli: str) -> float | None:
        """Good requests of those that were good or bad, 0..1; ``None`` if there were none."""
        place = SLIS.index(sli)
        return compute_ratio(self.good[place], self.bad[place])

    def excluded(self) -> dict[str, int]:
        """Excluded requests by reason."""
        excluded = Standing.EXCLUDED.value
        return {reason: count for (standing, reason), count in sorted(self.reasons.items()) if standing == excluded}


def compute_ratio(good: int, bad: int) -> float | None:
    """Good of all that counted, 0..1; ``None`` if nothing did."""
    return good / (good + bad) if good + bad else None


def sum_up(tallies: Iterable[Tally]) -> Tally:
    """All of them together."""
    total = Tally()
    for one in tallies:
        total.merge(one)
    return total


def count_down_intervals(intervals: Mapping[int, list[int]], objective: float) -> int:
    """Five-minute intervals whose share of bad requests is above ``1 - objective``."""
    return sum(bad > (1.0 - objective) * (good + bad) for good, bad in intervals.values())


def compute_uptime(intervals: Mapping[int, list[int]], objective: float, length_s: float) -> float:
    """Share of the five-minute intervals of ``length_s`` that were up, 0..1."""
    return 1.0 - count_down_intervals(intervals, objective) * INTERVAL_S / length_s


def compute_budget_left(good: int, bad: int, objective: float) -> float:
    """Share of the error budget that is left, 1 when nothing was bad, below 0 when it is overdrawn. The budget is
    event-weighted: ``1 - objective`` of the requests that counted so far."""
    budget = (1.0 - objective) * (good + bad)
    return 1.0 if budget == 0.0 else 1.0 - bad / budget
