"""Holds what a tier promises as objectives: which share of its requests has to be good, by which indicator."""

from dataclasses import dataclass
from enum import StrEnum

from service.domain.tier import Tier
from service.domain.units import TierName

BAD_EVENTS_MIN = 3
"""Bad events in the long window below which nobody is called. Own simulation, 12 seeds of 30 days, healthy service at
0.05 % errors, 10 requests an hour: 3.4 false pages a month without, 0.0 with; a full outage is found after 13 minutes
instead of 6."""

PROBE_BELOW_PER_HOUR = 20.0
"""Requests an hour below which the prober's word counts: with three bad events needed, an outage at that rate is found
after 9 minutes, no later than by a probe every 3 minutes. A choice, not a measurement."""


class Indicator(StrEnum):
    """What is judged of a request: the ``slo`` label of ``sluice_slo_events_total``."""

    AVAILABILITY = "availability"
    """Neither refused nor failed by our fault."""

    TTFT = "ttft"
    """First token within the target of its prompt's size class."""

    TPOT = "tpot"
    """Mean time per output token within target; judged from two tokens on."""

    ALL = "all"
    """Met everything that was promised: goodput."""


class Speed(StrEnum):
    """How fast a budget is being spent."""

    FAST = "fast"
    SLOW = "slow"


class Severity(StrEnum):
    """Who is told."""

    PAGE = "page"
    TICKET = "ticket"


@dataclass(frozen=True, slots=True)
class Objective:
    """``target`` is the promised share of good among valid events, in (0, 1). ``fast`` and ``slow`` say who is told
    when the budget is spent at that speed; ``None``: nobody."""

    tier: TierName
    indicator: Indicator
    target: float
    fast: Severity | None = Severity.PAGE
    slow: Severity | None = Severity.TICKET

    @property
    def budget_ratio(self) -> float:
        """The error budget: the share of events that may be bad. Rounded to 12 digits, so that 1 - 0.999 is 0.001."""
        return round(1.0 - self.target, 12)

    def severity_of(self, speed: Speed) -> Severity | None:
        """Who is told at this speed."""
        return self.fast if speed is Speed.FAST else self.slow


@dataclass(frozen=True, slots=True)
class TierObjectives:
    """All that is promised in one tier. ``ttft_targets_s`` and ``tpot_target_s`` are those of
    :class:`~service.domain.tier.Tier`; ``windows`` names the window plan."""

    tier: TierName
    objectives: tuple[Objective, ...] = ()
    ttft_targets_s: tuple[tuple[int, float], ...] = ()
    tpot_target_s: float | None = None
    windows: str = "30d"
    bad_events_min: int = BAD_EVENTS_MIN
    probe_below_per_hour: float = PROBE_BELOW_PER_HOUR

    @property
    def best_effort(self) -> bool:
        """Nothing is promised."""
        return not self.objectives

    def find(self, indicator: Indicator) -> Objective | None:
        """The objective by this indicator, if there is one."""
        return next((objective for objective in self.objectives if objective.indicator is indicator), None)


def derive_objectives(tier: Tier) -> TierObjectives:
    """What ``tier`` promises as it is configured. Its availability is one objective; its attainment is the objective of
    each latency it has a target for, and of all together."""
    objectives: list[Objective] = []
    if tier.availability is not None:
        objectives.append(Objective(tier.name, Indicator.AVAILABILITY, tier.availability))
    if tier.attainment is not None:
        judged = [Indicator.TTFT] if tier.ttft_targets_s else []
        judged += [] if tier.tpot_target_s is None else [Indicator.TPOT]
        objectives += [Objective(tier.name, indicator, tier.attainment) for indicator in (*judged, Indicator.ALL)]
    return TierObjectives(tier.name, tuple(objectives), tier.ttft_targets_s, tier.tpot_target_s)


def find_differences(written: TierObjectives, tier: Tier) -> list[str]:
    """Where the objectives' file and the gateway's configuration promise different things, one line each."""
    derived = derive_objectives(tier)
    found = []
    for indicator in Indicator:
        here, there = written.find(indicator), derived.find(indicator)
        promised, configured = here and here.target, there and there.target
        if promised != configured:
            found.append(f"{tier.name}.{indicator}: the objectives say {promised}, the configuration {configured}")
    for name in ("ttft_targets_s", "tpot_target_s"):
        promised, configured = getattr(written, name), getattr(derived, name)
        if promised != configured:
            found.append(f"{tier.name}.{name}: the objectives say {promised}, the configuration {configured}")
    return found
