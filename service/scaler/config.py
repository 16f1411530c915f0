"""Holds what a scaler has to be told of its pool."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from service.domain.tier import Tier
from service.domain.units import TierName
from service.slo.objective import Indicator, derive_objectives
from service.slo.scaling import ScalingConfig

_MATCHER = re.compile(r'^[a-zA-Z_][a-zA-Z0-9_]*(=|!=|=~|!~)"(?:[^"\\]|\\.)*"$')


@dataclass(frozen=True, slots=True)
class SteeringConfig:
    """One pool.

    ``selector`` are label matchers that name its gateways' series (``job="sluice"``); ``budgets`` are the shares of
    each tier's requests that may miss. A step is ``step_s`` long; samples older than ``fresh_s`` do not count, rates
    are formed over as much. ``window_steps`` is how far back a decision looks: longer than any hold. The newest step
    is ``lag_s`` old when it is read, so that its samples have arrived for everybody.
    """

    pool: str
    selector: str = ""
    budgets: Mapping[TierName, float] = field(default_factory=dict)
    scaling: ScalingConfig = field(default_factory=ScalingConfig)
    step_s: float = 30.0
    fresh_s: float = 60.0
    lag_s: float = 5.0
    window_steps: int = 360

    def __post_init__(self) -> None:
        if _split(self.selector) is None:
            raise ValueError(f'{self.selector!r} is no selector: write label matchers such as job="sluice"')


def _split(selector: str) -> list[str] | None:
    """The matchers of a selector; ``None`` if it is none."""
    if not selector:
        return []
    matchers = re.split(r",(?=[a-zA-Z_][a-zA-Z0-9_]*(?:=|!))", selector)
    return matchers if all(_MATCHER.match(matcher) for matcher in matchers) else None


def derive_budgets(tiers: Mapping[TierName, Tier]) -> dict[TierName, float]:
    """The error budget of each tier that promises anything: of all indicators together, else of availability."""
    budgets: dict[TierName, float] = {}
    for name, tier in tiers.items():
        objectives = derive_objectives(tier)
        objective = objectives.find(Indicator.ALL) or objectives.find(Indicator.AVAILABILITY)
        if objective is not None:
            budgets[name] = objective.budget_ratio
    return budgets
