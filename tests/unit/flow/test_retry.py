"""Retries are earned by arrivals and spent by failures."""

import pytest

from service.domain.event import FailureCause
from service.flow.config import RetryConfig
from service.flow.retry import RetryBudget

CONFIG = RetryConfig(attempts_max=2, budget_ratio=0.1, budget_burst=2.0)


def test_a_failure_spends_one():
    budget = RetryBudget(2.0)
    assert budget.spend(FailureCause.BROKEN, 1, CONFIG)
    assert budget.left == 1.0


def test_nothing_is_spent_below_one():
    budget = RetryBudget(0.9)
    assert not budget.spend(FailureCause.UNREACHABLE, 1, CONFIG)
    assert budget.left == 0.9


def test_arrivals_earn_up_to_the_burst():
    budget = RetryBudget(1.95)
    budget.earn(CONFIG)
    assert budget.left == 2.0
    budget.earn(CONFIG)
    assert budget.left == 2.0


def test_ten_arrivals_earn_about_one():
    budget = RetryBudget(0.0)
    for _ in range(10):
        budget.earn(CONFIG)
    assert budget.left == pytest.approx(1.0)


@pytest.mark.parametrize("cause", [FailureCause.TIMEOUT, FailureCause.FAULTY])
def test_what_might_be_done_twice_is_not_tried_again(cause):
    assert not RetryBudget(2.0).spend(cause, 1, CONFIG)


def test_the_last_attempt_is_the_last():
    assert not RetryBudget(2.0).spend(FailureCause.REVOKED, 2, CONFIG)


def test_what_we_took_back_costs_no_budget():
    budget = RetryBudget(0.0)
    assert budget.spend(FailureCause.REVOKED, 1, CONFIG)
    assert budget.left == 0.0
