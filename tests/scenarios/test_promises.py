"""The shipped controller keeps what it promises in the simulator.

Seeds are fixed; the bounds are those of the sweep whose report lies under ``loadtests/reports/sim``, which has more
seeds and longer runs.
"""

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from loadtests.sim.arrivals import Process, build_step
from loadtests.sim.measure import Verdict, find_fate, judge
from loadtests.sim.run import Job, build_world, run_job
from loadtests.sim.scenario import SCENARIOS
from loadtests.sim.traces import TraceMissingError

LOADS = (1.2, 2.0, 5.0, 10.0)
PROMISED = ("priority", "default")


@cache
def run_mixed(load):
    """Eight workers, half a minute; the pool has had ten seconds to be found out."""
    scenario = replace(SCENARIOS["mixed"], load=load, warmup_s=10.0, duration_s=30.0, settle_s=25.0)
    return run_job(Job(scenario, "sluice", 1))


@pytest.mark.parametrize("load", LOADS)
def test_what_is_within_contract_is_kept_at_every_load(load):
    figures = run_mixed(load)
    for name in PROMISED:
        assert figures.tiers[name].contract_attainment >= 0.99, (name, figures.tiers[name].misses)


def test_goodput_does_not_fall_with_load():
    goodput = {load: run_mixed(load).goodput_rps for load in LOADS}
    assert goodput[2.0] >= 0.95 * max(goodput[1.2], goodput[2.0])
    assert min(goodput[5.0], goodput[10.0]) >= 0.95 * goodput[2.0]


@pytest.mark.parametrize("load", LOADS)
def test_little_is_made_for_nobody(load):
    """Late answers and those taken back together."""
    assert run_mixed(load).wasted_ratio <= 0.05


@pytest.mark.parametrize("load", LOADS)
def test_the_lowest_tier_gets_an_answer_or_is_refused_in_time(load):
    flex = run_mixed(load).tiers["flex"]
    assert max(flex.rejection_s, default=0.0) <= 20.1  # its patience
    assert flex.fates["live"] <= 0.05 * flex.offered  # still being answered


@pytest.mark.parametrize("name", ["azure-conv", "azure-code", "mooncake"])
@pytest.mark.parametrize("load", [1.2, 5.0])
def test_replays_of_public_traces_keep_it_too(name, load):
    scenario = replace(SCENARIOS[name], load=load, duration_s=40.0)
    try:
        figures = run_job(Job(scenario, "sluice", 1))
    except TraceMissingError as missing:
        pytest.skip(str(missing))
    for tier in PROMISED:
        assert figures.tiers[tier].contract_attainment >= 0.99, (tier, figures.tiers[tier].misses)


def compute_attainment(scenario, since_s):
    """By tenant: what part of the requests within contract that came later than that was kept, over three seeds."""
    kept, judged = Counter(), Counter()
    for seed in (1, 2, 3):
        world = build_world(Job(scenario, "sluice", seed))
        world.run()
        for attempt in world.attempts:
            if attempt.arrived_at < since_s or not attempt.in_contract:
                continue
            verdict = judge(attempt, world.tiers[attempt.offer.tenant], scenario.until_s + scenario.settle_s)
            if verdict is not Verdict.EXCLUDED:
                tenant = scenario.tenants[attempt.offer.tenant].name
                judged[tenant] += 1
                kept[tenant] += verdict is Verdict.GOOD
    return {tenant: kept[tenant] / judged[tenant] for tenant in judged}


def test_a_tenant_that_sends_a_hundred_times_as_much_changes_nothing_for_others():
    noisy = replace(SCENARIOS["noisy"], duration_s=70.0)
    loud = tuple(
        replace(tenant, arrivals=Process(shape=build_step(30.0, 100.0))) if tenant.name == "dune" else tenant
        for tenant in noisy.tenants
    )
    calm = tuple(replace(tenant, arrivals=Process()) for tenant in noisy.tenants)
    before, after = (compute_attainment(replace(noisy, tenants=tenants), 30.0) for tenants in (calm, loud))
    others = ("acme", "bolt", "core")
    changes = [abs(after[tenant] - before[tenant]) for tenant in others]
    assert sum(changes) / len(others) < 0.005, (before, after)
    assert max(changes) < 0.01, (before, after)  # of one, so few requests say no more than that


def test_everybody_ends_when_all_leave_at_once():
    scenario = replace(SCENARIOS["cancel"], workers=2)
    world = build_world(Job(scenario, "sluice", 1))
    world.run()
    fates = Counter(find_fate(attempt).value for attempt in world.attempts if attempt.arrived_at < 60.0)
    assert fates["live"] == 0
    assert fates["abandoned"] > 0
