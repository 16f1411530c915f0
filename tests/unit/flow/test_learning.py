"""What an answer teaches."""

import random

import pytest

from service.domain.event import PermitEnded
from service.domain.load import WorkerLoad
from service.domain.permit import PermitEnding
from service.flow.config import FlowConfig
from service.flow.learning import learn_answer, learn_cut, learn_first_token
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
    calibration = state.ledger.running["r"].entry.calibration
    before = calibration.q
    learn_first_token(state, state.ledger.running["r"], worker, 0.5)
    assert calibration.q > before
    assert worker.medians.factor(100, 0) == 1.0  # every second one teaches them
    state.ledger.running["r"].entry.sequence = next(n for n in range(9) if (n * 0x9E3779B1 >> 16) & 1)
    learn_first_token(state, state.ledger.running["r"], worker, 0.5)
    assert worker.medians.factor(100, 0) == 1.0  # nor do they learn before there is a forecast to be held against
    for _ in range(8):
        worker.prefill.observe(100, 0.1)
    learn_first_token(state, state.ledger.running["r"], worker, 0.5)
    assert worker.medians.factor(100, 0) > 1.0
    assert worker.prefill.predict_s(100) > 0.1
    assert state.prefill.predict_s(100) > 0.1


def test_only_prompts_longer_than_a_grain_tell_how_fast_a_worker_reads(state):
    worker, running = state.ledger.worker("a"), state.ledger.running["r"]
    worker.prefill.samples = 0
    before_s = worker.reading.per_kilotoken_s
    running.tokens = 255
    learn_first_token(state, running, worker, 2.0)
    assert worker.reading.per_kilotoken_s == before_s
    running.tokens, worker.read_at = 256, 0.0
    learn_first_token(state, running, worker, 2.0)
    assert worker.reading.per_kilotoken_s > before_s
    assert state.ledger.reading.per_kilotoken_s > before_s


def test_what_every_prompt_waits_is_not_reading(state):
    worker, running = state.ledger.worker("a"), state.ledger.running["r"]
    for tokens in (10, 1000) * 20:
        worker.prefill.observe(tokens, 0.5)
    running.tokens = 1000
    before_s = worker.reading.per_kilotoken_s
    learn_first_token(state, running, worker, 0.4)
    assert worker.reading.per_kilotoken_s < before_s


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


class TestWidening:
    """A first token that comes at once shows that there was room inside the worker."""

    def build(self, *, stream=True, speaks=True, due_at=None, held=8, cap=1024):
        state = FlowState(FlowConfig(requests_per_worker=cap), random.Random(1), RetryBudget(1.0))
        state.ledger.join("a")
        worker = state.ledger.worker("a")
        worker.healthy = True
        if speaks:
            worker.observe_load(WorkerLoad(0.0, 0, 0), None, 0.0)
        state.ledger.sort_out(cap)
        for number in range(held):
            entry = build_entry(f"r{number}", due_at=due_at, stream=stream)
            state.ledger.grant(entry, worker, 10, 0.02, 0.0)
        return state, worker

    def see(self, state, worker, at):
        running = state.ledger.running["r0"]
        state.ledger.start_decoding(running, at)
        learn_first_token(state, running, worker, at)

    @pytest.mark.parametrize(
        ("at", "due_at", "permits"), [(0.03, None, 9), (0.06, None, 8), (0.2, 1.0, 9), (0.3, 1.0, 8)]
    )
    def test_a_prompt_first_token_gives_one_more(self, at, due_at, permits):
        state, worker = self.build(due_at=due_at)
        self.see(state, worker, at)
        assert (worker.permits, worker.limit.limit, state.ledger.permits) == (permits, permits, permits)

    @pytest.mark.parametrize("how", [{"held": 5}, {"cap": 8}])
    def test_where_it_is_not_needed_or_not_allowed(self, how):
        state, worker = self.build(**how)
        self.see(state, worker, 0.03)
        assert worker.permits == 8

    def test_one_that_never_spoke_has_all_it_may(self):
        state, worker = self.build(speaks=False)
        self.see(state, worker, 0.03)
        assert worker.permits == 1024

    @pytest.mark.parametrize("spoil", ["found", "stale", "draining", "sick"])
    def test_where_there_is_reason_for_doubt(self, spoil):
        state, worker = self.build(due_at=100.0)
        at = 0.03
        if spoil == "found":
            worker.limit._found = True
        elif spoil == "stale":
            at = 5.0
        elif spoil == "draining":
            worker.draining = True
        else:
            worker.healthy = False
        self.see(state, worker, at)
        assert worker.limit.limit == 8

    def test_a_whole_answer_shows_it_too(self):
        state, worker = self.build(stream=False)
        running, worker = state.ledger.release("r0", 0.03)
        event = PermitEnded("r0", PermitEnding.SERVED, 100, 100)
        learn_answer(state, WasteBudget(), event, running, worker, 0.03)
        assert worker.permits == 9


def test_of_an_answer_that_came_whole_part_was_reading():
    state = FlowState(FlowConfig(), random.Random(1), RetryBudget(1.0))
    state.ledger.join("a")
    state.ledger.grant(build_entry("r", stream=False), state.ledger.worker("a"), 100, 1.0, 0.0)
    answer(state, 101)
    assert state.tpot_s == pytest.approx(0.099)


def test_many_first_tokens_teach_by_sample(state):
    worker = state.ledger.worker("a")
    for number in range(200):
        state.ledger.grant(build_entry(f"n{number}", sequence=number), worker, 100, 0.1, 0.0)
        learn_first_token(state, state.ledger.running[f"n{number}"], worker, 0.5)
    assert 80 < worker.prefill.samples < 120


@pytest.mark.parametrize(("tokens", "longer"), [(3000, True), (None, False)])
def test_an_aborted_answer_would_have_been_longer_than_it_came(state, tokens, longer):
    running = state.ledger.running["r"]
    before = state.estimator.estimate(running.entry.request).output_tokens
    learn_cut(state, PermitEnded("r", PermitEnding.IGNORED, tokens), running)
    assert (state.estimator.estimate(running.entry.request).output_tokens > before) is longer


def test_the_workers_own_count_says_how_far_its_cache_is_to_be_trusted(state):
    state.ledger.running["r"].known_ratio = 0.5
    running, worker = state.ledger.release("r", 1.0)
    event = PermitEnded("r", PermitEnding.SERVED, 100, 100, 40)
    learn_answer(state, WasteBudget(), event, running, worker, 1.0)
    assert worker.trust.ratio == state.trust.ratio == pytest.approx(0.8)


@pytest.mark.parametrize(("prompt", "cached"), [(100, None), (None, 10), (0, 0)])
def test_what_it_does_not_count_teaches_no_trust(state, prompt, cached):
    state.ledger.running["r"].known_ratio = 0.5
    running, worker = state.ledger.release("r", 1.0)
    event = PermitEnded("r", PermitEnding.SERVED, 100, prompt, cached)
    learn_answer(state, WasteBudget(), event, running, worker, 1.0)
    assert worker.trust.ratio == 0.5


def test_the_shortest_answers_of_a_tier_are_learned_from_those_with_a_pace():
    state = FlowState(FlowConfig(), random.Random(1), RetryBudget(1.0))
    state.ledger.join("a")
    for name, tpot_s in (("r", None), ("s", 0.05)):
        state.ledger.grant(build_entry(name, tpot_s=tpot_s), state.ledger.worker("a"), 100, 0.1, 0.0)
        running, worker = state.ledger.release(name, 1.0)
        learn_answer(state, WasteBudget(), PermitEnded(name, PermitEnding.SERVED, 100, 100), running, worker, 1.0)
        assert (state.short("standard").tokens > 2.0) is (tpot_s is not None)


@pytest.mark.parametrize(("attempt", "learned"), [(1, True), (2, False)])
def test_those_who_waited_teach_how_well_waits_are_foreseen(state, attempt, learned):
    running = state.ledger.running["r"]
    running.entry.foreseen_s, running.entry.attempt = 0.1, attempt
    before = state.wait_calibration("standard").q
    learn_first_token(state, running, state.ledger.worker("a"), 9.0)
    assert (state.wait_calibration("standard").q > before) is learned
