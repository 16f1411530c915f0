"""Joins what is counted with what is promised: each budget's burn, as figures and for operators."""

from collections.abc import Iterable, Iterator
from typing import Any

from service.domain.tier import Tier
from service.slo.burnrate import BudgetStats, BurnRates
from service.slo.objective import BAD_EVENTS_MIN, Indicator, derive_objectives
from service.slo.restraint import Strain
from service.slo.window import HOUR_S, THIRTY_DAYS, WindowPlan, write_duration
from service.telemetry.kinds import Family
from service.telemetry.metrics import BUDGET_LEFT, BURN_RATE
from service.telemetry.slo_events import SloEvents

_SHORT_PLAN = WindowPlan("restraint", HOUR_S, HOUR_S, (THIRTY_DAYS.pairs[0],))
"""Windows by which traffic is held back: those of the fastest alert, so that it has begun before anybody is called."""


class Budgets:
    """Counters of events, and the burn rates of the last reading taken of them."""

    def __init__(self, tiers: Iterable[Tier], model: str, now: float, plan: WindowPlan = THIRTY_DAYS) -> None:
        self._tiers = tiers = tuple(tiers)
        self._events = SloEvents((tier.name for tier in tiers), model)
        self._rates = BurnRates(plan, map(derive_objectives, tiers), now)
        self._short = BurnRates(_SHORT_PLAN, map(derive_objectives, tiers), now)

    @property
    def events(self) -> SloEvents:
        """The accountant."""
        return self._events

    def reconfigure(self, tiers: Iterable[Tier]) -> None:
        """Other promises are in force."""
        self._tiers = tiers = tuple(tiers)
        self._events.reconfigure(tier.name for tier in tiers)
        self._rates.reconfigure(map(derive_objectives, tiers))
        self._short.reconfigure(map(derive_objectives, tiers))

    def observe(self, now: float) -> None:
        """Take a reading."""
        self._rates.observe(now, self._events.counts())
        self._short.observe(now, self._events.short_counts())

    def stats(self) -> tuple[BudgetStats, ...]:
        """All objectives at the last reading."""
        return self._rates.stats()

    def strains(self) -> tuple[Strain, ...]:
        """How fast each tier spends its budget for want of capacity, by what this gateway has seen; fewer misses than
        alerts need are chance."""
        pair, found = _SHORT_PLAN.pairs[0], []
        for tier in self._tiers:
            objective = derive_objectives(tier).find(Indicator.ALL)
            if objective is not None and self._short.count_bad(objective, pair.short_s) >= BAD_EVENTS_MIN:
                rates = [self._short.find_burn_rate(objective, window_s) for window_s in (pair.short_s, pair.long_s)]
                found.append(Strain(tier.name, *rates))
        return tuple(found)

    def misses(self) -> Iterator[Family]:
        """What was missed, by cause."""
        return self._events.misses()

    def families(self) -> Iterator[Family]:
        """All figures."""
        yield from self._events.families()
        stats = self.stats()
        yield Family(
            BURN_RATE,
            [
                ((one.objective.tier, one.objective.indicator.value, write_duration(window_s)), rate)
                for one in stats
                for window_s, rate in one.burn_rates.items()
                if rate is not None
            ],
        )
        yield Family(
            BUDGET_LEFT,
            [
                ((one.objective.tier, one.objective.indicator.value), one.left_ratio)
                for one in stats
                if one.left_ratio is not None
            ],
        )

    def describe(self) -> list[dict[str, Any]]:
        """The same for operators."""
        return [
            {
                "tier": one.objective.tier,
                "slo": one.objective.indicator.value,
                "objective": one.objective.target,
                "budget_left_ratio": one.left_ratio,
                "burn_rates": {write_duration(window_s): rate for window_s, rate in one.burn_rates.items()},
                "burning": [speed.value for speed in one.burning],
            }
            for one in self.stats()
        ]
