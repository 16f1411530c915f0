"""Windows: their names, what a pair spends, what can never fire."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.slo.objective import Indicator, Objective, Severity, Speed
from service.slo.window import (
    WindowPair,
    WindowPlan,
    find_faults,
    find_unreachable,
    read_duration,
    write_duration,
)

PLAN = WindowPlan(
    "30d", 30 * 86_400, 3600,
    (
        WindowPair(Speed.FAST, 3600, 300, 14.4),
        WindowPair(Speed.FAST, 21_600, 1800, 6.0),
        WindowPair(Speed.SLOW, 86_400, 7200, 3.0),
    ),
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "length_s"), [("5m", 300), ("1h", 3600), ("30d", 2_592_000), ("90s", 90), ("90m", 5400)]
)
def test_durations_as_prometheus_writes_them(text, length_s):
    assert read_duration(text) == length_s
    assert write_duration(length_s) == text


@given(st.integers(1, 10**8))
def test_what_is_written_reads_back(length_s):
    assert read_duration(write_duration(length_s)) == length_s


@pytest.mark.parametrize("text", ["", "m", "5", "5w", "-5m", "0m", "1.5h", "5 m", "\u0665m"])
def test_what_is_no_duration(text):
    with pytest.raises(ValueError, match="not a duration"):
        read_duration(text)


def test_a_steady_burn_at_the_factor_spends_the_share():
    assert [pair.budget_share(PLAN.period_s) for pair in PLAN.pairs] == [
        pytest.approx(0.02), pytest.approx(0.05), pytest.approx(0.1),
    ]  # fmt: skip
    assert PLAN.windows_s == (300, 1800, 3600, 7200, 21_600, 86_400)
    assert [pair.long_s for pair in PLAN.pairs_of(Speed.FAST)] == [3600, 21_600]


def test_a_plan_in_quick_motion_spends_the_same_shares():
    quick = PLAN.shrink(60)
    assert quick.windows_s == (5, 30, 60, 120, 360, 1440)
    assert [pair.budget_share(quick.period_s) for pair in quick.pairs] == [
        pair.budget_share(PLAN.period_s) for pair in PLAN.pairs
    ]
    with pytest.raises(ValueError, match="whole seconds"):
        PLAN.shrink(7)


def test_an_alert_that_could_never_fire_is_found():
    objectives = [Objective("t", Indicator.TTFT, 0.9), Objective("t", Indicator.ALL, 0.9, fast=None)]
    found = find_unreachable(PLAN, objectives)
    assert len(found) == 1
    assert "t.ttft: factor 14.4 x (1 - 0.9) is 1.44: the 1h alert" in found[0]
    assert find_unreachable(PLAN, [Objective("t", Indicator.TTFT, 0.99)]) == []


def test_exactly_one_can_never_be_exceeded_either():
    plan = replace(PLAN, pairs=(WindowPair(Speed.FAST, 3600, 300, 10.0),))
    assert find_unreachable(plan, [Objective("t", Indicator.TTFT, 0.9)])
    assert not find_unreachable(plan, [Objective("t", Indicator.TTFT, 0.9, fast=None, slow=Severity.PAGE)])


def test_faults_of_a_plan():
    assert find_faults(PLAN) == []
    pairs = (
        WindowPair(Speed.FAST, 300, 300, 1.0),
        WindowPair(Speed.FAST, 3600, 300, math.nan),
        WindowPair(Speed.SLOW, 31 * 86_400, 300, 1.0),
    )
    found = find_faults(WindowPlan("x", 30 * 86_400, 7000, pairs))
    assert len(found) == 4
    assert "not shorter" in found[0]
    assert "nan is not a positive number" in found[1]
    assert "longer than the period" in found[2]
    assert "whole number of buckets" in found[3]
