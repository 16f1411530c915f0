"""Waiting times by Little's law, and the advice given with a refusal."""

import pytest

from service.flow.wait import HoldingTime, compute_retry_after_s


def test_nothing_is_known_before_the_first():
    assert HoldingTime().estimate_wait_s(5, 10) is None


def test_nothing_can_be_said_without_permits():
    assert HoldingTime(2.0).estimate_wait_s(5, 0) is None


def test_the_first_is_the_mean_and_the_next_move_it():
    service = HoldingTime()
    service.observe(2.0)
    assert service.mean_s == 2.0
    service.observe(4.0)
    assert service.mean_s == pytest.approx(2.1)


def test_ten_ahead_on_five_permits_take_two_services():
    assert HoldingTime(3.0).estimate_wait_s(10, 5) == 6.0


def test_advice_is_spread_around_the_wait():
    assert compute_retry_after_s(10.0, 60.0, 0.0) == 8.0
    assert compute_retry_after_s(10.0, 60.0, 1.0) == 13.0


def test_without_an_estimate_one_second_is_the_base():
    assert compute_retry_after_s(None, 60.0, 0.4) == 1.0


def test_advice_is_bounded():
    assert compute_retry_after_s(0.0, 60.0, 0.5) == 0.1
    assert compute_retry_after_s(1e9, 60.0, 0.5) == 60.0
