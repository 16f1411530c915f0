"""Whatever a body holds, reading it ends in a job or a refusal."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from service.emulator.bodies import parse_json
from service.emulator.intake import READERS, Api
from service.emulator.profiles import OutputModel
from service.emulator.refusals import Refusal
from service.emulator.script import build_script
from service.emulator.writing import Writer

NAMES = [
    "messages", "prompt", "input", "model", "max_tokens", "max_completion_tokens", "max_output_tokens", "n",
    "min_tokens", "seed", "stop", "stream", "stream_options", "tools", "tool_choice", "priority",
    "cache_salt", "logprobs", "top_logprobs", "continue_final_message", "echo", "add_generation_prompt",
    "reasoning_effort", "reasoning", "thinking", "system", "stop_sequences", "instructions", "request_id",
    "ignore_eos",
]  # fmt: skip
INNER = [
    "role", "content", "type", "text", "function", "name", "parameters", "properties", "enum",
    "include_usage", "tool_calls",
]  # fmt: skip
leaves = st.none() | st.booleans() | st.integers(-5, 60) | st.floats() | st.text(max_size=12) | st.just("[[call]]")
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(INNER), inner, max_size=4),
    max_leaves=12,
)
OUTPUT = OutputModel(median_tokens=20, sigma=1.0, reasoning_ratio=0.3)


def attempt(read):
    """(value, refusal): one of them is ``None``."""
    try:
        return read(), None
    except Refusal as refusal:
        return None, refusal


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(Api), st.dictionaries(st.sampled_from(NAMES), values, max_size=10))
def test_any_object_is_read_or_refused(api, body):
    job, refusal = attempt(lambda: READERS[api](parse_json(json.dumps(body).encode())))
    if refusal is not None:
        assert refusal.status == 400
        assert json.loads(refusal.body())["error"]["message"] == refusal.message
        assert json.loads(refusal.anthropic_body())["error"]["type"] == refusal.kind
        return
    script = build_script(job, 0, OUTPUT, 200, True)
    assert 1 <= script.total_tokens <= 200
    assert 0 <= script.reasoning_tokens <= script.total_tokens
    writer = Writer(script)
    writer.write(script.total_tokens)
    assert writer.written == script.total_tokens


@given(st.binary(max_size=60) | st.just(b'{"model": "\\ud800"}'))
def test_any_bytes_are_parsed_or_refused(data):
    value, refusal = attempt(lambda: parse_json(data))
    if refusal is None:
        json.dumps(value, ensure_ascii=False).encode()  # no half surrogate pairs
    else:
        assert refusal.status == 400
        json.loads(refusal.body())
