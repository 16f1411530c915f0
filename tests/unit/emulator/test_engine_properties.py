"""What holds of the engine whatever is thrown at it."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from service.emulator.engine import Engine
from service.emulator.profiles import EngineProfile, OutputModel, Speculation, StepCost
from service.emulator.steps import EngineConfig, EngineRequest

BLOCK = 4


def profile(blocks, seqs, budget, drafts):
    return EngineProfile(
        name="random",
        cost=StepCost(
            base_s=0.01,
            per_token_s=0.001,
            per_mega_kv_s=1.0,
            per_prefill_token_s=0.001,
            noise_cv=0.1,
            stall_probability=0.05,
            stall_mean_s=0.1,
        ),
        output=OutputModel(median_tokens=5, sigma=0.5),
        max_num_batched_tokens=budget,
        max_num_seqs=seqs,
        kv_blocks=blocks,
        max_model_len=1000,
        block_size=BLOCK,
        speculation=Speculation(schedule=((1, 3, drafts),), accept_length=((3, 1.0 + drafts / 2),)),
    )


machines = st.builds(
    profile, blocks=st.integers(4, 40), seqs=st.integers(1, 6), budget=st.integers(8, 64), drafts=st.integers(0, 4)
)
requests = st.lists(
    st.tuples(
        st.floats(0, 2),  # arrival
        st.integers(1, 40),  # prompt
        st.integers(1, 30),  # output
        st.integers(0, 2),  # priority
        st.integers(0, 2),  # family: equal families share a prefix
        st.none() | st.floats(0, 3),  # abort after
    ),
    max_size=12,
)


def play(machine, plan, by_priority, seed):
    """Run the plan; returns the trace and the engine, checking every step on the way."""
    engine = Engine(machine, EngineConfig(priority_scheduling=by_priority), random.Random(seed))
    events = []
    for index, (arrival, prompt, output, priority, family, patience) in enumerate(plan):
        hashes = tuple(hash((family, block)) for block in range((prompt + output) // BLOCK))
        request = EngineRequest(str(index), prompt, output, priority, hashes)
        events.append((arrival, 0, index, request))
        if patience is not None:
            events.append((arrival + patience, 1, index, request))
    events.sort(key=lambda event: event[:3])
    trace = []
    turns = 0
    while events or engine.next_step_at() is not None:
        turns += 1
        assert turns < 20_000, "the engine makes no progress"
        due = engine.next_step_at()
        if events and (due is None or events[0][0] <= due):
            moment, kind, _, request = events.pop(0)
            (engine.abort if kind else engine.submit)(request.request_id if kind else request, moment)
            continue
        result = engine.step(due)
        trace.append((due, result))
        check(engine, machine)
    return trace, engine


def check(engine, machine):
    stats = engine.stats()
    assert 0 <= stats.kv_blocks_used <= machine.kv_blocks
    assert 0 <= stats.running <= machine.max_num_seqs
    assert stats.waiting >= 0
    assert stats.queued_tokens >= 0
    assert 0 <= stats.kv_tokens <= stats.kv_blocks_used * BLOCK * max(1, stats.running)
    assert 0.0 <= stats.kv_usage_ratio <= 1.0


@settings(max_examples=150, deadline=None)
@given(machines, requests, st.booleans(), st.integers(0, 99))
def test_tokens_are_conserved_and_everything_ends(machine, plan, by_priority, seed):
    trace, engine = play(machine, plan, by_priority, seed)
    tokens, ended = {}, {}
    for _, result in trace:
        for name, gain in result.tokens:
            assert name not in ended
            tokens[name] = tokens.get(name, 0) + gain
        for done in result.finished:
            ended[done.request_id] = done
        for name in result.aborted:
            assert name not in ended
            ended[name] = None
    assert set(ended) == {str(index) for index in range(len(plan))}
    for index, (arrival, prompt, output, *_) in enumerate(plan):
        done = ended[str(index)]
        assert tokens.get(str(index), 0) <= output
        if done is not None:
            assert tokens[str(index)] == done.output_tokens == output
            assert done.prompt_tokens == prompt
            assert done.cached_tokens < prompt
            assert arrival <= done.scheduled_at <= done.first_token_at <= done.last_token_at
    stats = engine.stats()
    assert stats.generation_tokens == sum(tokens.values())
    assert (stats.running, stats.waiting, stats.queued_tokens) == (0, 0, 0)
    assert (stats.kv_blocks_used, stats.kv_tokens) == (0, 0)


@settings(max_examples=60, deadline=None)
@given(machines, requests, st.booleans(), st.integers(0, 99))
def test_the_same_seed_gives_the_same_trace(machine, plan, by_priority, seed):
    assert play(machine, plan, by_priority, seed)[0] == play(machine, plan, by_priority, seed)[0]


@settings(max_examples=60, deadline=None)
@given(machines, requests, st.integers(0, 99))
def test_steps_never_end_before_they_begin(machine, plan, seed):
    trace, _ = play(machine, plan, False, seed)
    moments = [moment for moment, _ in trace]
    assert moments == sorted(moments)
    assert all(result.duration_s >= 0 for _, result in trace)
