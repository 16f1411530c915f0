"""Verdicts on single requests, and their sums."""

import pytest

from loadtests.live.traffic import UNIFORM, Shape, Targets
from loadtests.live.verdicts import (
    Sighting,
    TierFigures,
    Verdict,
    add_up,
    compute_attainment,
    compute_goodput_rps,
    compute_tpot_s,
    is_settled,
    judge,
    summarise,
)

TARGETS = Targets("hi", ((4096, 1.0),), 0.05)
SHAPE = Shape("hi", "hi", 1.0, 16, 11)


def sight(at_s=10.0, ttft_s=0.5, tpot_s=0.04, tokens=11, status=200, shape=0, **changes):
    first = at_s + ttft_s
    last = first + tpot_s * 10
    seen = {"sent_s": at_s, "first_s": first, "last_s": last, "end_s": last, "status": status, "tokens": tokens}
    return Sighting(at_s, shape, True, **{**seen, **changes})


@pytest.mark.parametrize(
    ("sighting", "verdict"),
    [
        (sight(), Verdict.GOOD),
        (sight(ttft_s=1.0), Verdict.GOOD),
        (sight(ttft_s=1.01), Verdict.LATE),
        (sight(sent_s=10.9, ttft_s=1.01), Verdict.LATE),  # from the intended moment, not from the actual sending
        (sight(tpot_s=0.051), Verdict.SLOW),
        (sight(tokens=10), Verdict.SHORT),
        (sight(tokens=None), Verdict.SHORT),
        (sight(status=503, first_s=None), Verdict.REFUSED),
        (sight(status=429, first_s=None), Verdict.REFUSED),
        (sight(status=408, first_s=None), Verdict.REFUSED),
        (sight(status=500, first_s=None), Verdict.FAILED),
        (sight(failure="no [DONE]"), Verdict.FAILED),
        (sight(first_s=None, last_s=None), Verdict.FAILED),  # 200 without a token
        (sight(first_s=None, last_s=None, end_s=None, status=None), Verdict.LATE),
        (sight(end_s=None), Verdict.UNFINISHED),
    ],
)
def test_verdicts(sighting, verdict):
    assert judge(sighting, SHAPE, TARGETS) is verdict


def test_a_single_token_has_no_time_per_token():
    assert compute_tpot_s(sight(tokens=1)) is None
    assert compute_tpot_s(sight()) == pytest.approx(0.04)


def test_a_request_is_settled_when_nothing_can_make_it_good():
    waiting = Sighting(10.0, 0, True)
    assert not is_settled(waiting, SHAPE, TARGETS, 10.9)
    assert is_settled(waiting, SHAPE, TARGETS, 11.1)
    running = sight(end_s=None)
    assert not is_settled(running, SHAPE, TARGETS, 10.9)
    assert is_settled(running, SHAPE, TARGETS, 11.1)
    assert is_settled(sight(), SHAPE, TARGETS, 0.0)


def test_attainment_is_over_offered_requests_and_only_counted_ones():
    refused = sight(status=503, first_s=None, last_s=None, end_s=10.002, retry_after_s=3.0, tokens=None)
    seen = [sight(tokens=64, tpot_s=0.04), refused, Sighting(11.0, 1, True), Sighting(-1.0, 0, False)]
    figures = add_up(UNIFORM, seen)
    assert (figures["hi"].offered, figures["hi"].good, figures["lo"].offered) == (2, 1, 1)
    assert compute_attainment(figures["hi"]) == 0.5
    assert compute_attainment(figures["lo"]) == 0.0
    assert compute_goodput_rps(figures.values(), 4.0) == 0.25
    summary = summarise(figures["hi"])
    assert summary["refusal_ms"]["p50"] == pytest.approx(2.0)
    assert summary["retry_after_s"] == {"given": 1, "distinct": 1, "min": 3.0, "max": 3.0}
    assert summary["verdicts"] == {"good": 1, "refused": 1}


def test_nothing_offered_has_no_attainment():
    assert compute_attainment(TierFigures()) is None
