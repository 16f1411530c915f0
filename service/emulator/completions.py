"""Writes answers of ``/v1/completions``."""

from __future__ import annotations

import msgspec

from service.emulator.answers import Answer, drop_nulls
from service.emulator.chat import DONE, prompt_ids
from service.emulator.fields import Fields
from service.emulator.template import encode
from service.emulator.writing import Delta

encode_json = msgspec.json.encode


def build_completion_logprobs(text: str, alternatives: int) -> Fields:
    """Made-up log probabilities in columns; offsets count characters, the only alternative is the token itself."""
    pieces = [text[start : start + 4] for start in range(0, len(text), 4)]
    values = [-(token % 97) / 100.0 for token in encode(text)][: len(pieces)]
    return {
        "text_offset": [index * 4 for index in range(len(pieces))],
        "token_logprobs": values,
        "tokens": pieces,
        "top_logprobs": [
            {piece: value} if alternatives else None for piece, value in zip(pieces, values, strict=False)
        ],
    }


class CompletionDialect:
    """Text completions: no role, no reasoning, choices numbered across prompts."""

    def __init__(self) -> None:
        self._head = b""
        self._echoed: set[int] = set()

    def open(self, answer: Answer) -> bytes:
        head: Fields = {
            "id": answer.answer_id,
            "object": "text_completion",
            "created": answer.created,
            "model": answer.model,
        }
        self._head = b"data: " + encode_json(head)[:-1] + b","
        return b""

    def write(self, answer: Answer, choice: int, delta: Delta, finish: str | None) -> bytes:
        job, script = answer.job, answer.writers[choice].script
        text = delta.content
        first = choice not in self._echoed
        if first:
            self._echoed.add(choice)
            text = job.echo + text
        body: Fields = {
            "index": choice,
            "text": text,
            "logprobs": None if job.logprobs is None else build_completion_logprobs(text, job.logprobs),
            "finish_reason": finish,
            "stop_reason": script.stop_reason if finish else None,
            "prompt_token_ids": prompt_ids(answer) if first and job.return_token_ids else None,
            "token_ids": delta.token_ids if job.return_token_ids else None,
        }
        chunk: Fields = {"choices": [body]}
        if answer.continuous_usage:
            chunk["usage"] = answer.usage(answer.writers[choice].written, 0)
        if finish is not None and not answer.include_usage:
            chunk["system_fingerprint"] = answer.options.fingerprint
        return self._chunk(chunk)

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
            text = job.echo + "".join(writer.content_parts)
            choices.append(
                {
                    "index": index,
                    "text": text,
                    "logprobs": None if job.logprobs is None else build_completion_logprobs(text, job.logprobs),
                    "finish_reason": answer.finish_reasons[index],
                    "stop_reason": writer.script.stop_reason,
                    "token_ids": writer.ids if job.return_token_ids else None,
                    "prompt_logprobs": None,
                    "prompt_token_ids": prompt_ids(answer) if job.return_token_ids else None,
                    "routed_experts": None,
                }
            )
        return encode_json(
            {
                "id": answer.answer_id,
                "object": "text_completion",
                "created": answer.created,
                "model": answer.model,
                "choices": choices,
                "service_tier": None,
                "system_fingerprint": answer.options.fingerprint,
                "usage": answer.final_usage(with_nulls=True),
                "kv_transfer_params": None,
                "ec_transfer_params": None,
                "metrics": answer.metrics(),
            }
        )

    def _chunk(self, fields: Fields) -> bytes:
        return self._head + encode_json(fields)[1:] + b"\n\n"
