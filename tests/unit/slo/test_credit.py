"""What is owed for a month."""

import pytest

from service.slo.credit import NO_CREDIT, STANDARD, Ladder, Step, compute_credit


@pytest.mark.parametrize(
    ("availability", "credit"),
    [(1.0, 0.0), (0.999, 0.0), (0.99899, 0.1), (0.99, 0.1), (0.98999, 0.25), (0.95, 0.25), (0.949, 1.0), (0.0, 1.0)],
)
def test_the_standard_ladder(availability, credit):
    assert compute_credit(availability, 0.999) == credit


def test_nothing_is_owed_while_the_tier_keeps_its_own_objective():
    assert compute_credit(0.996, 0.995) == 0.0
    assert compute_credit(0.994, 0.995) == 0.1


def test_nothing_is_owed_where_nothing_was_promised_or_judged():
    assert compute_credit(0.5, None) == 0.0
    assert compute_credit(None, 0.999) == 0.0
    assert compute_credit(0.5, 0.999, NO_CREDIT) == 0.0


def test_the_order_of_the_steps_does_not_matter():
    assert compute_credit(0.9, 0.999, Ladder(STANDARD.steps[::-1])) == 1.0
    assert compute_credit(0.9985, 0.999, Ladder((Step(0.999, 0.3), Step(0.99, 0.2)))) == 0.3
