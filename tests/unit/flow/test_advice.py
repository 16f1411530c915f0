"""The advice given with a refusal."""

from service.flow.advice import compute_retry_after_s


def test_advice_is_spread_around_the_wait():
    assert compute_retry_after_s(10.0, 60.0, 0.0) == 8.0
    assert compute_retry_after_s(10.0, 60.0, 1.0) == 13.0


def test_without_an_estimate_one_second_is_the_base():
    assert compute_retry_after_s(None, 60.0, 0.4) == 1.0


def test_advice_is_bounded():
    assert compute_retry_after_s(0.0, 60.0, 0.5) == 0.1
    assert compute_retry_after_s(1e9, 60.0, 0.5) == 60.0
