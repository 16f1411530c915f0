"""The gateway's own burn windows: against brute force, at their edges, and by the gates of the alerts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.tier import Tier
from service.slo.burnrate import SLOTS, BurnRates
from service.slo.objective import Indicator, Speed, derive_objectives
from tests.unit.slo.test_window import PLAN

TIER = derive_objectives(Tier("gold", 0, availability=0.999))
(OBJECTIVE,) = TIER.objectives
KEY = (TIER.tier, Indicator.AVAILABILITY)


def run(rates, start_s, stretches, pace_s=1.0, at=(0, 0)):
    """Let counters grow: ``stretches`` of (seconds, valid per second, share of bad). Returns the moment and counts."""
    now, (bad, valid) = start_s, at
    for length_s, per_s, share in stretches:
        for _ in range(int(length_s / pace_s)):
            now += pace_s
            valid += per_s * pace_s
            bad += per_s * pace_s * share
            rates.observe(now, {KEY: (bad, valid)})
    return now, (bad, valid)


def test_nothing_is_known_before_anything_happens():
    rates = BurnRates(PLAN, [TIER], 0.0)
    (stats,) = rates.stats()
    assert set(stats.burn_rates) == set(PLAN.windows_s)
    assert set(stats.burn_rates.values()) == {None}
    assert stats.left_ratio is None
    assert stats.burning == ()


def test_counts_that_stand_still_are_no_rate():
    rates = BurnRates(PLAN, [TIER], 0.0)
    run(rates, 0.0, [(60, 10, 0.5), (400, 0, 0.0)])
    assert rates.find_burn_rate(OBJECTIVE, 300) is None
    assert rates.find_burn_rate(OBJECTIVE, 3600) == pytest.approx(500.0)


def test_a_steady_burn_is_the_same_over_all_windows():
    rates = BurnRates(PLAN, [TIER], 0.0)
    run(rates, 0.0, [(7200, 100, 0.002)], pace_s=5.0)
    for window_s in PLAN.windows_s:
        assert rates.find_burn_rate(OBJECTIVE, window_s) == pytest.approx(2.0)
    assert rates.find_budget_left(OBJECTIVE) == pytest.approx(-1.0)


def test_what_is_older_than_the_window_is_forgotten():
    rates = BurnRates(PLAN, [TIER], 0.0)
    run(rates, 0.0, [(3600, 10, 0.0), (300, 10, 1.0), (300, 10, 0.0)])
    assert rates.find_burn_rate(OBJECTIVE, 300) == pytest.approx(0.0)
    assert rates.find_burn_rate(OBJECTIVE, 1800) == pytest.approx(1000 * 300 / 1800, rel=0.01)


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 50), st.floats(0, 1)), min_size=1, max_size=30),
    st.floats(0.2, 7.0),
)
def test_any_history_is_within_one_reading_of_brute_force(stretches, pace_s):
    """A window's events are those between its edges, give or take what came within one reading of the older edge."""
    rates, window_s = BurnRates(PLAN, [TIER], 0.0), 300
    now, bad, valid = 0.0, 0, 0
    history = [(0.0, 0, 0)]
    for repeats, per_step, share in stretches:
        for _ in range(repeats):
            now += pace_s
            valid += per_step
            bad += int(per_step * share)
            history.append((now, bad, valid))
            rates.observe(now, {KEY: (bad, valid)})
    found_bad, found_valid = rates._find_increase(OBJECTIVE, window_s)
    slack_s = window_s / SLOTS + pace_s
    early = max((one for one in history if one[0] <= max(now - window_s - slack_s, 0.0)), key=lambda one: one[0])
    late = max((one for one in history if one[0] <= max(now - window_s + slack_s, 0.0)), key=lambda one: one[0])
    assert bad - late[1] - 1e-6 <= found_bad <= bad - early[1] + 1e-6
    assert valid - late[2] - 1e-6 <= found_valid <= valid - early[2] + 1e-6


def test_memory_is_bounded_and_reading_often_costs_no_more_of_it():
    rates = BurnRates(PLAN, [TIER], 0.0)
    run(rates, 0.0, [(8000, 1, 0.0)])
    for ring in rates._rings.values():
        assert len(ring._times) == len(ring._readings) <= SLOTS + 2


def test_one_failure_of_three_is_a_high_rate_and_burns_nothing():
    rates = BurnRates(PLAN, [TIER], 0.0)
    rates.observe(10.0, {KEY: (1, 3)})
    assert rates.find_burn_rate(OBJECTIVE, 300) == pytest.approx(333.3, rel=0.01)
    assert rates.stats()[0].burning == ()


@pytest.mark.parametrize(
    ("stretches", "burning"),
    [
        ([(3600, 10, 0.0), (300, 10, 1.0)], True),
        ([(3600, 10, 0.0)], False),
        ([(3600, 10, 0.02)], True),
        ([(3600, 10, 0.0), (600, 10, 1.0), (1900, 10, 0.0)], False),  # over: the short windows are clean
        ([(7200, 100, 0.0), (3600, 0.005, 0.5)], False),  # a share of the budget that nobody would notice
    ],
)
def test_it_burns_as_the_alert_would(stretches, burning):
    rates = BurnRates(PLAN, [TIER], 0.0)
    run(rates, 0.0, stretches)
    assert (Speed.FAST in rates.stats()[0].burning) is burning


def test_an_objective_that_comes_later_begins_at_zero_and_keeps_what_was_counted():
    rates = BurnRates(PLAN, [TIER], 0.0)
    now, counts = run(rates, 0.0, [(60, 10, 0.0)])
    silver = derive_objectives(Tier("silver", 1, availability=0.99))
    rates.reconfigure([TIER, silver])
    (second,) = silver.objectives
    assert rates.find_burn_rate(second, 300) is None, "no reading of it yet"
    rates.observe(now + 5.0, {KEY: counts, ("silver", Indicator.AVAILABILITY): (2, 100)})
    assert rates.find_burn_rate(second, 300) == pytest.approx(2.0)
    assert rates.find_burn_rate(OBJECTIVE, 300) == 0.0
    rates.reconfigure([TIER])
    assert [stats.objective.tier for stats in rates.stats()] == ["gold"]
    rates.reconfigure([TIER, silver])
    rates.observe(now + 10.0, {KEY: counts})
    assert rates.find_burn_rate(OBJECTIVE, 300) == 0.0


def test_after_a_gap_in_the_readings_what_came_in_it_is_spread_over_it():
    rates = BurnRates(PLAN, [TIER], 0.0)
    rates.observe(100.0, {KEY: (0, 100)})
    rates.observe(4100.0, {KEY: (40, 4100)})
    assert rates.find_burn_rate(OBJECTIVE, 300) == pytest.approx(10.0)
    rates.observe(4100.5, {KEY: (40, 4100)})
    assert rates.find_burn_rate(OBJECTIVE, 300) == pytest.approx(10.0)


def test_bad_events_of_a_window_are_counted():
    rates = BurnRates(PLAN, [TIER], 0.0)
    objective = TIER.objectives[0]
    rates.observe(10.0, {(objective.tier, objective.indicator): (3, 100)})
    assert rates.count_bad(objective, 300) == 3
