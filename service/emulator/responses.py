"""Writes answers of ``/v1/responses``: numbered, named events, no ``[DONE]``."""

from __future__ import annotations

import zlib

import msgspec

from service.emulator.answers import Answer
from service.emulator.fields import Fields, as_fields
from service.emulator.writing import Delta

encode_json = msgspec.json.encode


class ResponseDialect:
    """One response; items open and close as the answer moves from reasoning to text or a call."""

    def __init__(self) -> None:
        self._sequence = 0
        self._output: list[Fields] = []
        self._kind = ""
        self._item_id = ""
        self._text = ""

    def open(self, answer: Answer) -> bytes:
        response = build_response(answer, "in_progress", [])
        return self._event("response.created", {"response": response}) + self._event(
            "response.in_progress", {"response": response}
        )

    def write(self, answer: Answer, choice: int, delta: Delta, finish: str | None) -> bytes:
        events: list[bytes] = []
        if delta.reasoning:
            self._enter(events, answer, "reasoning", "")
            self._say(events, "response.reasoning_text.delta", delta.reasoning)
        if delta.tool_name is not None:
            self._enter(events, answer, "function_call", delta.tool_name)
        if delta.arguments:
            self._say(events, "response.function_call_arguments.delta", delta.arguments)
        elif delta.content:
            self._enter(events, answer, "message", "")
            self._say(events, "response.output_text.delta", delta.content)
        if finish is not None:
            self._leave(events, answer)
        return b"".join(events)

    def close(self, answer: Answer) -> bytes:
        status = "incomplete" if "length" in answer.finish_reasons else "completed"
        return self._event("response.completed", {"response": build_response(answer, status, self._output)})

    def complete(self, answer: Answer) -> bytes:
        writer = answer.writers[0]
        reasoning = "".join(writer.reasoning_parts)
        content = "".join(writer.content_parts)
        output: list[Fields] = []
        if reasoning:
            output.append(build_reasoning(build_item_id(answer, "rs", 0), reasoning))
        if writer.script.tool is not None and writer.tool_named:
            arguments = writer.script.tool.arguments[: writer.arguments]
            output.append(build_call(answer, build_item_id(answer, "fc", 1), writer.script.tool.name, arguments))
        elif content:
            output.append(build_message_item(build_item_id(answer, "msg", 1), content))
        status = "incomplete" if "length" in answer.finish_reasons else "completed"
        return encode_json(build_response(answer, status, output))

    # ------------------------------------------------------------------ items

    def _enter(self, events: list[bytes], answer: Answer, kind: str, name: str) -> None:
        if kind == self._kind:
            return
        self._leave(events, answer)
        prefix = {"reasoning": "rs", "message": "msg", "function_call": "fc"}[kind]
        self._kind, self._text = kind, ""
        self._item_id = build_item_id(answer, prefix, len(self._output))
        item: Fields = {"id": self._item_id}
        if kind == "message":
            item |= {"content": [], "role": "assistant", "status": "in_progress", "type": kind, "phase": None}
        elif kind == "reasoning":
            item |= {"summary": [], "type": kind, "content": None, "encrypted_content": None, "status": "in_progress"}
        else:
            item = {"arguments": "", "call_id": build_item_id(answer, "call", 0), "name": name, "type": kind} | item
            item["status"] = "in_progress"
        events.append(self._event("response.output_item.added", {"output_index": len(self._output), "item": item}))
        if kind != "function_call":
            part: Fields = {"text": "", "type": "reasoning_text"}
            if kind == "message":
                part = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
            events.append(self._event("response.content_part.added", self._place() | {"part": part}))

    def _say(self, events: list[bytes], name: str, text: str) -> None:
        self._text += text
        fields = self._place() | {"delta": text}
        if self._kind == "message":
            fields["logprobs"] = []
        events.append(self._event(name, fields))

    def _leave(self, events: list[bytes], answer: Answer) -> None:
        if not self._kind:
            return
        place = self._place()
        if self._kind == "reasoning":
            item = build_reasoning(self._item_id, self._text)
            part: Fields = {"text": self._text, "type": "reasoning_text"}
            events.append(self._event("response.reasoning_text.done", place | {"text": self._text}))
            events.append(self._event("response.content_part.done", place | {"part": part}))
        elif self._kind == "message":
            item = build_message_item(self._item_id, self._text)
            part = {"annotations": [], "text": self._text, "type": "output_text", "logprobs": None}
            events.append(self._event("response.output_text.done", place | {"text": self._text, "logprobs": []}))
            events.append(self._event("response.content_part.done", place | {"part": part}))
        else:
            tool = answer.writers[0].script.tool
            name = tool.name if tool is not None else ""
            item = build_call(answer, self._item_id, name, self._text)
            done: Fields = {"arguments": self._text, "name": name}
            events.append(self._event("response.function_call_arguments.done", place | done))
        events.append(self._event("response.output_item.done", {"output_index": len(self._output), "item": item}))
        self._output.append(item)
        self._kind = ""

    def _place(self) -> Fields:
        place: Fields = {"item_id": self._item_id, "output_index": len(self._output)}
        if self._kind != "function_call":
            place["content_index"] = 0
        return place

    def _event(self, name: str, fields: Fields) -> bytes:
        named: Fields = {"type": name, "sequence_number": self._sequence}
        body = encode_json(dict(sorted((named | fields).items())))  # pydantic's order here is alphabetical
        self._sequence += 1
        return b"event: " + name.encode() + b"\ndata: " + body + b"\n\n"


def build_item_id(answer: Answer, prefix: str, index: int) -> str:
    """The id of an output item: ``prefix`` tells its kind, a checksum of the answer's id and ``index`` the rest."""
    return f"{prefix}_{zlib.crc32(f'{answer.answer_id}/{index}'.encode()):016x}"


def build_reasoning(item_id: str, text: str) -> Fields:
    """A completed output item with reasoning."""
    content = [{"text": text, "type": "reasoning_text"}]
    return {
        "id": item_id,
        "summary": [],
        "type": "reasoning",
        "content": content,
        "encrypted_content": None,
        "status": "completed",
    }


def build_message_item(item_id: str, text: str) -> Fields:
    """A completed output item with the visible text."""
    part: Fields = {"annotations": [], "text": text, "type": "output_text", "logprobs": None}
    return {
        "id": item_id,
        "content": [part],
        "role": "assistant",
        "status": "completed",
        "type": "message",
        "phase": None,
    }


def build_call(answer: Answer, item_id: str, name: str, arguments: str) -> Fields:
    """A completed output item that calls a tool; ``arguments`` are JSON as text."""
    return {
        "arguments": arguments,
        "call_id": build_item_id(answer, "call", 0),
        "name": name,
        "type": "function_call",
        "id": item_id,
        "status": "completed",
    }


def build_response(answer: Answer, status: str, output: list[Fields]) -> Fields:
    """The response object at ``status``, with parts of the request echoed; usage and metrics only once it has ended."""
    asked = as_fields(answer.job.body)
    response: Fields = {
        "id": answer.answer_id,
        "created_at": answer.created,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": asked.get("instructions"),
        "metadata": asked.get("metadata"),
        "model": answer.model,
        "object": "response",
        "output": output,
        "parallel_tool_calls": asked.get("parallel_tool_calls", True),
        "temperature": asked.get("temperature", 1.0),
        "tool_choice": asked.get("tool_choice", "auto" if answer.job.tools else "none"),
        "tools": asked.get("tools", []),
        "top_p": asked.get("top_p", 1.0),
        "background": bool(asked.get("background")),
        "max_output_tokens": answer.writers[0].script.total_tokens
        if answer.job.max_tokens is None
        else answer.job.max_tokens,
        "max_tool_calls": None,
        "previous_response_id": asked.get("previous_response_id"),
        "prompt": None,
        "reasoning": asked.get("reasoning"),
        "service_tier": asked.get("service_tier", "auto"),
        "status": status,
        "text": asked.get("text"),
        "top_logprobs": asked.get("top_logprobs"),
        "truncation": asked.get("truncation", "disabled"),
        "usage": None if status in ("in_progress", "queued") else build_usage(answer),
        "user": asked.get("user"),
    }
    metrics = answer.metrics()
    if metrics is not None and status not in ("in_progress", "queued"):
        response["metrics"] = metrics
    response |= {"presence_penalty": 0.0, "frequency_penalty": 0.0, "kv_transfer_params": None}
    return response | {"ec_transfer_params": None, "input_messages": None, "output_messages": None}


def build_usage(answer: Answer) -> Fields:
    """``usage`` in tokens; figures per turn are empty, for there is one turn."""
    writer = answer.writers[0]
    return {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": answer.cached_tokens,
            "cache_write_tokens": 0,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": writer.written,
        "output_tokens_details": {
            "reasoning_tokens": writer.reasoning_tokens,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": answer.prompt_tokens + writer.written,
    }
