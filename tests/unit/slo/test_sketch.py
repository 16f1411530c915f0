"""Quantiles of any sum of sketches are within one percent, as in the reference implementation."""

import random

import pytest
from ddsketch import DDSketch
from hypothesis import given
from hypothesis import strategies as st

from service.slo.sketch import ACCURACY, Sketch

LENGTHS = st.lists(st.floats(1e-5, 3600.0), min_size=1, max_size=200)


def fill(lengths):
    sketch = Sketch()
    for length in lengths:
        sketch.add(length)
    return sketch


def exact(lengths, ratio):
    return sorted(lengths)[int(ratio * (len(lengths) - 1))]


@given(LENGTHS, st.sampled_from([0.0, 0.5, 0.95, 0.99, 1.0]))
def test_a_quantile_is_within_its_accuracy(lengths, ratio):
    found = fill(lengths).find_quantile(ratio)
    assert found == pytest.approx(exact(lengths, ratio), rel=ACCURACY * 1.000001)


@given(LENGTHS, LENGTHS)
def test_a_sum_of_sketches_is_the_sketch_of_all(first, second):
    assert Sketch.sum_up([fill(first), fill(second)]).buckets == fill(first + second).buckets


def test_it_agrees_with_the_reference():
    chance = random.Random(7)
    lengths = [chance.lognormvariate(-1.0, 1.5) for _ in range(5000)]
    reference = DDSketch(ACCURACY)
    for length in lengths:
        reference.add(length)
    sketch = fill(lengths)
    for ratio in (0.01, 0.5, 0.9, 0.99, 0.999):
        assert sketch.find_quantile(ratio) == pytest.approx(reference.get_quantile_value(ratio), rel=1e-9)


@pytest.mark.parametrize("length", [0.0, -1.0, 1e-9, float("nan")])
def test_what_is_no_length_counts_as_a_microsecond(length):
    assert fill([length]).find_quantile(0.5) == pytest.approx(1e-6, rel=ACCURACY)


def test_nothing_has_no_quantile():
    assert Sketch().find_quantile(0.5) is None
    assert fill([1.0, 2.0]).count == 2
