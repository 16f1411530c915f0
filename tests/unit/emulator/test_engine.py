"""What the engine model does, step by step, in virtual time."""

import random

import pytest

from service.emulator.engine import Engine
from service.emulator.profiles import CPU_SMALL, M31_FLASH, EngineProfile, OutputModel, Speculation, StepCost
from service.emulator.steps import Conditions, EngineConfig, EngineRequest, RefusalReason, StepResult

PLAIN = EngineProfile(
    name="plain",
    cost=StepCost(base_s=0.01, per_token_s=0.001, per_mega_kv_s=0.0, per_prefill_token_s=0.0001),
    output=OutputModel(median_tokens=10, sigma=0.0),
    max_num_batched_tokens=64,
    max_num_seqs=4,
    kv_blocks=32,
    max_model_len=512,
    block_size=16,
)


def build(profile=PLAIN, seed=1, **config):
    return Engine(profile, EngineConfig(**config), random.Random(seed))


def run(engine, now=0.0, limit=10_000):
    """Step until idle; returns (moment, result) of each step."""
    steps = []
    while (due := engine.next_step_at()) is not None:
        now = due
        steps.append((now, engine.step(now)))
        assert len(steps) < limit
    return steps


def gained(steps, name):
    return sum(tokens for _, result in steps for who, tokens in result.tokens if who == name)


def test_it_counts_what_a_living_request_has_yielded():
    engine = build()
    engine.submit(EngineRequest("a", 8, 5), 0.0)
    engine.step(0.0)
    assert engine.count_output_tokens("a") == 0
    for yielded in (1, 2, 3):
        engine.step(engine.next_step_at())
        assert engine.count_output_tokens("a") == yielded
    assert engine.count_output_tokens("b") == 0


def test_idle_engine_asks_for_nothing():
    engine = build()
    assert engine.next_step_at() is None
    assert engine.step(1.0) == StepResult()


def test_one_request_takes_one_prefill_step_and_one_step_per_further_token():
    engine = build()
    engine.submit(EngineRequest("a", prompt_tokens=10, output_tokens=3), 5.0)
    steps = run(engine)
    # The call at 5.0 starts the prefill (0.01 + 10 * 0.0001); two decodes of 0.011 follow.
    assert [moment for moment, _ in steps] == pytest.approx([5.0, 5.011, 5.022, 5.033])
    assert [result.tokens for _, result in steps] == [[], [("a", 1)], [("a", 1)], [("a", 1)]]
    (done,) = steps[-1][1].finished
    assert (done.output_tokens, done.prompt_tokens, done.preemptions) == (3, 10, 0)
    assert (done.arrived_at, done.scheduled_at) == (5.0, 5.0)
    assert done.first_token_at == pytest.approx(5.011)
    assert done.last_token_at == pytest.approx(5.033)


def test_long_prompts_are_computed_in_chunks_of_the_budget():
    engine = build()
    engine.submit(EngineRequest("a", prompt_tokens=150, output_tokens=1), 0.0)
    assert [result.prefill_tokens for _, result in run(engine)] == [0, 64, 64, 22]


def test_running_requests_come_before_waiting_ones():
    engine = build()
    engine.submit(EngineRequest("a", prompt_tokens=64, output_tokens=50), 0.0)
    engine.step(0.0)
    engine.submit(EngineRequest("b", prompt_tokens=64, output_tokens=1), 0.001)
    first = engine.step(engine.next_step_at())
    assert first.tokens == [("a", 1)]
    second = engine.step(engine.next_step_at())  # b got what a's decode left of the budget
    assert second.prefill_tokens == 63
    assert second.tokens == [("a", 1)]


def test_no_more_requests_run_than_places():
    engine = build(max_num_seqs=2)
    for name in "abc":
        engine.submit(EngineRequest(name, prompt_tokens=4, output_tokens=4), 0.0)
    engine.step(0.0)
    assert (engine.stats().running, engine.stats().waiting, engine.stats().queued_tokens) == (2, 1, 4)
    assert gained(run(engine), "c") == 4


def test_priority_orders_the_waiting_list_only_when_asked():
    for priority_scheduling, expected in ((True, "urgent"), (False, "late")):
        engine = build(max_num_seqs=1, priority_scheduling=priority_scheduling)
        engine.submit(EngineRequest("first", prompt_tokens=4, output_tokens=3, priority=5), 0.0)
        engine.step(0.0)
        engine.submit(EngineRequest("late", prompt_tokens=4, output_tokens=1, priority=5), 0.001)
        engine.submit(EngineRequest("urgent", prompt_tokens=4, output_tokens=1, priority=0), 0.002)
        ends = [done.request_id for _, result in run(engine) for done in result.finished]
        assert ends[0] == "first"  # a waiting request never displaces a running one
        assert ends[1] == expected


def test_cached_prefix_blocks_are_not_computed_again():
    engine = build()
    hashes = (11, 22, 33)
    engine.submit(EngineRequest("a", prompt_tokens=50, output_tokens=1, block_hashes=hashes), 0.0)
    run(engine)
    engine.submit(EngineRequest("b", prompt_tokens=50, output_tokens=1, block_hashes=(*hashes[:2], 99)), 1.0)
    steps = run(engine)
    assert [result.prefill_tokens for _, result in steps] == [0, 50 - 32]
    assert steps[-1][1].first_tokens[0][2] == 32
    stats = engine.stats()
    assert (stats.prefix_queries, stats.prefix_hits, stats.cached_tokens, stats.prompt_tokens) == (100, 32, 32, 100)


def test_a_fully_cached_prompt_still_computes_its_last_block():
    engine = build()
    for name in "ab":
        engine.submit(EngineRequest(name, prompt_tokens=32, output_tokens=1, block_hashes=(1, 2)), 0.0)
        steps = run(engine)
    assert steps[-1][1].prefill_tokens == 16


def test_prefix_caching_can_be_switched_off():
    engine = build(prefix_caching=False)
    for name in "ab":
        engine.submit(EngineRequest(name, prompt_tokens=32, output_tokens=1, block_hashes=(1, 2)), 0.0)
        run(engine)
    assert engine.stats().prefix_hits == 0


@pytest.mark.parametrize(("by_priority", "victim"), [(True, "a"), (False, "b")])
def test_kv_exhaustion_preempts_the_lowest_rank_and_recomputes_it(by_priority, victim):
    engine = build(kv_blocks=6, priority_scheduling=by_priority)
    engine.submit(EngineRequest("a", prompt_tokens=30, output_tokens=40, priority=9), 0.0)
    engine.submit(EngineRequest("b", prompt_tokens=30, output_tokens=40, priority=0), 0.0)
    steps = run(engine)
    assert victim in {name for _, result in steps for name in result.preempted}
    assert (gained(steps, "a"), gained(steps, "b")) == (40, 40)
    lives = {done.request_id: done for _, result in steps for done in result.finished}
    assert lives[victim].preemptions >= 1
    assert engine.stats().preemptions >= 1
    assert engine.stats().kv_blocks_used == 0


def test_a_request_that_can_never_fit_is_given_up():
    engine = build(kv_blocks=2, max_num_batched_tokens=512)
    engine.submit(EngineRequest("whole", prompt_tokens=100, output_tokens=1), 0.0)
    assert engine.step(0.0).aborted == ["whole"]
    engine.submit(EngineRequest("grows", prompt_tokens=20, output_tokens=200), 1.0)
    assert [name for _, result in run(engine) for name in result.aborted] == ["grows"]
    assert engine.stats().kv_blocks_used == 0
    assert engine.next_step_at() is None


def test_abort_takes_effect_at_the_next_step():
    engine = build()
    for name in "ab":
        engine.submit(EngineRequest(name, prompt_tokens=4, output_tokens=100), 0.0)
    engine.step(0.0)
    engine.abort("a", 0.001)
    engine.abort("a", 0.001)
    engine.abort("unknown", 0.001)
    assert engine.stats().running == 2
    result = engine.step(engine.next_step_at())
    assert result.aborted == ["a"]
    assert [name for name, _ in result.tokens] == ["b"]
    assert engine.stats().running == 1


def test_abort_of_a_waiting_request():
    engine = build(max_num_seqs=1)
    for name in "ab":
        engine.submit(EngineRequest(name, prompt_tokens=4, output_tokens=3), 0.0)
    engine.step(0.0)
    engine.abort("b", 0.0)
    steps = run(engine)
    assert steps[0][1].aborted == ["b"]
    assert (gained(steps, "a"), gained(steps, "b")) == (3, 0)
    assert engine.stats().queued_tokens == 0


def test_abort_before_anything_runs():
    engine = build()
    engine.submit(EngineRequest("a", prompt_tokens=4, output_tokens=3), 0.0)
    engine.abort("a", 0.5)
    assert engine.next_step_at() == 0.5
    assert engine.step(0.5).aborted == ["a"]
    assert engine.next_step_at() is None


def test_a_living_id_is_not_taken_twice():
    engine = build()
    engine.submit(EngineRequest("a", prompt_tokens=4, output_tokens=2), 0.0)
    engine.submit(EngineRequest("a", prompt_tokens=4, output_tokens=9), 0.0)
    assert gained(run(engine), "a") == 2


def test_valves():
    engine = build(max_num_queued_reqs=2, max_num_seqs=1)
    assert engine.choose_refusal(2) is None
    assert engine.choose_refusal(3) is RefusalReason.QUEUED_REQUESTS
    engine = build(max_num_queued_tokens=5, max_num_seqs=1)
    for name in "ab":
        assert engine.choose_refusal() is None
        engine.submit(EngineRequest(name, prompt_tokens=9, output_tokens=9), 0.0)
        engine.step(0.0)
    assert engine.choose_refusal() is RefusalReason.QUEUED_TOKENS


def test_speculation_brings_several_tokens_a_step_and_is_counted():
    profile = EngineProfile(
        name="drafts",
        cost=StepCost(base_s=0.01, per_token_s=0.001, per_mega_kv_s=0.0, per_prefill_token_s=0.0),
        output=OutputModel(median_tokens=10, sigma=0.0),
        max_num_batched_tokens=64,
        max_num_seqs=4,
        kv_blocks=200,
        max_model_len=4096,
        block_size=16,
        speculation=Speculation(schedule=((1, 2, 3),), accept_length=((2, 2.5),)),
    )
    engine = build(profile)
    engine.submit(EngineRequest("a", prompt_tokens=4, output_tokens=2000), 0.0)
    steps = run(engine)
    decodes = [tokens for _, result in steps[2:-1] for _, tokens in result.tokens]
    assert set(decodes) <= {1, 2, 3, 4}
    assert sum(decodes) / len(decodes) == pytest.approx(2.5, rel=0.08)
    stats = engine.stats()
    assert stats.draft_tokens == 3 * stats.drafts
    assert 1 + stats.accepted_tokens / stats.drafts == pytest.approx(2.5, rel=0.08)
    assert list(stats.accepted_per_position) == sorted(stats.accepted_per_position, reverse=True)
    assert gained(steps, "a") == 2000
    # Verifying drafts costs time: d * (1 + K).
    assert steps[5][1].duration_s == pytest.approx(0.014)


def test_speculation_stops_above_its_batch_sizes():
    engine = build(M31_FLASH)
    for index in range(200):
        engine.submit(EngineRequest(str(index), prompt_tokens=16, output_tokens=8), 0.0)
    steps = run(engine)
    assert all(tokens == 1 for _, result in steps[1:4] for _, tokens in result.tokens)


def test_conditions_slow_the_engine_and_take_its_blocks():
    engine = build()
    engine.change(Conditions(step_factor=3.0))
    engine.submit(EngineRequest("a", prompt_tokens=10, output_tokens=2), 0.0)
    assert run(engine)[1][0] == pytest.approx(0.033)
    engine.change(Conditions(kv_blocks=3))
    assert engine.stats().kv_blocks_total == 3
    engine.change(Conditions())
    assert engine.stats().kv_blocks_total == 32


def test_losing_blocks_in_use_preempts_instead_of_breaking():
    engine = build()
    for name in "abc":
        engine.submit(EngineRequest(name, prompt_tokens=20, output_tokens=60), 0.0)
    engine.step(0.0)
    engine.step(engine.next_step_at())
    engine.change(Conditions(kv_blocks=6))
    steps = run(engine)
    assert {gained(steps, name) for name in "abc"} <= {59, 60}
    assert engine.stats().kv_blocks_used == 0


def test_long_context_prefill_costs_more():
    early, late = [], []
    for prompt, into in ((8192, early), (200_000, late)):
        engine = build(M31_FLASH, seed=3)
        engine.submit(EngineRequest("a", prompt_tokens=prompt, output_tokens=1), 0.0)
        into += [result.duration_s for _, result in run(engine)][1:]
    assert late[-2] > max(early)


@pytest.mark.parametrize(
    ("profile", "batch", "low_s", "high_s"),
    [(M31_FLASH, 1, 0.010, 0.014), (M31_FLASH, 256, 0.026, 0.034), (CPU_SMALL, 1, 0.002, 0.003)],
)
def test_profiles_meet_their_reference_figures(profile, batch, low_s, high_s):
    engine = build(profile, seed=5)
    for index in range(batch):
        engine.submit(EngineRequest(str(index), prompt_tokens=8, output_tokens=60), 0.0)
    durations = sorted(result.duration_s for _, result in run(engine)[3:-1])
    assert low_s < durations[len(durations) // 2] < high_s


def test_the_cpu_profile_gives_500_tokens_a_second_at_16_streams():
    engine = build(CPU_SMALL, seed=5)
    for index in range(16):
        engine.submit(EngineRequest(str(index), prompt_tokens=8, output_tokens=100), 0.0)
    end, _ = run(engine)[-1]
    assert 1600 / end == pytest.approx(500, rel=0.1)
