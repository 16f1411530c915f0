"""Predictions are kept honest."""

import random

import pytest

from service.flow.calibration import Medians, Quantile, ShortAnswer


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
    assert quantile.q == 3.0
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


def test_several_exceedances_on_end_widen_it_faster():
    slow, fast = Quantile(0.95), Quantile(0.95)
    for turn in range(12):
        fast.observe(1.0, 100.0)
        slow.observe(1.0, 100.0)
        if turn % 4 == 3:
            slow.observe(1.0, 0.01)  # a kept one in between: it may have been a stall
    assert slow.q == pytest.approx(12 * 0.0285, abs=0.01)
    assert fast.q > 1.9 * slow.q


class TestMedians:
    def test_nothing_is_added_before_anything_was_seen(self):
        assert Medians().factor(100, 5) == 1.0

    def test_half_of_the_outcomes_come_to_lie_below(self):
        chance, medians = random.Random(3), Medians()
        below = 0
        for turn in range(2000):
            predicted = medians.factor(100, 5)
            observed = 1.4 * chance.lognormvariate(0.0, 0.3)
            below += turn >= 500 and observed <= predicted
            medians.observe(100, 5, predicted, observed)
        assert below / 1500 == pytest.approx(0.5, abs=0.03)
        assert medians.factor(100, 5) == pytest.approx(1.4, rel=0.1)

    def test_sizes_are_told_apart(self):
        chance, medians = random.Random(4), Medians()
        for _ in range(2000):
            for tokens, true in ((100, 1.2), (10_000, 0.8)):
                medians.observe(tokens, 5, medians.factor(tokens, 5), true * chance.lognormvariate(0.0, 0.3))
        assert medians.factor(100, 5) > 1.1 > 0.9 > medians.factor(10_000, 5)

    def test_crowds_are_told_apart(self):
        chance, medians = random.Random(4), Medians()
        for _ in range(2000):
            for beside, true in ((0, 0.8), (40, 1.2)):
                foreseen = medians.factor(100, beside)
                medians.observe(100, beside, foreseen, true * chance.lognormvariate(0.0, 0.3))
        assert medians.factor(100, 0) < 0.9 < 1.1 < medians.factor(100, 63)
        assert medians.factor(100, 500) == medians.factor(100, 70)  # all that are larger count as one

    @pytest.mark.parametrize("jump", [3.0, 1 / 3.0])
    def test_a_jump_is_followed_within_thirty_requests_at_all_sizes(self, jump):
        medians = Medians()
        for _ in range(30):
            medians.observe(100, 5, medians.factor(100, 5), jump)
        assert medians.factor(5000, 5) == pytest.approx(jump, rel=0.35)

    @pytest.mark.parametrize("seen", [1e9, 1e-9])
    def test_a_factor_has_bounds(self, seen):
        medians = Medians()
        for _ in range(300):
            medians.observe(100, 5, 1.0, seen)
            medians.observe(100, 5, medians.factor(100, 5), medians.factor(100, 5) * (0.9 if seen > 1 else 1.1))
        for _ in range(100):
            medians.observe(100, 5, medians.factor(100, 5), seen)
        assert 0.2 * 0.2 <= medians.factor(100, 5) <= 5.0 * 5.0

    def test_one_size_alone_has_bounds_too(self):
        medians = Medians()
        for _ in range(400):
            medians.observe(100, 5, 1.0, 2.0)
            medians.observe(9999, 5, 1.0, 0.5)
        assert medians.factor(100, 5) < 5.0
        assert medians.factor(9999, 5) > 0.2
