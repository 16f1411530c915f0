"""Ceilings on what may wait help dearer tiers before their promises break: in the simulator, above capacity."""

from dataclasses import replace

from loadtests.sim.arms import Plant, build_controller
from loadtests.sim.curves import build_scenario
from loadtests.sim.measure import measure
from loadtests.sim.scenario import Scenario
from loadtests.sim.world import World
from service.domain.units import TierName
from service.flow.config import Reconfigured, SheddingConfig
from service.flow.controller import FlowController
from service.runtime.pressure import list_ceilings
from service.slo.restraint import FULL, Restraint, Strain


def count_misses(scenario: Scenario, ceilings: tuple[tuple[int, float], ...]) -> tuple[int, float]:
    """Promises of the dearest tier that were missed, and the part of best effort that was served in time."""
    plant = Plant(scenario, scenario.compute_capacity_rps(), 1)

    def build() -> FlowController:
        core = build_controller(plant)
        assert isinstance(core, FlowController)
        held_back = replace(core._state.config, shedding=SheddingConfig(ceilings=ceilings))
        core.handle(Reconfigured(held_back), 0.0)
        return core

    world = World(scenario, build, 1)
    world.run()
    tiers = measure(world, "sluice").tiers
    return tiers["priority"].contract_bad, tiers["flex"].attainment or 0.0


def test_ceilings_at_full_strain_save_promises_of_the_dearest_tier() -> None:
    scenario = build_scenario(1.6, 6, 120.0)
    strained = Restraint().observe(
        [spec.tier for spec in scenario.tiers], [Strain(TierName("priority"), FULL, FULL)], 0.0
    )  # fmt: skip
    free, free_served = count_misses(scenario, ())
    held, held_served = count_misses(scenario, list_ceilings(strained))
    assert held < 0.4 * free
    assert held_served < 0.25 * free_served  # what comes to an idle worker is served
