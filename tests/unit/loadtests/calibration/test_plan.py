"""What is asked of the engine: the sweep covers its grid, held-out runs are others, all of it follows from seeds."""

import json

import httpx
import pytest

from loadtests.calibration.plan import MIXES, Call, Run, Sweep, plan_flood, plan_held_out, plan_sweep, plan_warm_up
from loadtests.calibration.replay import Question, ReplayError, compute_capacity_rps, replay
from loadtests.calibration.texts import Writer, hash_blocks
from service.emulator.template import encode, render_chat
from tests.unit.loadtests.calibration.world import TRUE, ask


def test_the_sweep_has_every_cell_once():
    sweep = Sweep()
    runs = plan_sweep(sweep, 4096)
    assert len({run.name for run in runs}) == len({run.seed for run in runs}) == len(runs)
    cells = {(len(run.calls), run.calls[0].prompt_tokens, run.calls[0].shared_tokens > 0) for run in runs}
    for batch in sweep.batches:
        for prompt in sweep.prompts:
            assert (batch, prompt, False) in cells
            assert prompt < 256 or (batch, prompt, True) in cells


def test_what_does_not_fit_the_context_is_left_out():
    runs = plan_sweep(Sweep(), 1000)
    assert max(call.prompt_tokens for run in runs for call in run.calls) == 600
    assert all(call.prompt_tokens + call.output_tokens <= 1000 for call in plan_warm_up(1000).calls)
    mix = MIXES[1]
    assert all(c.prompt_tokens + c.output_tokens < 2000 for c in plan_held_out(mix, 20.0, 20.0, 1, 2000).calls)


@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: mix.name)
def test_held_out_arrivals_are_poisson_and_follow_from_their_seed(mix):
    run = plan_held_out(mix, 10.0, 200.0, 5, 4096)
    assert len(run.calls) == pytest.approx(2000, rel=0.1)
    gaps = [b.at_s - a.at_s for a, b in zip(run.calls, run.calls[1:], strict=False)]
    mean = sum(gaps) / len(gaps)
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert spread / mean == pytest.approx(1.0, rel=0.1)
    assert run == plan_held_out(mix, 10.0, 200.0, 5, 4096)
    assert run.calls != plan_held_out(mix, 10.0, 200.0, 6, 4096).calls
    assert {call.group for call in run.calls} == set(range(mix.groups))


def test_capacity_is_what_a_flood_gets_through():
    for mix in MIXES:
        questions = ask(plan_flood(mix, 100, 4096))
        capacity = compute_capacity_rps(TRUE, questions)
        over, under = (
            replay(TRUE, ask(plan_held_out(mix, factor * capacity, 40.0, 3, 4096))).times for factor in (1.5, 0.6)
        )
        assert over[-1].ttft_s > 3.0, "above capacity a queue grows"
        assert under[-1].ttft_s < 3.0, "below it does not"


def test_a_request_that_can_never_fit_is_told():
    with pytest.raises(ReplayError, match="do not fit"):
        replay(TRUE, [Question(0.0, 128 * (TRUE.kv_blocks + 1), 1)])


def answer(request):
    body = json.loads(request.content)
    ids = encode(render_chat(body["messages"], [], open_last=False))
    return httpx.Response(200, json={"count": len(ids), "tokens": ids})


@pytest.fixture
def writer():
    client = httpx.Client(transport=httpx.MockTransport(answer), base_url="http://worker")
    return Writer(client, "small", 16)


def test_prompts_come_out_about_as_long_as_wished(writer):
    run = Run("it", 1, tuple(Call(0.0, tokens, 5) for tokens in (40, 300, 2000)))
    asks = writer.write(run, "salt")
    assert [one.prompt_tokens for one in asks] == [pytest.approx(call.prompt_tokens, rel=0.1) for call in run.calls]
    body = json.loads(asks[0].body)
    assert (body["max_tokens"], body["ignore_eos"], body["stream"], body["cache_salt"]) == (5, True, True, "salt")


def test_groups_share_a_beginning_and_nothing_else(writer):
    calls = [Call(0.0, 400, 5, 300, group) for group in (0, 0, 1)]
    first, second, other = (one.block_hashes for one in writer.write(Run("it", 1, tuple(calls)), "x"))
    common = [a == b for a, b in zip(first, second, strict=False)]
    assert 250 / 16 <= common.count(True) <= 320 / 16
    assert not any(common[common.index(False) :])
    assert not set(first) & set(other)


def test_block_hashes_are_chained():
    assert hash_blocks([1, 2, 3, 4, 5], 2) == hash_blocks([1, 2, 3, 4], 2)
    assert hash_blocks([9, 2, 3, 4], 2)[1] != hash_blocks([1, 2, 3, 4], 2)[1]
