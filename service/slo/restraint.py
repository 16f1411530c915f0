"""Decides how far traffic that may wait is held back from the workers, by how fast dearer tiers spend their budgets.

A *ceiling* is the share of a worker's permits up to which traffic of a band may be sent there. A tier's *strain* is by
how much it spends its budget for want of capacity faster than evenly, over a short and a long window at once:

    strain = clamp((min(burn over 5 min, burn over 1 h) - 1) / (6 - 1), 0, 1)
    ceiling(band) = 1 - strain * (1 - least(band)),  in steps of a tenth

A budget that is spent evenly or more slowly holds nobody back: what is left of it is for use, not for keeping. Best
effort feels the strain of every tier, excess too, and less; a tier within its contract feels that of dearer tiers only,
and only what exceeds its own: whoever burns as fast as the one above has nothing to give.

Ceilings fall at once, and rise by a tenth at a time after a calm of two minutes, so that they do not swing with the
burn that they cure.

What it does, in the detailed simulator with the mix of ``loadtests.sim.curves`` on six workers for two minutes
(``tests/scenarios/test_restraint.py``): at 1.3 times the capacity priority missed 25 promises without ceilings and 16
with those of full strain, at 1.6 times 106 and 13.

*Trade-offs*: permits that are kept free are idle until a dearer request comes; misses that other faults cause do not
strain, so a sick worker holds nobody back.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from service.domain.tier import Tier
from service.domain.units import TierName

EVEN, FULL = 1.0, 6.0
"""Burn rates at which strain begins and is complete: even spending, and the slower of the two that page."""

_STEP = 0.1
_CALM_S = 120.0
"""Of calm before a ceiling rises by a step. A guess: less than half of the short window."""


@dataclass(frozen=True, slots=True)
class RestraintConfig:
    """``*_least``: ceilings at full strain. A cheaper tier within its contract keeps most of its share."""

    best_effort_least: float = 0.0
    excess_least: float = 0.3
    within_least: float = 0.7


@dataclass(frozen=True, slots=True)
class Strain:
    """Burn rates of one tier, for want of capacity; ``None``: nothing happened."""

    tier: TierName
    short: float | None
    long: float | None

    @property
    def value(self) -> float:
        """0 while the budget is spent evenly at most, 1 at full strain."""
        if self.short is None or self.long is None:
            return 0.0
        return min(max((min(self.short, self.long) - EVEN) / (FULL - EVEN), 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """By rank of tier: of traffic within contracts and in excess of them; and of best effort. 1 holds nobody back."""

    within: Mapping[int, float] = field(default_factory=dict)
    excess: Mapping[int, float] = field(default_factory=dict)
    best_effort: float = 1.0


class Restraint:
    """One gateway's restraint. Moments must not go back."""

    def __init__(self, config: RestraintConfig = RestraintConfig()) -> None:
        self._config = config
        self._tenths: dict[tuple[str, int], int] = {}
        self._changed_at: dict[tuple[str, int], float] = {}

    def observe(self, tiers: Iterable[Tier], strains: Iterable[Strain], now: float) -> Ceilings:
        """The ceilings that follow from the present strains."""
        config = self._config
        by_tier = {strain.tier: strain.value for strain in strains}
        paid = [tier for tier in tiers if not tier.best_effort]
        most = max((by_tier.get(tier.name, 0.0) for tier in paid), default=0.0)
        within: dict[int, float] = {}
        excess: dict[int, float] = {}
        for tier in paid:
            dearer = max((by_tier.get(other.name, 0.0) for other in paid if other.rank < tier.rank), default=0.0)
            felt = max(dearer - by_tier.get(tier.name, 0.0), 0.0)
            within[tier.rank] = self._settle(("within", tier.rank), felt, config.within_least, now)
            excess[tier.rank] = self._settle(("excess", tier.rank), most, config.excess_least, now)
        best_effort = self._settle(("best_effort", 0), most, config.best_effort_least, now)
        return Ceilings(within, excess, best_effort)

    def _settle(self, which: tuple[str, int], strain: float, least: float, now: float) -> float:
        wanted = round((1.0 - strain * (1.0 - least)) / _STEP)
        present = self._tenths.get(which, round(1.0 / _STEP))
        if wanted < present:
            self._tenths[which] = present = wanted
            self._changed_at[which] = now
        elif wanted == present:
            self._changed_at[which] = now
        elif now - self._changed_at.get(which, now) >= _CALM_S:
            self._tenths[which] = present = present + 1
            self._changed_at[which] = now
        return present * _STEP
