"""What an answer teaches."""

import random

import pytest

from service.domain.event import PermitEnded
from service.domain.load import WorkerLoad
from service.domain.permit import PermitEnding
from service.flow.config import FlowConfig
from service.flow.learning import learn_answer, learn_first_token
from service.flow.retry import RetryBudget
from service.flow.shedding import WasteBudget
from service.flow.state import FlowState
from tests.support.flow import build_entry


@pytest.fixture
def state():
    """One worker, on which r has run since 0."""
    state = FlowState(FlowConfig(), random.Random(1), RetryBudget(1.0))
    state.ledger.join("a")
    state.ledger.grant(build_entry("r"), state.ledger.worker("a"), 100, 0.1, 0.0)
    return state


def answer(state, tokens, now=10.9):
    running, worker = state.ledger.release("r", now)
    learn_answer(state, WasteBudget(), PermitEnded("r", PermitEnding.SERVED, tokens, 100), running, worker, now)


def test_a_first_token_teaches_the_pool_and_the_worker(state):
    worker = state.ledger.worker("a")
    before = state.calibration("standard").q
    learn_first_token(state, state.ledger.running["r"], worker, 0.5)
    assert state.calibration("standard").q > before
    assert worker.prefill.predict_s(100) == state.prefill.predict_s(100) > 0.1


def test_an_answer_gives_the_mean_time_per_token(state):
    state.ledger.start_decoding(state.ledger.running["r"], 1.0)
    answer(state, 100)
    assert state.tpot_s == pytest.approx(0.1)
    assert state.ledger.worker("a").pace.predict_s(1.0) == pytest.approx(0.1)


def test_the_mean_follows_slowly(state):
    state.tpot_s = 0.05
    state.ledger.start_decoding(state.ledger.running["r"], 1.0)
    answer(state, 100)
    assert state.tpot_s == pytest.approx(0.0525)


@pytest.mark.parametrize("tokens", [None, 7])
def test_a_short_answer_says_nothing_of_it(state, tokens):
    state.ledger.start_decoding(state.ledger.running["r"], 1.0)
    answer(state, tokens)
    assert state.tpot_s is None


def test_one_without_a_first_token_neither(state):
    answer(state, 100)
    assert state.tpot_s is None


def test_a_worker_that_speaks_is_known_by_its_own_word(state):
    worker = state.ledger.worker("a")
    worker.load = WorkerLoad(0.0)
    state.ledger.start_decoding(state.ledger.running["r"], 1.0)
    answer(state, 100)
    assert not worker.pace.known
