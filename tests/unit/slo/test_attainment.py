"""Sums of verdicts, and what is read from them."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.slo.attainment import (
    SLIS,
    Tally,
    Weighed,
    compute_budget_left,
    compute_ratio,
    compute_uptime,
    count_down_intervals,
    sum_up,
)
from service.slo.verdict import Result

WEIGHED = st.builds(
    Weighed,
    standing=st.sampled_from(["met", "missed", "excluded"]),
    reason=st.sampled_from(["", "late", "malformed"]),
    slis=st.text("gbx-", min_size=4, max_size=4),
    interval=st.integers(0, 3),
    ttft_s=st.none() | st.floats(0.001, 100),
    tpot_s=st.none() | st.floats(0.001, 1),
    prompt_tokens=st.integers(0, 1000),
    cached_tokens=st.integers(0, 1000),
    output_tokens=st.integers(0, 1000),
    marks=st.sampled_from([(), ("excess",), ("excess", "downgraded")]),
    lost=st.sampled_from([0, 0, 0, 5]),
)


def add(*weighed):
    tally = Tally()
    for one in weighed:
        tally.add(one)
    return tally


def told(tally):
    fields = {field.name: getattr(tally, field.name) for field in dataclasses.fields(tally)}
    return {**fields, "ttft": tally.ttft.buckets, "tpot": tally.tpot.buckets}


@given(st.lists(WEIGHED, max_size=12), st.lists(WEIGHED, max_size=12))
def test_a_sum_of_tallies_is_the_tally_of_all(first, second):
    assert told(sum_up([add(*first), add(*second)])) == told(add(*first, *second))


def test_a_letter_for_each_result():
    assert [result.letter for result in Result] == ["g", "b", "x", "-"]
    assert [result.label for result in Result] == [result.value for result in Result]


def test_one_request_is_counted_where_it_belongs():
    tally = add(
        Weighed("met", "", "gggg", 7, ttft_s=0.5, tpot_s=0.02, prompt_tokens=10, cached_tokens=4, output_tokens=3),
        Weighed("missed", "late", "gb-b", 7, marks=("excess",)),
        Weighed("missed", "expired", "bb-b", 8),
        Weighed("excluded", "malformed", "xxxx", 8),
        Weighed("lost", "lost", "----", 8, lost=9),
    )
    assert (tally.requests, tally.gaps, tally.lost) == (4, 1, 9)
    assert (tally.good, tally.bad) == ([2, 1, 1, 1], [1, 2, 0, 2])
    assert tally.intervals == {7: [2, 0], 8: [0, 1]}
    assert tally.standings == {"met": 1, "missed": 2, "excluded": 1}
    assert tally.excluded() == {"malformed": 1}
    assert tally.marks == {"excess": 1}
    assert (tally.prompt_tokens, tally.cached_tokens, tally.output_tokens) == (10, 4, 3)
    assert [tally.attained(sli) for sli in SLIS] == [2 / 3, 1 / 3, 1.0, 1 / 3]
    assert Tally().attained("all") is None


def test_an_interval_is_down_when_its_share_of_bad_requests_is_above_what_is_allowed():
    intervals = {0: [999, 1], 1: [998, 2], 2: [0, 1], 3: [5, 0]}
    assert count_down_intervals(intervals, 0.999) == 2
    assert compute_uptime(intervals, 0.999, 3000.0) == 0.8
    assert compute_uptime({}, 0.999, 3000.0) == 1.0


def test_the_budget_is_of_the_requests_that_counted():
    assert compute_budget_left(1000, 0, 0.999) == 1.0
    assert compute_budget_left(9995, 5, 0.999) == pytest.approx(0.5)
    assert compute_budget_left(998, 2, 0.999) == pytest.approx(-1.0)
    assert compute_budget_left(0, 0, 0.999) == 1.0
    assert compute_ratio(3, 1) == 0.75
