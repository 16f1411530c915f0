"""Answers are foreseen by a tenant's own, its tier's and everybody's."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.flow import lengths as module
from service.flow.lengths import BUCKETS, FIRST_OUTPUT_TOKENS, Histogram, OutputLengths, Source


def teach(source, lengths, cut=False, stands_for=1):
    for tokens in lengths:
        source.observe(tokens, cut, stands_for)
    return source


def draw(samples, cuts=()):
    """The curve of a histogram of which so much is known that nothing else counts."""
    histogram = Histogram()
    for _ in range(30):
        for tokens in samples:
            histogram.observe(tokens, cut=False, stands_for=1)
        for tokens in cuts:
            histogram.observe(tokens, cut=True, stands_for=1)
    return histogram.blend(module._FIRST)


def test_before_anything_was_seen_answers_are_as_in_the_public_trace():
    curve = OutputLengths().find_curve("gold")
    assert curve.mean == curve.mean_within(1_000_000) == FIRST_OUTPUT_TOKENS
    assert curve.mean_within(10) == pytest.approx(10.0)


def test_a_mean_is_exact_however_coarse_the_buckets_are():
    source = teach(Source(None), [70] * 2000)
    assert source.curve.mean == pytest.approx(70, rel=0.07)  # 3 % of the weight is that of the tier


def test_what_is_bounded_is_foreseen_within_its_bound():
    chance = random.Random(5)
    samples = [max(1, int(chance.lognormvariate(5.0, 1.0))) for _ in range(1000)]
    curve = draw(samples)
    for bound in (1, 10, 64, 90, 300, 2000):
        true = sum(min(one, bound) for one in samples) / len(samples)
        assert curve.mean_within(bound) == pytest.approx(true, rel=0.05)


def test_the_last_bound_is_remembered():
    curve = draw([100, 200])
    within = curve.mean_within(150)
    assert (curve.bound, curve.within) == (150, within)


def test_quantiles_lie_where_the_samples_do():
    chance = random.Random(6)
    samples = [max(1, int(chance.lognormvariate(5.5, 0.8))) for _ in range(1000)]
    curve = draw(samples)
    samples.sort()
    for level in (0.1, 0.5, 0.8, 0.95):
        assert curve.quantile(level) == pytest.approx(samples[int(level * 1000)], rel=0.2)
    assert curve.quantile(1.1) == 2.0 ** (BUCKETS / 2)


def test_an_answer_longer_than_all_buckets_is_counted_in_the_last():
    assert draw([1_000_000]).mean == pytest.approx(1_000_000 * 30 / 50 + FIRST_OUTPUT_TOKENS * 20 / 50, rel=0.05)


def test_a_cut_answer_would_have_gone_on():
    """Half are cut at 100, the others come to 50 or 400 equally often: so whoever passed 100 came to 400."""
    whole = draw([50, 400])
    cut = draw([50, 400], cuts=[100, 100])
    assert cut.mean > whole.mean
    # Kaplan-Meier by hand: one in four ends at 50; what was cut goes where the rest goes
    assert sum(cut.mass[:13]) * 140 / 120 == pytest.approx(0.25, rel=0.02)


def test_cut_answers_with_none_longer_are_taken_for_complete():
    assert draw([], cuts=[64]).mean == pytest.approx(64 * 0.6 + FIRST_OUTPUT_TOKENS * 0.4, rel=0.02)


@given(
    st.lists(st.integers(0, 100_000), max_size=30),
    st.lists(st.integers(1, 100_000), max_size=30),
    st.integers(1, 8),
)
def test_a_curve_is_a_distribution(whole, cut, stands_for):
    histogram = Histogram()
    for tokens in whole:
        histogram.observe(tokens, cut=False, stands_for=stands_for)
    for tokens in cut:
        histogram.observe(tokens, cut=True, stands_for=stands_for)
    curve = histogram.blend(module._FIRST)
    assert sum(curve.mass) == pytest.approx(1.0)
    assert all(part >= 0.0 for part in curve.mass)
    within = [curve.mean_within(bound) for bound in (1, 2, 5, 50, 500, 5000, 50_000)]
    assert all(low <= high * (1 + 1e-9) + 1e-9 for low, high in pairwise(within))
    quantiles = [curve.quantile(level) for level in (0.1, 0.5, 0.9)]
    assert quantiles == sorted(quantiles)


HALVED = (1000 * 270 + 100 * 361) / (270 + 361)
"""With a half-life of 500 a thousand answers weigh 541, half of that 500 answers later, and these weigh 361."""


def test_the_latest_count_most():
    source = teach(teach(Source(None), [1000] * 1000), [100] * 500)
    assert source.curve.mean == pytest.approx(HALVED, rel=0.05)


def test_a_lesson_may_stand_for_several_answers():
    one_by_one = teach(teach(Source(None), [1000] * 1000), [100] * 80)
    in_eights = teach(teach(Source(None), [1000] * 1000), [100] * 80, stands_for=8)
    assert in_eights.curve.mean < 0.8 * one_by_one.curve.mean


def test_weights_are_scaled_down_before_they_run_away(monkeypatch):
    monkeypatch.setattr(module, "_WEIGHT_MAX", 2.0)
    source = teach(teach(Source(None), [1000] * 1000), [100] * 500)
    assert source.curve.mean == pytest.approx(HALVED, rel=0.05)
    assert teach(source, [100] * 600, cut=True).curve.mean > 300


def test_a_tenant_is_shrunk_to_its_tier_and_that_to_all():
    lengths = OutputLengths()
    teach_tenant = lengths.open_tenant("gold")
    for _ in range(500):
        lengths.observe(teach_tenant, "gold", 1000, cut=False, stands_for=1)
    assert lengths.find_curve("gold").mean == pytest.approx(1000, rel=0.1)
    assert lengths.find_curve("other").mean == pytest.approx(1000, rel=0.1)  # nothing is known but what all do
    fresh = lengths.open_tenant("gold")
    assert fresh.curve.mean == lengths.find_curve("gold").mean
    lengths.observe(fresh, "gold", 10, cut=False, stands_for=1)
    assert 900 < fresh.curve.mean < 1000  # 1 of 21
