"""Writes answers of ``/v1/messages``: Anthropic's events, built by vLLM from its chat stream."""

from __future__ import annotations

import json
import zlib

import msgspec

from service.emulator.answers import Answer, build_finish, drop_nulls
from service.emulator.fields import Fields
from service.emulator.writing import Delta

encode_json = msgspec.json.encode


class MessageDialect:
    """One message; content blocks open and close as the answer moves from thinking to text or a tool."""

    def __init__(self) -> None:
        self._block = ""
        self._index = 0

    def open(self, answer: Answer) -> bytes:
        message: Fields = {
            "id": answer.answer_id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": answer.model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": answer.prompt_tokens, "output_tokens": 0},
        }
        return build_event("message_start", {"message": message})

    def write(self, answer: Answer, choice: int, delta: Delta, finish: str | None) -> bytes:
        events: list[bytes] = []
        if delta.reasoning:
            self._enter(events, answer, "thinking", {"type": "thinking", "thinking": ""})
            self._say(events, {"type": "thinking_delta", "thinking": delta.reasoning})
        if delta.tool_name is not None:
            block: Fields = {"type": "tool_use", "id": build_tool_id(answer), "name": delta.tool_name, "input": {}}
            self._enter(events, answer, "tool_use", block)
        if delta.arguments:
            self._say(events, {"type": "input_json_delta", "partial_json": delta.arguments})
        elif delta.content:
            self._enter(events, answer, "text", {"type": "text", "text": ""})
            self._say(events, {"type": "text_delta", "text": delta.content})
        return b"".join(events)

    def close(self, answer: Answer) -> bytes:
        events: list[bytes] = []
        self._leave(events, answer)
        reason, sequence = choose_stop(answer)
        stop: Fields = {"stop_reason": reason, "stop_sequence": sequence}
        events.append(build_event("message_delta", {"delta": stop, "usage": build_usage(answer)}))
        events.append(build_event("message_stop", {}))
        return b"".join(events)

    def complete(self, answer: Answer) -> bytes:
        writer = answer.writers[0]
        content: list[Fields] = []
        reasoning, text = "".join(writer.reasoning_parts), "".join(writer.content_parts)
        if reasoning:
            content.append({"type": "thinking", "thinking": reasoning, "signature": build_signature(answer)})
        if text:
            content.append({"type": "text", "text": text})
        tool = writer.script.tool
        if tool is not None and writer.arguments >= len(tool.arguments):
            block: Fields = {"type": "tool_use", "id": build_tool_id(answer), "name": tool.name}
            content.append(block | {"input": json.loads(tool.arguments)})
        reason, sequence = choose_stop(answer)
        message: Fields = {
            "id": answer.answer_id,
            "type": "message",
            "role": "assistant",
            "content": content or [{"type": "text", "text": ""}],
            "model": answer.model,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": build_usage(answer),
        }
        return encode_json(drop_nulls(message))

    def _enter(self, events: list[bytes], answer: Answer, kind: str, block: Fields) -> None:
        if kind == self._block:
            return
        self._leave(events, answer)
        self._block = kind
        events.append(build_event("content_block_start", {"content_block": block, "index": self._index}))

    def _say(self, events: list[bytes], delta: Fields) -> None:
        events.append(build_event("content_block_delta", {"delta": delta, "index": self._index}))

    def _leave(self, events: list[bytes], answer: Answer) -> None:
        if not self._block:
            return
        if self._block == "thinking":
            self._say(events, {"type": "signature_delta", "signature": build_signature(answer)})
        events.append(build_event("content_block_stop", {"index": self._index}))
        self._index += 1
        self._block = ""


def build_event(name: str, fields: Fields) -> bytes:
    """One server-sent event; its name is repeated as ``type`` in the data."""
    body: Fields = {"type": name}
    return b"event: " + name.encode() + b"\ndata: " + encode_json(body | fields) + b"\n\n"


def build_usage(answer: Answer) -> Fields:
    """``usage`` in tokens; with prompt details, what the cache held and what was added to it leave ``input_tokens``."""
    usage: Fields = {"input_tokens": answer.prompt_tokens, "output_tokens": answer.completion_tokens}
    if answer.options.prompt_details:
        usage["input_tokens"] = answer.prompt_tokens - answer.cached_tokens - answer.created_cache_tokens
        usage["cache_creation_input_tokens"] = answer.created_cache_tokens
        usage["cache_read_input_tokens"] = answer.cached_tokens
    return usage


def build_signature(answer: Answer) -> str:
    """What stands for the signature of a thinking block: a checksum of the answer's id, which proves nothing."""
    return f"{zlib.crc32(answer.answer_id.encode()):032x}"


def build_tool_id(answer: Answer) -> str:
    """The id of the one tool call an answer can make, in vLLM's form."""
    return f"chatcmpl-tool-{zlib.crc32(answer.answer_id.encode()):016x}"


def choose_stop(answer: Answer) -> tuple[str | None, str | None]:
    """Anthropic's (stop_reason, stop_sequence)."""
    script = answer.writers[0].script
    finish = build_finish(script, answer.finish_reasons[0], named_tool=False)
    if finish == "length":
        return "max_tokens", None
    if finish == "tool_calls":
        return "tool_use", None
    if finish != "stop":
        return None, None
    return ("stop_sequence", script.stop_reason) if script.stop_reason else ("end_turn", None)
