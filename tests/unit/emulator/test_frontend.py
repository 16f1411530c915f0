"""The HTTP process before the engine: requests are known later, one after another, and may cost the engine time."""

import random
from dataclasses import replace

import pytest

from service.emulator.engine import Engine
from service.emulator.profiles import Frontend
from service.emulator.steps import EngineConfig, EngineRequest
from tests.unit.emulator.test_engine import PLAIN, run


def build(frontend):
    return Engine(replace(PLAIN, frontend=frontend), EngineConfig(), random.Random(1))


def first_tokens(steps):
    return {name: at for at, result in steps for name, _, _ in result.first_tokens}


def test_a_request_is_known_after_latency_and_work():
    engine = build(Frontend(latency_s=0.5, per_request_s=0.25, per_prompt_token_s=0.01))
    engine.submit(EngineRequest("a", prompt_tokens=10, output_tokens=2), 1.0)
    assert engine.next_step_at() == pytest.approx(1.0 + 0.5 + 0.25 + 0.1)
    steps = run(engine)
    assert first_tokens(steps)["a"] == pytest.approx(1.85 + 0.01 + 10 * 0.0001)
    assert steps[-1][1].finished[0].arrived_at == 1.0, "what a client waits counts from when it sent"


def test_requests_are_worked_off_one_by_one_while_their_latency_passes_together():
    engine = build(Frontend(latency_s=1.0, per_request_s=0.5))
    for name in "abc":
        engine.submit(EngineRequest(name, 10, 1), 0.0)
    firsts = first_tokens(run(engine))
    assert [round(firsts[name], 3) for name in "abc"] == [1.511, 2.011, 2.511]


def test_they_count_as_waiting_before_the_engine_knows_them():
    engine = build(Frontend(latency_s=1.0))
    engine.submit(EngineRequest("a", 10, 1), 0.0)
    assert (engine.stats().waiting, engine.stats().queued_tokens) == (1, 10)
    run(engine)
    assert (engine.stats().waiting, engine.stats().queued_tokens) == (0, 0)


def test_one_that_is_given_up_on_the_way_leaves_nothing():
    engine = build(Frontend(latency_s=1.0))
    engine.submit(EngineRequest("a", 10, 5), 0.0)
    engine.submit(EngineRequest("b", 10, 1), 0.2)
    engine.abort("a", 0.1)
    steps = run(engine)
    assert [name for _, result in steps for name in result.aborted] == ["a"]
    assert list(first_tokens(steps)) == ["b"]
    assert engine.stats().waiting == 0
    assert engine.stats().kv_blocks_used == 0


@pytest.mark.parametrize(("ratio", "lost_s"), [(0.0, 0.0), (0.5, 0.2), (1.0, 0.4)])
def test_on_shared_processors_a_running_engine_loses_time_to_arrivals(ratio, lost_s):
    engine = build(Frontend(per_request_s=0.4, stall_ratio=ratio))
    engine.submit(EngineRequest("a", 10, 40), 0.0)
    engine.step(engine.next_step_at())
    alone_s = engine.next_step_at() - 0.4
    engine.submit(EngineRequest("b", 10, 1), 0.41)
    began_at = engine.next_step_at()
    engine.step(began_at)
    assert alone_s == pytest.approx(0.011), "the first request came to an idle engine and cost it nothing"
    assert engine.next_step_at() - began_at == pytest.approx(0.011 + lost_s)
