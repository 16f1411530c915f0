"""Writes answers of ``/v1/chat/completions``: the chunks and the field order of vLLM's own serialisation."""

from __future__ import annotations

import zlib

import msgspec

from service.emulator.answers import Answer, build_chat_logprobs, build_finish, drop_nulls
from service.emulator.fields import Fields
from service.emulator.template import encode
from service.emulator.writing import Delta

encode_json = msgspec.json.encode
DONE = b"data: [DONE]\n\n"


def build_call_id(answer: Answer, choice: int) -> str:
    """The id of the one tool call a choice can make; each of its chunks names the same."""
    return f"chatcmpl-tool-{zlib.crc32(f'{answer.answer_id}/{choice}'.encode()):016x}"


class ChatDialect:
    """One answer's worth of writing; a plain content token takes the short way."""

    def __init__(self) -> None:
        self._head = b""
        self._plain_tail = b""
        self._plain = False

    def _prepare(self, answer: Answer) -> None:
        head: Fields = {
            "id": answer.answer_id,
            "object": "chat.completion.chunk",
            "created": answer.created,
            "model": answer.model,
        }
        self._head = b"data: " + encode_json(head)[:-1]
        self._plain_tail = b'},"logprobs":null,"finish_reason":null,"token_ids":null}]'
        job = answer.job
        self._plain = job.logprobs is None and not job.return_token_ids

    def open(self, answer: Answer) -> bytes:
        self._prepare(answer)
        events: list[bytes] = []
        job = answer.job
        for choice in range(len(answer.writers)):
            delta: Fields = {"role": job.role, "content": ""}
            opening: Fields = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": None}
            chunk: Fields = {"choices": [opening]}
            if answer.continuous_usage:
                chunk["usage"] = answer.usage(0, 0)
            chunk["prompt_token_ids"] = prompt_ids(answer) if job.return_token_ids else None
            chunk["prompt_text"] = None
            events.append(self._chunk(chunk))
        if job.echo:
            echo: Fields = {"index": 0, "delta": {"content": job.echo}, "logprobs": None, "finish_reason": None}
            events.append(self._chunk({"choices": [echo]}))
        return b"".join(events)

    def write(self, answer: Answer, choice: int, delta: Delta, finish: str | None) -> bytes:
        if self._plain and finish is None and not delta.arguments and delta.tool_name is None:
            return self._write_plain(answer, choice, delta)
        job, script = answer.job, answer.writers[choice].script
        logprobs = None
        if job.logprobs is not None:
            logprobs = build_chat_logprobs(delta.reasoning + delta.content + delta.arguments, job.logprobs)
        body: Fields = {
            "index": choice,
            "delta": build_delta(answer, choice, delta),
            "logprobs": logprobs,
            "finish_reason": None,
        }
        if finish is not None:
            body["finish_reason"] = build_finish(script, finish, bool(job.tool_name))
            body["stop_reason"] = script.stop_reason
        body["token_ids"] = delta.token_ids if job.return_token_ids else None
        chunk: Fields = {"choices": [body]}
        if answer.continuous_usage:
            writer = answer.writers[choice]
            chunk["usage"] = answer.usage(writer.written, writer.reasoning_tokens)
        if finish is not None and not answer.include_usage:
            chunk["system_fingerprint"] = answer.options.fingerprint
        return self._chunk(chunk)

    def _write_plain(self, answer: Answer, choice: int, delta: Delta) -> bytes:
        """Hot: words hold nothing that JSON would escape."""
        if delta.reasoning:
            said = '"reasoning":"' + delta.reasoning + '"'
            if delta.content:
                said += ',"content":"' + delta.content + '"'
        else:
            said = '"content":"' + delta.content + '"'
        middle = f',"choices":[{{"index":{choice},"delta":{{{said}'.encode()
        usage = b""
        if answer.continuous_usage:
            writer = answer.writers[choice]
            usage = b',"usage":' + encode_json(answer.usage(writer.written, writer.reasoning_tokens))
        return b"".join((self._head, middle, self._plain_tail, usage, b"}\n\n"))

    def close(self, answer: Answer) -> bytes:
        if not answer.include_usage:
            return DONE
        chunk: Fields = {
            "choices": [],
            "usage": answer.final_usage(with_nulls=False),
            "system_fingerprint": answer.options.fingerprint,
        }
        metrics = answer.metrics()
        if metrics is not None:
            chunk["metrics"] = drop_nulls(metrics)
        return self._chunk(chunk) + DONE

    def complete(self, answer: Answer) -> bytes:
        job = answer.job
        choices: list[Fields] = []
        for index, writer in enumerate(answer.writers):
            finish = build_finish(writer.script, answer.finish_reasons[index], bool(job.tool_name))
            content = "".join(writer.content_parts)
            logprobs = None if job.logprobs is None else build_chat_logprobs(content, job.logprobs)
            choices.append(
                {
                    "index": index,
                    "message": build_message(answer, index),
                    "logprobs": logprobs,
                    "finish_reason": finish,
                    "stop_reason": writer.script.stop_reason,
                    "token_ids": writer.ids if job.return_token_ids else None,
                    "routed_experts": None,
                }
            )
        return encode_json(
            {
                "id": answer.answer_id,
                "object": "chat.completion",
                "created": answer.created,
                "model": answer.model,
                "choices": choices,
                "service_tier": None,
                "system_fingerprint": answer.options.fingerprint,
                "usage": answer.final_usage(with_nulls=True),
                "prompt_logprobs": None,
                "prompt_token_ids": prompt_ids(answer) if job.return_token_ids else None,
                "prompt_text": None,
                "kv_transfer_params": None,
                "ec_transfer_params": None,
                "metrics": answer.metrics(),
            }
        )

    def _chunk(self, fields: Fields) -> bytes:
        return self._head + b"," + encode_json(fields)[1:] + b"\n\n"


def prompt_ids(answer: Answer) -> list[int]:
    """Token ids of all prompts of the request, one prompt after the other."""
    return [token for prompt in answer.job.prompts for token in encode(prompt)]


def build_delta(answer: Answer, choice: int, delta: Delta) -> Fields:
    """``delta`` of one chunk: reasoning, beside content or a piece of a tool call; a begun call leaves content out."""
    said: Fields = {}
    if delta.reasoning:
        said["reasoning"] = delta.reasoning
    if delta.tool_name is not None:
        call: Fields = {"id": build_call_id(answer, choice), "type": "function", "index": 0}
        call["function"] = drop_nulls({"name": delta.tool_name, "arguments": delta.arguments or None})
        said = {"content": None} | said | {"tool_calls": [call]}
    elif delta.arguments:
        said = {"content": None, "tool_calls": [{"index": 0, "function": {"arguments": delta.arguments}}]} | said
    elif answer.writers[choice].tool_named:
        pass  # the end of a call says nothing
    elif delta.content or not delta.reasoning:
        said["content"] = delta.content
    return said


def build_message(answer: Answer, choice: int) -> Fields:
    """``message`` of a plain answer: all that a choice has said, its tool call as far as it was written."""
    writer = answer.writers[choice]
    script = writer.script
    message: Fields = {
        "role": answer.job.role,
        "content": "".join(writer.content_parts),
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
    }
    if script.tool is not None and writer.tool_named:
        call = {"name": script.tool.name, "arguments": script.tool.arguments[: writer.arguments]}
        message["tool_calls"] = [{"id": build_call_id(answer, choice), "type": "function", "function": call}]
    message["reasoning"] = "".join(writer.reasoning_parts) or None
    return message
