"""Decides the length, the parts and the end of an answer before its first token."""

from __future__ import annotations

import json
import math

from service.emulator.fields import Fields, as_fields, as_list, as_text
from service.emulator.intake import Job
from service.emulator.profiles import OutputModel
from service.emulator.template import TOKEN_BYTES
from service.emulator.writing import WORDS, Script, ToolCall, build_key, build_words

TOOL_MARKER = "[[call"
"""``[[call]]`` or ``[[call:NAME]]`` in the last message makes the model use a tool under ``tool_choice: auto``."""


def draw_length(key: int, output: OutputModel) -> int:
    """A lognormal length, the same for the same prompt and seed."""
    chance = build_words("length", key)
    return max(1, round(math.exp(math.log(output.median_tokens) + output.sigma * chance.gauss(0.0, 1.0))))


def choose_tool(job: Job) -> ToolCall | None:
    """The call the request forces or asks for with the marker."""
    functions = [as_fields(as_fields(tool).get("function") or tool) for tool in job.tools]
    wanted = as_text(job.tool_name)
    if not wanted and not job.tool_required:
        start = job.last_text.rfind(TOOL_MARKER)
        if start < 0 or job.tool_forbidden:
            return None
        wanted = job.last_text[start + len(TOOL_MARKER) :].partition("]]")[0].removeprefix(":").strip()
    for function in functions:
        name = as_text(function.get("name"))
        if name and wanted in ("", name):
            schema = as_fields(function.get("parameters") or function.get("input_schema"))
            return ToolCall(name, json.dumps(fill_schema(schema)))
    return None


def fill_schema(schema: Fields) -> Fields:
    """Some arguments that a JSON schema of an object allows."""
    samples: Fields = {"string": "kap lom", "integer": 7, "number": 1.5, "boolean": True, "array": [], "object": {}}
    filled: Fields = {}
    for name, raw in as_fields(schema.get("properties")).items():
        property_schema = as_fields(raw)
        choices = as_list(property_schema.get("enum"))
        filled[name] = choices[0] if choices else samples.get(as_text(property_schema.get("type")), "kap lom")
    return filled


def build_script(job: Job, choice: int, output: OutputModel, room_tokens: int, obey_max_tokens: bool) -> Script:
    """What one choice will be. ``room_tokens`` is what the context leaves for output."""
    key = build_key(job.text_key, job.seed, choice)
    limit = room_tokens if job.max_tokens is None else min(job.max_tokens, room_tokens)
    limit = max(1, limit)
    drawn = max(1, draw_length(key, output) - job.continued_tokens)
    if job.ignore_eos or (job.max_tokens is not None and obey_max_tokens):
        drawn = limit
    total = max(min(drawn, limit), min(job.min_tokens, limit))
    reasoning = 0 if job.continued_tokens or not job.wants_reasoning else round(total * output.reasoning_ratio)
    tool = choose_tool(job)
    if tool is not None:
        asked = reasoning + 1 + -(-len(tool.arguments.encode()) // TOKEN_BYTES) + 1  # its name, arguments, the end
        total = min(asked, limit)
        whole = asked <= limit
        finish = "stop" if whole else "length"
        return Script(key, min(reasoning, total), total, tool=tool, ends_with_eos=whole, finish_reason=finish)
    stops = drawn < limit or (drawn == limit and job.max_tokens is None and not job.ignore_eos)
    script = Script(
        key,
        reasoning,
        total,
        content_skip=job.continued_tokens,
        ends_with_eos=stops,
        finish_reason="stop" if stops else "length",
    )
    return apply_stop_strings(script, job.stop) if job.stop else script


def apply_stop_strings(script: Script, stop: tuple[str, ...]) -> Script:
    """End the script where the content first holds one of the strings."""
    chance = build_words("content", script.key)
    if script.content_skip:
        chance.choices(WORDS, k=script.content_skip)
    text = "".join(chance.choices(WORDS, k=max(0, script.total_tokens - script.reasoning_tokens)))
    found = [(at, -len(word), word) for word in stop if word and (at := text.find(word)) >= 0]
    if not found:
        return script
    at, negative_length, word = min(found)
    return Script(
        script.key,
        script.reasoning_tokens,
        script.reasoning_tokens + -(-(at - negative_length) // TOKEN_BYTES),
        content_skip=script.content_skip,
        cut_at_chars=at,
        finish_reason="stop",
        stop_reason=word,
    )
