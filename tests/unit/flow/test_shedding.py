"""Work is taken back when a promise would be missed otherwise."""

import random

import pytest

from service.domain.command import Revoke
from service.domain.outcome import Outcome
from service.flow.band import BEST_EFFORT
from service.flow.config import FlowConfig
from service.flow.retry import RetryBudget
from service.flow.shedding import WasteBudget, emitted_tokens, find_victim, revoke_for
from service.flow.state import FlowState
from tests.support.flow import build_entry

URGENT = {"due_at": 1.0, "hold_s": 0.1}


@pytest.fixture
def state():
    """Two workers, on each of which two of best effort run: a1, b1, a2, b2."""
    state = FlowState(FlowConfig(), random.Random(1), RetryBudget(1.0))
    for name in "ab":
        state.ledger.join(name)
        state.ledger.worker(name).healthy = True
    state.ledger.sort_out(1024)
    for turn in "12":
        for name in "ab":
            state.ledger.grant(build_entry(name + turn, band=BEST_EFFORT), state.ledger.worker(name), 10, 0.1, 0.0)
    return state


def victim_of(state, entry, waste=None, now=0.0):
    running = find_victim(state, entry, waste or WasteBudget(), now)
    return running and running.permit.request_id


def test_the_last_has_the_least_work_in_it(state):
    assert victim_of(state, build_entry("r", **URGENT)) == "b2"


def test_only_a_permit_that_helps_is_taken(state):
    assert victim_of(state, build_entry("r", pinned_to="a", **URGENT)) == "a2"
    state.ledger.worker("b").draining = True
    assert victim_of(state, build_entry("r", **URGENT)) == "a2"
    state.ledger.worker("a").healthy = False
    assert victim_of(state, build_entry("r", **URGENT)) is None


def test_who_has_said_much_is_spared(state):
    state.ledger.start_decoding(state.ledger.running["b2"], 0.0)
    assert emitted_tokens(state, state.ledger.running["b2"], 10.0) == pytest.approx(500.0)
    assert victim_of(state, build_entry("r", **URGENT), now=10.0) == "a2"


def test_one_victim_for_one_request_and_none_twice(state):
    waste = WasteBudget()
    for expected in ("b2", "a2", "b1", "a1"):
        assert revoke_for(state, build_entry("r", **URGENT), None, waste, 0.0) == [Revoke(expected, Outcome.REVOKED)]
    assert revoke_for(state, build_entry("r", **URGENT), None, waste, 0.0) == []


def test_when_the_budget_is_spent_nobody_is_taken_back(state):
    waste = WasteBudget()
    waste.observe(0.0, 1000.0, 0.0)
    assert revoke_for(state, build_entry("r", **URGENT), None, waste, 0.0) == []


@pytest.mark.parametrize(("wait_s", "taken"), [(0.1, 0), (0.4, 0), (0.6, 1)])
def test_who_will_be_in_time_needs_nobody(state, wait_s, taken):
    assert len(revoke_for(state, build_entry("r", **URGENT), wait_s, WasteBudget(), 0.0)) == taken


def test_where_permits_are_few_the_next_free_one_may_be_far(state):
    state.ledger.permits = 8
    entry = build_entry("r", due_at=1.0, hold_s=20.0)
    assert len(revoke_for(state, entry, 0.0, WasteBudget(), 0.0)) == 1


def test_without_a_promise_nobody_is_taken_back(state):
    assert revoke_for(state, build_entry("r"), None, WasteBudget(), 0.0) == []


def test_waste_is_forgotten_in_a_minute():
    waste = WasteBudget()
    waste.observe(10_000.0, 0.0, 0.0)
    assert waste.allows(500.0, 0.05)
    waste.observe(0.0, 520.0, 0.0)
    assert not waste.allows(10.0, 0.05)
    waste.observe(0.0, 0.0, 61.0)
    assert waste.allows(25.0, 0.05)
    assert not waste.allows(26.0, 0.05)
