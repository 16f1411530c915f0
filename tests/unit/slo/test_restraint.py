"""Budgets that burn hold back what may wait, at once, and let it go slowly."""

import pytest

from service.domain.tier import Tier
from service.domain.units import TierName
from service.slo.restraint import Ceilings, Restraint, Strain

TIERS = (
    Tier(TierName("priority"), 0),
    Tier(TierName("default"), 1),
    Tier(TierName("flex"), 2, best_effort=True),
)


def strain(tier: str, short: float | None, long: float | None = None) -> Strain:
    return Strain(TierName(tier), short, short if long is None else long)


def test_what_is_spent_evenly_holds_nobody_back() -> None:
    ceilings = Restraint().observe(TIERS, [strain("priority", 1.0), strain("default", 0.2)], 0.0)
    assert ceilings == Ceilings({0: 1.0, 1: 1.0}, {0: 1.0, 1: 1.0}, 1.0)


def test_both_windows_have_to_burn_and_silence_is_calm() -> None:
    assert strain("a", 20.0, 0.5).value == strain("a", 0.5, 20.0).value == 0.0
    assert strain("a", None).value == Strain(TierName("a"), 9.0, None).value == 0.0
    assert strain("a", 3.5).value == 0.5
    assert strain("a", 60.0).value == 1.0


def test_the_dearest_tier_is_never_held_back_and_the_cheapest_traffic_most() -> None:
    ceilings = Restraint().observe(TIERS, [strain("priority", 6.0)], 0.0)
    assert ceilings.best_effort == 0.0
    assert ceilings.excess == pytest.approx({0: 0.3, 1: 0.3})
    assert ceilings.within == pytest.approx({0: 1.0, 1: 0.7})


def test_a_cheaper_tier_that_burns_itself_holds_back_only_what_is_beyond_contracts() -> None:
    ceilings = Restraint().observe(TIERS, [strain("priority", 3.5), strain("default", 6.0)], 0.0)
    assert ceilings.within == {0: 1.0, 1: 1.0}
    assert ceilings.best_effort == 0.0


def test_it_tightens_at_once_and_loosens_a_tenth_after_each_calm() -> None:
    restraint = Restraint()
    assert restraint.observe(TIERS, [strain("priority", 3.5)], 0.0).best_effort == pytest.approx(0.5)
    assert restraint.observe(TIERS, [strain("priority", 6.0)], 1.0).best_effort == 0.0
    seen = [restraint.observe(TIERS, [], 1.0 + 10.0 * step).best_effort for step in range(1, 49)]
    assert seen[10] == 0.0
    assert seen[11] == pytest.approx(0.1)
    assert seen[-1] == pytest.approx(0.4)


def test_burn_that_comes_back_begins_the_calm_anew() -> None:
    restraint = Restraint()
    restraint.observe(TIERS, [strain("priority", 6.0)], 0.0)
    restraint.observe(TIERS, [], 100.0)
    restraint.observe(TIERS, [strain("priority", 6.0)], 110.0)
    assert restraint.observe(TIERS, [], 225.0).best_effort == 0.0
    assert restraint.observe(TIERS, [], 231.0).best_effort == pytest.approx(0.1)


def test_without_paid_tiers_there_is_no_strain() -> None:
    assert Restraint().observe(TIERS[2:], [strain("flex", 50.0)], 0.0) == Ceilings({}, {}, 1.0)
