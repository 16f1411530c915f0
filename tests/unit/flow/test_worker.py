"""What is known and learned of one worker."""

from math import inf

import pytest

from service.domain.load import WorkerLoad
from service.flow.worker import WorkerState, widen_for


def load(at, generated, running=8, waiting=0):
    return WorkerLoad(at, running, waiting, 0.5, generation_tokens=generated)


def decode(worker, count, now=0.0):
    for _ in range(count):
        worker.count_decoding(1, now)


def test_promises_are_counted():
    worker = WorkerState("a")
    for tpot_s in (0.05, 0.02, 0.02, None):
        worker.promise(tpot_s, 1)
    assert worker.tightest_s == 0.02
    worker.promise(0.02, -1)
    assert worker.tightest_s == 0.02
    worker.promise(0.02, -1)
    assert worker.tightest_s == 0.05


def test_a_promise_that_nobody_could_keep_counts_for_none():
    worker = WorkerState("a")
    worker.promise(0.02, 1)
    worker.pace.observe(1.0, 0.03)
    worker.promise(0.05, 1)
    assert worker.tightest_s == 0.05
    worker.promise(0.05, -1)
    assert worker.tightest_s == inf


def test_two_readings_give_the_pace():
    worker = WorkerState("a")
    decode(worker, 8)
    worker.observe_load(load(0.0, 1000), None, 0.0)
    worker.observe_load(load(1.0, 1400), None, 1.0)  # 8 requests, 400 tokens in a second
    assert worker.pace.predict_s(8.0) == pytest.approx(0.02)
    assert worker.read_pace() is worker.pace
    assert worker.foresee_tpot_s(8.0) == pytest.approx(0.02)


def test_before_its_own_pace_the_pools_counts():
    worker = WorkerState("a")
    assert worker.foresee_tpot_s(4.0) is None
    worker.common.observe(4.0, 0.03)
    assert worker.foresee_tpot_s(4.0) == 0.03


@pytest.mark.parametrize("generated", [None, 900])
def test_a_counter_that_is_missing_or_went_back_gives_no_pace(generated):
    worker = WorkerState("a")
    decode(worker, 8)
    worker.observe_load(load(0.0, 1000), None, 0.0)
    worker.observe_load(load(1.0, generated), None, 1.0)
    assert not worker.pace.known


def test_the_same_reading_twice_says_nothing():
    worker = WorkerState("a")
    decode(worker, 8)
    for _ in range(3):
        worker.observe_load(load(1.0, 1000), None, 2.0)
    assert worker.limit.limit == 8


def test_a_stale_reading_grants_nothing():
    """I17"""
    worker = WorkerState("a")
    decode(worker, 8)
    worker.observe_load(load(0.0, 1000), None, 0.0)
    worker.observe_load(load(5.0, 1400), None, 9.0)
    assert worker.limit.limit == 8
    worker.observe_load(load(9.0, 1800), None, 9.5)
    assert worker.limit.limit == 8  # the mean since the last reading is small
    worker.observe_load(load(10.0, 2200), None, 10.5)
    assert worker.limit.limit == 16


def test_a_long_prompt_spoils_a_reading():
    worker = WorkerState("a")
    decode(worker, 8)
    worker.observe_load(load(0.0, 1000), None, 0.0)
    worker.backlog_tokens = 10_000
    worker.observe_load(load(1.0, 1100), None, 1.0)
    assert not worker.pace.known


def test_prompts_take_their_share_of_the_time():
    worker = WorkerState("a")
    decode(worker, 8)
    worker.observe_load(load(0.0, 1000), 0.05, 0.0)
    worker.prefilled_tokens = 10_000  # 0.3 s at the first guess
    worker.observe_load(load(1.0, 1200), 0.05, 1.0)
    assert worker.prefill_ratio == pytest.approx(0.03)
    assert worker.pace.predict_s(8.0) == pytest.approx(0.028)
    assert worker.slack.rate == pytest.approx(0.85 * 0.05 / 0.028 - 1.0)
    assert worker.foresee_tpot_s(8.0) == pytest.approx(0.028 / 0.97)


def test_its_word_goes_stale():
    worker = WorkerState("a")
    assert not worker.is_stale(1e9)
    worker.observe_load(load(0.0, 0), None, 0.0)
    assert not worker.is_stale(3.0)
    assert worker.is_stale(3.1)


def test_a_counter_that_goes_back_tells_of_a_restart():
    worker = WorkerState("a")
    assert not worker.has_restarted(load(0.0, 1000))
    worker.load = load(0.0, 1000)
    assert not worker.has_restarted(load(1.0, 1000))
    assert not worker.has_restarted(load(1.0, None))
    assert worker.has_restarted(load(1.0, 999))


def test_how_long_its_word_has_been_too_old():
    worker = WorkerState("a")
    assert worker.find_stale_s(100.0) == 0.0
    worker.load = load(0.0, 1000)
    assert worker.find_stale_s(3.0) == 0.0
    assert worker.find_stale_s(5.0) == 2.0


def test_the_older_its_word_the_wider_what_is_foreseen():
    assert [widen_for(stale_s) for stale_s in (0.0, 3.0, 6.0, 1000.0)] == pytest.approx([1.0, 1.2, 1.44, 2.5])
