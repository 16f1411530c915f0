"""What is remembered, and what follows from it at once."""

import random

from service.domain.load import WorkerLoad
from service.domain.tier import Tier
from service.flow.config import FlowConfig
from service.flow.retry import RetryBudget
from service.flow.state import FlowState


def build_state(**how):
    state = FlowState(FlowConfig(**how), random.Random(1), RetryBudget(1.0))
    state.ledger.join("a")
    state.ledger.worker("a").healthy = True
    state.ledger.sort_out(1024)
    return state


def test_capacity_is_known_when_a_limit_was_found_and_answers_were_seen():
    state = build_state()
    state.ledger.worker("a").limit.begin(WorkerLoad(0.0, 0, 0), 0)
    state.ledger.sort_out(1024)
    state.tpot_s = 0.02
    assert not state.capacity_found
    state.ledger.worker("a").limit._found = True
    assert state.capacity_found
    state.tpot_s = None
    assert not state.capacity_found


def test_the_operators_cap_is_a_capacity_too():
    state = build_state(requests_per_worker=2)
    state.tpot_s = 0.02
    assert state.capacity_found


def test_each_tier_has_a_calibration_of_its_own():
    state = build_state()
    assert state.calibration("gold") is state.calibration("gold")
    assert state.calibration("gold") is not state.calibration("silver")


def test_the_loosest_promise():
    assert build_state().loosest_tpot_s is None
    tiers = {"a": Tier("a", 0, tpot_target_s=0.02), "b": Tier("b", 1, tpot_target_s=0.1), "c": Tier("c", 2)}
    state = build_state(tiers=tiers)
    assert state.loosest_tpot_s == 0.1
    state.ledger.common.observe(1.0, 0.2)
    assert state.loosest_tpot_s is None
