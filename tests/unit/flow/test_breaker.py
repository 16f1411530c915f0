"""When a worker is tried and when it is left alone."""

import pytest

from service.domain.event import FailureCause
from service.flow.breaker import (
    BreakerState,
    may_try,
    next_change_at,
    observe_dispatch,
    observe_failure,
    observe_nothing,
    observe_success,
)
from service.flow.config import BreakerConfig

CONFIG = BreakerConfig(failures_to_open=3, open_s=1.0, open_max_s=5.0, busy_rest_s=0.5, busy_rest_max_s=2.0)


def fail(state, now=0.0, cause=FailureCause.BROKEN, retry_after_s=None):
    observe_failure(state, cause, retry_after_s, now, CONFIG)


@pytest.fixture
def opened():
    """A breaker that opened at 0 until 1."""
    state = BreakerState()
    fail(state, cause=FailureCause.UNREACHABLE)
    return state


def test_a_fresh_worker_may_be_tried():
    assert may_try(BreakerState(), 0.0)
    assert next_change_at(BreakerState(), 0.0) is None


def test_three_broken_answers_in_a_row_open_it():
    state = BreakerState()
    fail(state)
    fail(state)
    assert may_try(state, 0.0)
    fail(state)
    assert not may_try(state, 0.5)
    assert next_change_at(state, 0.5) == 1.0


def test_a_success_between_starts_the_count_anew():
    state = BreakerState()
    fail(state)
    fail(state)
    observe_success(state)
    fail(state)
    assert may_try(state, 0.0)


def test_a_refused_connection_opens_it_at_once(opened):
    assert not may_try(opened, 0.999)


def test_after_its_time_one_request_probes(opened):
    assert may_try(opened, 1.0)
    observe_dispatch(opened)
    assert not may_try(opened, 1.0)
    assert next_change_at(opened, 1.0) is None


def test_dispatch_to_a_closed_breaker_is_no_probe():
    state = BreakerState()
    observe_dispatch(state)
    assert not state.probing


def test_a_probe_that_lives_closes_it(opened):
    observe_dispatch(opened)
    observe_success(opened)
    assert may_try(opened, 1.0)
    assert opened == BreakerState()


def test_a_probe_whose_client_left_makes_room_for_another(opened):
    observe_dispatch(opened)
    observe_nothing(opened)
    assert may_try(opened, 1.0)


@pytest.mark.parametrize(("again", "length_s"), [(1, 2.0), (2, 4.0), (3, 5.0), (40, 5.0)])
def test_each_failed_probe_doubles_the_rest_up_to_a_bound(opened, again, length_s):
    for turn in range(again):
        observe_dispatch(opened)
        fail(opened, now=100.0 * (turn + 1))
    assert opened.open_until == 100.0 * again + length_s


def test_those_under_way_when_it_opened_do_not_lengthen_the_rest(opened):
    for _ in range(20):
        fail(opened, now=0.5)
    assert opened.open_until == 1.0
    assert opened.openings == 1


def test_a_busy_worker_rests_and_is_alive(opened):
    fail(opened, now=2.0, cause=FailureCause.BUSY)
    assert opened.open_until is None
    assert not may_try(opened, 2.4)
    assert next_change_at(opened, 2.4) == 2.5
    assert may_try(opened, 2.5)


@pytest.mark.parametrize(("wish_s", "rest_s"), [(1.5, 1.5), (3600.0, 2.0), (0.0, 0.0)])
def test_a_busy_workers_own_wish_is_followed_within_bounds(wish_s, rest_s):
    state = BreakerState()
    fail(state, now=10.0, cause=FailureCause.BUSY, retry_after_s=wish_s)
    assert state.busy_until == 10.0 + rest_s


def test_a_later_wish_never_shortens_a_rest():
    state = BreakerState()
    fail(state, now=10.0, cause=FailureCause.BUSY, retry_after_s=2.0)
    fail(state, now=10.0, cause=FailureCause.BUSY, retry_after_s=0.1)
    assert state.busy_until == 12.0


def test_what_we_took_back_says_nothing(opened):
    observe_dispatch(opened)
    fail(opened, now=1.0, cause=FailureCause.REVOKED)
    assert may_try(opened, 1.0)
    assert opened.failures == 1
