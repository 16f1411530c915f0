"""Predictions are kept honest."""

import random

import pytest

from service.flow.calibration import Quantile, ShortAnswer


def test_the_share_below_the_bound_is_the_one_asked_for():
    chance, quantile, below = random.Random(1), Quantile(0.95), 0
    for turn in range(6000):
        observed = 0.1 * chance.lognormvariate(0.0, 0.5)
        below += turn >= 1000 and observed <= quantile.bound_s(0.1)
        quantile.observe(0.1, observed)
    assert below / 5000 == pytest.approx(0.95, abs=0.01)


def test_it_stays_within_reason():
    quantile = Quantile(0.95)
    for _ in range(1000):
        quantile.observe(1.0, 1000.0)
    assert quantile.q == 2.0
    for _ in range(10_000):
        quantile.observe(1.0, 0.001)
    assert quantile.q == -1.0


@pytest.mark.parametrize(("predicted_s", "observed_s"), [(0.0, 1.0), (1.0, 0.0)])
def test_what_says_nothing_is_left_out(predicted_s, observed_s):
    quantile = Quantile(0.95, 0.5)
    quantile.observe(predicted_s, observed_s)
    assert quantile.q == 0.5


def test_the_shortest_answers_are_found():
    short, chance = ShortAnswer(), random.Random(1)
    assert short.tokens == 2.0
    below = 0
    for number in range(6000):
        tokens = chance.randint(1, 1000)
        below += number >= 2000 and tokens < short.tokens
        short.observe(tokens)
    assert below / 4000 == pytest.approx(0.05, abs=0.01)
    for _ in range(200):
        short.observe(1)
    assert short.tokens == 2.0
