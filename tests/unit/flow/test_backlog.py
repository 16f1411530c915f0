"""Work by deadline."""

import random

import pytest

from service.flow.backlog import DueWork


def test_what_is_due_earlier_is_summed():
    due = DueWork()
    due.add(1.0, 3.0)
    due.add(1.2, 4.0)
    due.add(9.0, 5.0)
    assert due.sum_until(0.9) == 0.0
    assert due.sum_until(1.0) == 7.0  # told apart to half a second
    assert due.sum_until(9.0) == 12.0
    due.take(1.2, 4.0)
    assert due.sum_until(100.0) == 8.0
    due.clear()
    assert due.sum_until(100.0) == 0.0


def test_deadlines_far_apart_sum_up_to_the_same():
    due, chance = DueWork(), random.Random(3)
    works = [(chance.random() * 100_000.0, 1.0) for _ in range(3000)]
    for due_at, hold_s in works:
        due.add(due_at, hold_s)
    for until in (0.0, 77.7, 5_000.25, 50_000.0, 99_999.9):
        bucket = int(until / 0.5)
        assert due.sum_until(until) == pytest.approx(sum(int(at / 0.5) <= bucket for at, _ in works))


def test_nothing_is_left_over():
    due = DueWork()
    for number in range(500):
        due.add(number * 10.0, 0.1)
    for number in range(500):
        due.take(number * 10.0, 0.1)
    assert not any(due._tables)
