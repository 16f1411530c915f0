"""Keeps a gateway's own burn windows: how fast each budget is being spent, without asking Prometheus.

Theory of operation: the counters of events only grow, so a window's events are the difference of two readings.
Readings are taken at a steady pace; each window keeps 120 of them, evenly apart, and a moment between two of them is
interpolated. What the gateways together spend is their counters' sum, which Prometheus forms; this is what one gateway
has seen.

*Burn rate* over a window = (bad / valid events) / (1 - objective); 1 spends the budget exactly in its period (The Site
Reliability Workbook, chapter 5). *Budget left* = 1 - bad / ((1 - objective) x valid), over the period.

Trade-offs: a gateway that has just started knows only what came since; its long windows are as short as its life, and
a young gateway's rates are those of few events, for which the gates of the alerts stand here too. A replica that gets
other requests than its neighbours has another burn rate than they.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from service.domain.units import TierName
from service.slo.objective import Indicator, Objective, Speed, TierObjectives
from service.slo.window import WindowPlan

SLOTS = 120
"""Readings per window. Interpolation is off by at most the bend of the counters within one of them: 2.5 s of 5 minutes,
30 s of an hour."""

Key = tuple[TierName, Indicator]
Counts = Mapping[Key, tuple[int, int]]
"""Bad and valid events so far."""


@dataclass(frozen=True, slots=True)
class BudgetStats:
    """One objective at the moment of the last reading. ``burn_rates`` by window in seconds; ``None`` where nothing
    happened, as is ``left_ratio``. ``burning`` are the speeds of which an alert's conditions are met here."""

    objective: Objective
    burn_rates: Mapping[int, float | None]
    left_ratio: float | None
    burning: tuple[Speed, ...]


class BurnRates:
    """Reads cumulative counts from time to time, and tells rates over all windows of ``plan``."""

    def __init__(self, plan: WindowPlan, tiers: Iterable[TierObjectives], now: float) -> None:
        self._plan = plan
        self._places: dict[Key, int] = {}
        self._tiers: tuple[TierObjectives, ...] = ()
        self._now = now
        self._latest: Sequence[int] = ()
        self._rings = {window_s: _Ring(window_s, now) for window_s in (*plan.windows_s, plan.period_s)}
        self.reconfigure(tiers)

    def reconfigure(self, tiers: Iterable[TierObjectives]) -> None:
        """Other promises; what has been counted stays, and is measured by them from here on."""
        self._tiers = tuple(tiers)
        for tier in self._tiers:
            for objective in tier.objectives:
                self._places.setdefault((tier.tier, objective.indicator), 2 * len(self._places))

    def observe(self, now: float, counts: Counts) -> None:
        """Take a reading. Called every few seconds at most; more often changes nothing but the price."""
        reading = [0] * (2 * len(self._places))
        for key, place in self._places.items():
            reading[place], reading[place + 1] = counts.get(key, (0, 0))
        self._now, self._latest = now, reading
        for ring in self._rings.values():
            ring.offer(now, reading)

    def find_burn_rate(self, objective: Objective, window_s: int) -> float | None:
        """How many times as fast as it may the budget is being spent over the last ``window_s``; ``None`` if nothing
        happened then."""
        bad, valid = self._find_increase(objective, window_s)
        return bad / valid / objective.budget_ratio if valid > 0 else None

    def count_bad(self, objective: Objective, window_s: int) -> float:
        """Bad events over the last ``window_s``."""
        return self._find_increase(objective, window_s)[0]

    def find_budget_left(self, objective: Objective) -> float | None:
        """Share of the period's budget that is left, below zero if it is overspent; ``None`` if nothing happened."""
        bad, valid = self._find_increase(objective, self._plan.period_s)
        return 1.0 - bad / (objective.budget_ratio * valid) if valid > 0 else None

    def is_burning(self, tier: TierObjectives, objective: Objective, speed: Speed) -> bool:
        """Whether the conditions of this speed's alert are met by what this gateway has seen."""
        _, of_period = self._find_increase(objective, self._plan.period_s)
        for pair in self._plan.pairs_of(speed):
            bad, valid = self._find_increase(objective, pair.long_s)
            short_bad, short_valid = self._find_increase(objective, pair.short_s)
            threshold = pair.factor * objective.budget_ratio
            share = pair.budget_share(self._plan.period_s) * objective.budget_ratio * of_period
            if (
                bad > threshold * valid
                and short_bad > threshold * short_valid
                and bad >= tier.bad_events_min
                and bad >= share
            ):
                return True
        return False

    def stats(self) -> tuple[BudgetStats, ...]:
        """All objectives at the moment of the last reading."""
        return tuple(
            BudgetStats(
                objective,
                {window_s: self.find_burn_rate(objective, window_s) for window_s in self._plan.windows_s},
                self.find_budget_left(objective),
                tuple(speed for speed in Speed if self.is_burning(tier, objective, speed)),
            )
            for tier in self._tiers
            for objective in tier.objectives
        )

    def _find_increase(self, objective: Objective, window_s: int) -> tuple[float, float]:
        place = self._places[objective.tier, objective.indicator]
        if place >= len(self._latest):
            return 0.0, 0.0
        bad, valid = self._rings[window_s].read(self._now - window_s, place)
        return self._latest[place] - bad, self._latest[place + 1] - valid


class _Ring:
    """Readings of one window. There is always one as old as the window, or from the start, when all was zero."""

    __slots__ = ("_pace_s", "_readings", "_times", "_window_s")

    def __init__(self, window_s: int, now: float) -> None:
        self._window_s = window_s
        self._pace_s = window_s / SLOTS
        self._times = [now]
        self._readings: list[Sequence[int]] = [()]

    def offer(self, now: float, reading: Sequence[int]) -> None:
        if now - self._times[-1] < self._pace_s:
            return
        self._times.append(now)
        self._readings.append(reading)
        old = bisect_right(self._times, now - self._window_s) - 1
        if old > 0:
            del self._times[:old], self._readings[:old]

    def read(self, moment: float, place: int) -> tuple[float, float]:
        """Bad and valid events until ``moment``, interpolated. The latest reading here is younger than the window."""
        after = bisect_right(self._times, moment)
        if after == 0:
            return self._look(0, place)
        bad, valid = self._look(after - 1, place)
        earlier_at, later_at = self._times[after - 1], self._times[after]
        share = (moment - earlier_at) / (later_at - earlier_at)
        later_bad, later_valid = self._look(after, place)
        return bad + share * (later_bad - bad), valid + share * (later_valid - valid)

    def _look(self, index: int, place: int) -> tuple[float, float]:
        """A reading that was taken before an objective was known has nothing of it: its counters were at zero."""
        reading = self._readings[index]
        return (reading[place], reading[place + 1]) if place < len(reading) else (0.0, 0.0)
