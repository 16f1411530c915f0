"""How bodies are read and answers are planned."""

import json

import pytest

from service.emulator.bodies import parse_json
from service.emulator.intake import READERS, Api, read_message
from service.emulator.profiles import OutputModel
from service.emulator.refusals import Refusal
from service.emulator.script import build_script
from service.emulator.writing import Writer

OUTPUT = OutputModel(median_tokens=50, sigma=0.5, reasoning_ratio=0.4)
USER = [{"role": "user", "content": "hello"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"where": {"type": "string"}, "deep": {"type": "boolean"}, "how": {"enum": ["fast"]}},
        },
    },
}


def chat(**fields):
    return READERS[Api.CHAT]({"messages": USER, **fields})


def plan(job, room=1000, obey=True):
    return build_script(job, 0, OUTPUT, room, obey)


def text_of(script):
    writer = Writer(script)
    writer.write(script.total_tokens)
    return "".join(writer.content_parts)


@pytest.mark.parametrize(
    ("api", "body", "param"),
    [
        (Api.CHAT, {}, "body.messages"),
        (Api.CHAT, {"messages": "hi"}, "body.messages"),
        (Api.CHAT, {"messages": []}, None),
        (Api.CHAT, {"messages": USER, "max_tokens": "many"}, "body.max_tokens"),
        (Api.CHAT, {"messages": USER, "max_tokens": 0}, "max_tokens"),
        (Api.CHAT, {"messages": USER, "n": True}, "body.n"),
        (Api.CHAT, {"messages": USER, "continue_final_message": True}, None),
        (Api.CHAT, {"messages": USER, "tool_choice": "required"}, "tool_choice"),
        (Api.COMPLETIONS, {}, "prompt"),
        (Api.COMPLETIONS, {"prompt": []}, None),
        (Api.COMPLETIONS, {"prompt": ""}, "prompt"),
        (Api.CHAT, {"messages": USER, "n": 0}, None),
        (Api.CHAT, {"messages": USER, "n": 99_999}, "n"),
        (Api.CHAT, {"messages": USER, "stop": list("abcde")}, "body.stop"),
        (Api.CHAT, {"messages": USER, "max_tokens": 2.5}, "body.max_tokens"),
        (Api.CHAT, {"messages": USER, "temperature": float("nan")}, "temperature"),
        (Api.RESPONSES, {}, "body.input"),
        (Api.MESSAGES, {"messages": USER}, "body.model"),
        (Api.MESSAGES, {"messages": USER, "model": "m"}, "body.max_tokens"),
        (Api.MESSAGES, {"messages": USER, "model": "m", "max_tokens": 0}, "body.max_tokens"),
    ],
)
def test_bad_bodies_are_refused_with_400(api, body, param):
    with pytest.raises(Refusal) as caught:
        READERS[api](body)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert json.loads(caught.value.body())["error"]["code"] == 400


@pytest.mark.parametrize("data", [b"{bad", b"[1]", b"\xff\xfe{}", b"[" * 100_000, b""])
def test_bad_json_is_refused_with_400(data):
    with pytest.raises(Refusal) as caught:
        parse_json(data)
    assert caught.value.status == 400


def test_json_that_only_python_takes_is_taken_as_fastapi_does():
    assert parse_json(b'{"temperature": NaN}').keys() == {"temperature"}


def test_max_tokens_rules_the_length():
    assert plan(chat(max_tokens=7)).total_tokens == 7
    assert plan(chat(max_tokens=7, max_completion_tokens=5)).total_tokens == 5
    assert plan(chat(max_tokens=5000)).total_tokens == 1000  # clamped to the room, silently
    assert plan(chat(max_tokens=7)).finish_reason == "length"
    assert plan(READERS[Api.COMPLETIONS]({"prompt": "x"})).total_tokens == 16


def test_without_max_tokens_the_length_is_drawn_from_the_prompt_and_seed():
    one = plan(chat())
    assert one == plan(chat())
    assert one.finish_reason == "stop"
    assert one.ends_with_eos
    assert len({plan(chat(seed=seed)).total_tokens for seed in range(8)}) > 3


def test_ignore_eos_min_tokens_and_early_ends():
    assert plan(chat(ignore_eos=True)).total_tokens == 1000
    assert plan(chat(min_tokens=900)).total_tokens >= 900
    early = plan(chat(max_tokens=900), obey=False)
    assert early.total_tokens < 900
    assert early.finish_reason == "stop"


def test_reasoning_comes_first_unless_switched_off():
    assert plan(chat(max_tokens=10)).reasoning_tokens == 4
    assert plan(chat(max_tokens=10, reasoning_effort="none")).reasoning_tokens == 0
    assert plan(chat(max_tokens=10, include_reasoning=False)).reasoning_tokens == 0


def test_stop_strings_cut_the_text():
    whole = text_of(plan(chat(max_tokens=40)))
    word = whole[12:16]
    script = plan(chat(max_tokens=40, stop=[word, "never"]))
    assert text_of(script) == whole[: whole.index(word)]
    assert (script.finish_reason, script.stop_reason) == ("stop", word)
    assert script.total_tokens < 40
    assert plan(chat(max_tokens=40, stop="never")).finish_reason == "length"


def test_a_continued_answer_goes_on_where_it_stopped():
    whole = text_of(plan(chat(max_tokens=40)))
    partial = whole[:20]
    messages = [*USER, {"role": "assistant", "content": partial}]
    job = READERS[Api.CHAT](
        {
            "messages": messages,
            "continue_final_message": True,
            "add_generation_prompt": False,
            "max_tokens": (len(whole) - len(partial)) // 4,
        }
    )
    script = plan(job)
    assert script.reasoning_tokens == 0
    assert partial + text_of(script) == whole


def test_tools_are_called_when_forced_named_or_marked():
    marked = [{"role": "user", "content": "please [[call:look]]"}]
    assert plan(chat(tools=[TOOL])).tool is None
    for fields in (
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "look"}}},
        {"messages": marked},
    ):
        tool = plan(chat(tools=[TOOL], **fields)).tool
        assert tool is not None
        assert tool.name == "look"
        assert json.loads(tool.arguments) == {"where": "kap lom", "deep": True, "how": "fast"}
    assert plan(chat(tools=[TOOL], messages=marked, tool_choice="none")).tool is None
    assert plan(chat(tools=[TOOL], messages=[{"role": "user", "content": "[[call:other]]"}])).tool is None
    assert plan(chat(tools=[TOOL], tool_choice="required", max_tokens=2)).finish_reason == "length"


def test_prompts_may_be_texts_or_ids_or_lists():
    read = READERS[Api.COMPLETIONS]
    assert read({"prompt": [1, 2, 3]}).prompts == (b"\1\0\0\0\2\0\0\0\3\0\0\0",)
    assert len(read({"prompt": ["a", "b"]}).prompts) == 2
    assert read({"prompt": [[1], [2, 3]]}).prompts[1] == b"\2\0\0\0\3\0\0\0"


def test_content_parts_and_media_count():
    parts = [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": "x"}}, "odd"]
    job = READERS[Api.CHAT]({"messages": [{"role": "user", "content": parts}]})
    assert len(job.prompts[0]) > 1024


def test_messages_and_responses_read_their_own_fields():
    job = read_message({"model": "m", "messages": USER, "system": "be brief"}, counting=True)
    assert b"be brief" in job.prompts[0]
    job = READERS[Api.MESSAGES](
        {
            "model": "m",
            "messages": USER,
            "max_tokens": 9,
            "thinking": {"type": "disabled"},
            "stop_sequences": ["x"],
            "tools": [{"name": "look", "input_schema": {}}],
            "tool_choice": {"type": "any"},
        }
    )
    assert (job.wants_reasoning, job.stop, job.tool_required) == (False, ("x",), True)
    job = READERS[Api.RESPONSES]({"input": USER, "instructions": "brief", "reasoning": {"effort": "none"}})
    assert b"brief" in job.prompts[0]
    assert not job.wants_reasoning
