"""What may be read twice is earned by time."""

import pytest

from service.flow.rereading import RereadBudget


def test_it_is_earned_by_the_workers_time_and_shared_between_gateways():
    alone, one_of_four = RereadBudget(), RereadBudget()
    for budget, gateways in ((alone, 0), (one_of_four, 4)):
        budget.allows_at(8, gateways, 0.0)
        budget.spend(0.16)
    assert alone.allows_at(8, 0, 0.0) == pytest.approx(1.0)  # 2 % of eight workers
    assert one_of_four.allows_at(8, 4, 0.0) == pytest.approx(4.0)
    assert alone.allows_at(8, 0, 1.01) == 1.01


def test_no_more_than_one_long_prompt_is_saved_up():
    budget = RereadBudget()
    assert budget.allows_at(8, 0, 1000.0) == 1000.0
    budget.spend(1.4)
    assert budget.allows_at(8, 0, 1000.0) > 1000.0


def test_without_workers_there_is_nothing_to_save():
    budget = RereadBudget()
    budget.spend(5.0)
    assert budget.allows_at(0, 0, 1.0) == 1.0
