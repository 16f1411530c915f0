"""Objectives: derived from a tier, compared with a file's."""

import pytest

from service.domain.tier import Tier
from service.slo.objective import (
    Indicator,
    Objective,
    Severity,
    Speed,
    TierObjectives,
    derive_objectives,
    find_differences,
)

PRIORITY = Tier(
    "priority", 0, availability=0.999, attainment=0.99, ttft_targets_s=((4096, 1.0), (32768, 3.0)), tpot_target_s=0.025
)


def test_a_tier_with_everything_has_all_four():
    derived = derive_objectives(PRIORITY)
    targets = {objective.indicator: objective.target for objective in derived.objectives}
    assert targets == {
        Indicator.AVAILABILITY: 0.999, Indicator.TTFT: 0.99, Indicator.TPOT: 0.99, Indicator.ALL: 0.99,
    }  # fmt: skip
    assert derived.ttft_targets_s == PRIORITY.ttft_targets_s
    assert derived.tpot_target_s == 0.025
    assert not derived.best_effort


@pytest.mark.parametrize(
    ("tier", "indicators"),
    [
        (Tier("flex", 2, best_effort=True), []),
        (Tier("a", 1, availability=0.9), ["availability"]),
        (Tier("b", 1, availability=0.9, attainment=0.9, tpot_target_s=0.1), ["availability", "tpot", "all"]),
        (Tier("c", 1, availability=0.9, attainment=0.9, ttft_targets_s=((1, 1.0),)), ["availability", "ttft", "all"]),
    ],
)
def test_what_has_no_target_has_no_objective(tier, indicators):
    derived = derive_objectives(tier)
    assert [objective.indicator.value for objective in derived.objectives] == indicators
    assert derived.best_effort is (not indicators)


def test_the_budget_is_free_of_the_noise_of_floats():
    assert Objective("t", Indicator.ALL, 0.999).budget_ratio == 0.001
    assert 1.0 - 0.999 != 0.001


def test_who_is_told_at_which_speed():
    objective = Objective("t", Indicator.ALL, 0.99, fast=None, slow=Severity.PAGE)
    assert objective.severity_of(Speed.FAST) is None
    assert objective.severity_of(Speed.SLOW) is Severity.PAGE


def test_equal_promises_have_no_differences():
    assert find_differences(derive_objectives(PRIORITY), PRIORITY) == []
    assert find_differences(TierObjectives("flex"), Tier("flex", 2, best_effort=True)) == []


def test_each_difference_is_named():
    written = derive_objectives(Tier("priority", 0, availability=0.99, attainment=0.99, ttft_targets_s=((4096, 2.0),)))
    found = find_differences(written, PRIORITY)
    assert [line.split(":")[0] for line in found] == [
        "priority.availability", "priority.tpot", "priority.ttft_targets_s", "priority.tpot_target_s",
    ]  # fmt: skip
    assert "0.99" in found[0]
    assert "0.999" in found[0]
