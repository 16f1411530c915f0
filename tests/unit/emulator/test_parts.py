"""The small pure parts: blocks, drafts, step time, tokens, words, faults, event forms, options."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.emulator.blocks import BlockPool
from service.emulator.config import ConfigFault, EmulatorConfig, parse_arguments
from service.emulator.delivery import chunk, shape
from service.emulator.faults import PROBE_FAULTS, FaultBoard, FaultKind, parse_faults
from service.emulator.profiles import M31_FLASH, PROFILES, StepCost
from service.emulator.speculation import Drafting, build_table, solve_acceptance
from service.emulator.stepcost import StepClock
from service.emulator.template import count_tokens, decode, encode, hash_blocks, render_chat
from service.emulator.writing import Script, ToolCall, Writer, build_key


def test_blocks_evict_the_least_recently_used_prefix():
    pool = BlockPool(3)
    assert pool.take(3)
    assert [pool.publish(name) for name in (1, 2, 3)] == [True, True, True]
    pool.release(0, [1, 2, 3])
    assert (pool.used, pool.available, pool.cached) == (0, 3, 3)
    assert pool.take(1)  # the tail of the prefix goes first
    assert pool.count_hits([1, 2, 3], 3) == 2
    assert not pool.take(3)
    assert pool.count_idle([1, 2]) == 2
    pool.acquire([1, 2])
    assert pool.count_idle([1, 2]) == 0
    assert not pool.publish(1)
    pool.acquire([1])
    pool.release(1, [1, 2])
    assert (pool.used, pool.count_hits([1, 2], 2)) == (1, 2)


def test_blocks_can_be_lost_and_won():
    pool = BlockPool(4)
    assert pool.take(2)
    pool.publish(7)
    pool.release(0, [7])
    pool.resize(1)
    assert (pool.total, pool.used, pool.cached) == (1, 1, 0)
    pool.resize(4)
    assert pool.take(3)


@given(st.integers(1, 7), st.floats(0.0, 1.0))
def test_draft_acceptance_is_solved_for_its_mean(drafts, share):
    mean = 1.0 + share * drafts
    rate = solve_acceptance(drafts, mean)
    assert sum(rate**power for power in range(drafts + 1)) == pytest.approx(mean, abs=1e-6)
    table = build_table(drafts, mean)
    assert sum(table) / len(table) == pytest.approx(mean, abs=0.02)
    assert set(table) <= set(range(1, drafts + 2))


def test_drafting_follows_the_schedule_and_its_scale():
    drafting = Drafting(M31_FLASH.speculation)
    assert [drafting.lookup(batch)[0] for batch in (1, 32, 33, 128, 129, 1024, 5000)] == [7, 7, 3, 3, 0, 0, 0]
    before = sum(drafting.lookup(1)[1])
    drafting.rescale(0.2)
    assert sum(drafting.lookup(1)[1]) < before
    assert M31_FLASH.speculation.enabled
    assert not PROFILES["instant"].speculation.enabled


def test_step_noise_has_mean_one_and_the_asked_variation():
    clock = StepClock(StepCost(1.0, 0.0, 0.0, 0.0, noise_cv=0.1), random.Random(1))
    values = [clock.compute_duration(0, 0, 0, 0.0, 1.0) for _ in range(4000)]
    mean = sum(values) / len(values)
    deviation = (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
    assert mean == pytest.approx(1.0, abs=0.01)
    assert deviation == pytest.approx(0.1, rel=0.1)


@given(st.text())
def test_tokens_are_reversible(text):
    data = text.encode("utf-8", "replace")
    assert len(encode(text)) == count_tokens(data)
    assert decode(encode(text)) == data.decode()


def test_foreign_tokens_do_not_break_the_tokenizer():
    assert decode([-1, 99 << 32]) == "??"


def test_prompts_share_blocks_as_far_as_they_are_equal():
    common = [{"role": "system", "content": "x" * 4000}]
    one = render_chat([*common, {"role": "user", "content": "a"}], [], open_last=False)
    two = render_chat([*common, {"role": "user", "content": "b"}], [{"name": "t"}][:0], open_last=False)
    first, second = hash_blocks(one, 128, ""), hash_blocks(two, 128, "")
    assert len(first) == len(one) // 512
    assert first[:7] == second[:7]
    assert set(hash_blocks(one, 128, "salt")).isdisjoint(first)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(0, 20))
def test_text_does_not_depend_on_how_it_is_cut_into_steps(cuts, reasoning):
    script = Script(build_key(b"prompt", 7, 0), reasoning, sum(cuts), ends_with_eos=True)
    whole, stepwise = Writer(script), Writer(script)
    whole.write(10_000)
    for cut in cuts:
        stepwise.write(cut)
    assert "".join(whole.content_parts) == "".join(stepwise.content_parts)
    assert "".join(whole.reasoning_parts) == "".join(stepwise.reasoning_parts)
    assert whole.written == stepwise.written == sum(cuts)
    assert whole.write(1).tokens == 0


def test_tool_arguments_arrive_whole():
    writer = Writer(Script(1, 2, 2 + 1 + 4 + 1, tool=ToolCall("f", '{"a":"kap lom"}'), ends_with_eos=True))
    deltas = [writer.write(1, with_ids=True) for _ in range(8)]
    assert "".join(delta.arguments for delta in deltas) == '{"a":"kap lom"}'
    assert [delta.tool_name for delta in deltas] == [None, None, "f", None, None, None, None, None]
    assert [len(delta.token_ids) for delta in deltas] == [1] * 8


def test_faults_are_parsed_and_refused():
    one, two = parse_faults("stall;after=3;path=/v1, slow;factor=2.5;times=1")
    assert (one.kind, one.after, one.path, two.factor, two.times) == (FaultKind.STALL, 3, "/v1", 2.5, 1)
    for wrong in ("nonsense", "stall;after=x", "stall;colour=red"):
        with pytest.raises(ValueError, match=r"."):
            parse_faults(wrong)


def test_the_fault_board_counts_and_filters():
    board = FaultBoard(parse_faults("503;times=2;path=/v1/chat,freeze-health,close-at-reuse"))
    assert [len(board.choose("/v1/chat/completions")) for _ in range(3)] == [1, 1, 0]
    assert board.choose("/v1/completions") == ()
    assert [fault.kind for fault in board.choose("/health", PROBE_FAULTS)] == [FaultKind.FREEZE_HEALTH]
    assert [fault["met"] for fault in board.show()["faults"]] == [2, 1, 0]
    board.replace({"faults": [{"kind": "accept", "factor": 0.5}, {"kind": "lose-kv", "factor": 0.9}, {"kind": "slow"}]})
    conditions = board.conditions(4.0, 100)
    assert (conditions.step_factor, conditions.accept_scale, conditions.kv_blocks) == (4.0, 0.5, 90)
    board.replace({})
    assert board.choose("/") == ()


def test_event_forms():
    event = b'data: {"id":"1","choices":[{"delta":{"content":" a"}}]}\n\n'
    assert shape(event, frozenset({FaultKind.SSE_CRLF}), False).endswith(b"}\r\n\r\n")
    assert shape(event, frozenset({FaultKind.SSE_CR}), False).count(b"\r") == 2
    assert shape(event, frozenset({FaultKind.SSE_BOM}), True).startswith(b"\xef\xbb\xbfdata")
    assert shape(event, frozenset({FaultKind.SSE_BOM}), False) == event
    assert shape(event, frozenset({FaultKind.SSE_COMMENTS}), False).startswith(b": ping\n\n")
    assert shape(event, frozenset({FaultKind.SSE_MULTILINE}), False).count(b"data: ") == 2
    assert b'"refusal":null' in shape(event, frozenset({FaultKind.ODD_FIELDS}), False)
    assert chunk(b"ab", single_bytes=True) == b"1\r\na\r\n1\r\nb\r\n"
    assert chunk(b"ab", single_bytes=False) == b"2\r\nab\r\n"


def test_options_report_all_faults_at_once():
    config = EmulatorConfig(
        profile="x", engine_version="9", output="?", port=70000, fault="zap", max_num_seqs=-1, scheduling_policy="lifo"
    )
    with pytest.raises(ConfigFault) as caught:
        config.check()
    for name in ("profile", "engine_version", "output", "port", "fault", "max_num_seqs", "scheduling_policy"):
        assert name in str(caught.value)


def test_command_line(monkeypatch, capsys):
    monkeypatch.setenv("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "120")
    config = parse_arguments(["--port", "0", "--profile", "instant", "--enable-force-include-usage"])
    assert (config.port, config.profile, config.enable_force_include_usage) == (0, "instant", True)
    assert config.keep_alive_s() == 120
    assert parse_arguments(["--timeout-keep-alive", "7"]).keep_alive_s() == 7
    assert config.context_tokens() == PROFILES["instant"].max_model_len
    with pytest.raises(SystemExit) as caught:
        parse_arguments(["--profile", "nope"])
    assert caught.value.code == 2
    assert "profile" in capsys.readouterr().err
