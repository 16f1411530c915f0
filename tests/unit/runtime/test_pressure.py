"""What keeps traffic out beside its own limits."""

from dataclasses import replace

from service.domain.tier import Tier
from service.domain.units import TierName
from service.flow.band import BEST_EFFORT, EXCESS
from service.flow.config import FlowConfig
from service.runtime.pressure import Pressure
from service.slo.restraint import Strain

FLOW = FlowConfig(
    tiers={
        TierName("gold"): Tier(TierName("gold"), 0),
        TierName("silver"): Tier(TierName("silver"), 1),
        TierName("flex"): Tier(TierName("flex"), 2, best_effort=True),
    }
)
BURNING = [Strain(TierName("gold"), 6.0, 6.0)]


def build() -> tuple[Pressure, list[FlowConfig]]:
    applied: list[FlowConfig] = []
    return Pressure(FLOW, applied.append), applied


def test_burning_budgets_set_ceilings_by_band_and_the_core_is_told_once() -> None:
    pressure, applied = build()
    pressure.observe([], 0.0)
    assert applied == []
    pressure.observe(BURNING, 1.0)
    pressure.observe(BURNING, 2.0)
    (config,) = applied
    assert config.shedding.ceilings == ((1, 0.7), (EXCESS, 0.3), (EXCESS + 1, 0.3), (BEST_EFFORT, 0.0))
    assert pressure.describe() == {"on": True, "ceilings": {"1": 0.7, "32": 0.3, "33": 0.3, "64": 0.0}}


def test_the_operator_ends_it_at_once_and_lets_it_begin_anew() -> None:
    pressure, applied = build()
    pressure.observe(BURNING, 1.0)
    pressure.restrain(False)
    pressure.observe(BURNING, 2.0)
    assert applied[-1].shedding.ceilings == ()
    pressure.restrain(True)
    pressure.observe(BURNING, 3.0)
    assert applied[-1].shedding.ceilings != ()


def test_a_level_of_brownout_and_another_configuration_keep_the_ceilings() -> None:
    pressure, applied = build()
    pressure.observe(BURNING, 1.0)
    pressure.force_brownout(2)
    pressure.reconfigure(replace(FLOW, queued_requests_max=7))
    config = applied[-1]
    assert (config.queued_requests_max, config.shedding.brownout_forced) == (7, 2)
    assert config.shedding.ceilings
    assert pressure.brownout_level == 2
