"""Holds what the dialects share: the identity of an answer, its usage, its metrics, its log probabilities."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from service.emulator.fields import Fields
from service.emulator.intake import Job
from service.emulator.template import encode
from service.emulator.writing import Delta, Script, Writer


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """What the flags of the worker add to every answer."""

    force_usage: bool = False
    prompt_details: bool = False
    request_metrics: bool = False
    reasoning_details: bool = False
    fingerprint: str = "vllm-0.32.0-emulated"
    block_size: int = 128


@dataclass(slots=True)
class Timing:
    """Moments of one request, for ``metrics``."""

    arrived_at: float = 0.0
    scheduled_at: float = 0.0
    first_token_at: float = 0.0
    last_token_at: float = 0.0
    draft_tokens: int = 0
    accept_histogram: tuple[int, ...] = ()


@dataclass(slots=True)
class Answer:
    """Everything that is known of one request's answer."""

    job: Job
    answer_id: str
    created: int
    model: str
    options: AnswerOptions
    prompt_tokens: int
    writers: list[Writer]
    cached_tokens: int = 0
    timing: Timing = field(default_factory=Timing)
    finish_reasons: list[str | None] = field(default_factory=list)

    @property
    def include_usage(self) -> bool:
        return self.options.force_usage or self.job.include_usage

    @property
    def continuous_usage(self) -> bool:
        return self.options.force_usage or self.job.continuous_usage

    @property
    def completion_tokens(self) -> int:
        return sum(writer.written for writer in self.writers)

    @property
    def created_cache_tokens(self) -> int:
        """Prompt tokens whose blocks this request has added to the prefix cache."""
        block = self.options.block_size
        return max(0, self.prompt_tokens // block * block - self.cached_tokens)

    def usage(self, completion_tokens: int, reasoning_tokens: int) -> Fields:
        """``usage`` of a chunk in the middle of a stream."""
        usage: Fields = {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + completion_tokens,
            "completion_tokens": completion_tokens,
        }
        if self.job.api is not self.job.api.COMPLETIONS:
            details = {"reasoning_tokens": reasoning_tokens} if self.options.reasoning_details else None
            usage["completion_tokens_details"] = details
        return usage

    def final_usage(self, with_nulls: bool) -> Fields:
        """``usage`` at the end; the stream leaves nulls out, the plain answer writes them."""
        tokens = self.completion_tokens
        is_completion = self.job.api is self.job.api.COMPLETIONS
        details: Fields | None = None
        if self.options.prompt_details:
            details = {"cached_tokens": self.cached_tokens}
            if not is_completion or with_nulls:
                details["created_cache_tokens"] = None if is_completion else self.created_cache_tokens
            if with_nulls:
                details["multimodal_tokens"] = None
        reasoning: Fields | None = None
        if self.options.reasoning_details and not is_completion:
            reasoning = {"reasoning_tokens": sum(writer.reasoning_tokens for writer in self.writers)}
        usage: Fields = {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + tokens,
            "completion_tokens": tokens,
            "prompt_tokens_details": details,
            "completion_tokens_details": reasoning,
        }
        return usage if with_nulls else drop_nulls(usage)

    def metrics(self) -> Fields | None:
        """``metrics`` of ``--enable-per-request-metrics``; absent when choices share a request, as in vLLM."""
        if len(self.writers) != 1:
            return None
        drafts = self._draft_figures()
        if not self.options.request_metrics:
            return None if drafts is None else {"speculative_decoding": drafts}
        tokens, timing = self.completion_tokens, self.timing
        decoding_s = timing.last_token_at - timing.first_token_at
        inference_s = timing.last_token_at - timing.scheduled_at
        return {
            "time_to_first_token_ms": (timing.first_token_at - timing.scheduled_at) * 1e3,
            "generation_time_ms": decoding_s * 1e3,
            "queue_time_ms": (timing.scheduled_at - timing.arrived_at) * 1e3,
            "mean_itl_ms": decoding_s / (tokens - 1) * 1e3 if tokens > 1 else None,
            "tokens_per_second": tokens / inference_s if inference_s > 0 else None,
            "speculative_decoding": drafts,
        }

    def _draft_figures(self) -> Fields | None:
        """What ``--per-request-spec-decode-metrics summary`` adds."""
        histogram = self.timing.accept_histogram
        if not histogram:
            return None
        steps = sum(histogram)
        accepted = sum(drafts * times for drafts, times in enumerate(histogram))
        proposed = self.timing.draft_tokens
        return {
            "mean_acceptance_length": 1.0 + accepted / steps if steps else 1.0,
            "draft_acceptance_rate": accepted / proposed if proposed else 0.0,
            "acceptance_histogram": list(histogram),
            "num_spec_steps": steps,
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": proposed,
            "num_spec_tokens": len(histogram) - 1,
        }


class Dialect(Protocol):
    """How one API writes an answer. Every method returns whole server-sent events, or the body of a plain answer."""

    def open(self, answer: Answer) -> bytes:
        """What precedes the first token."""

    def write(self, answer: Answer, choice: int, delta: Delta, finish: str | None) -> bytes:
        """Some tokens of one choice, and its end if ``finish`` says why."""

    def close(self, answer: Answer) -> bytes:
        """What follows the last token."""

    def complete(self, answer: Answer) -> bytes:
        """The body of an answer that is not streamed."""


def drop_nulls(fields: Fields) -> Fields:
    """The fields that are not null; objects inside keep their nulls."""
    return {name: value for name, value in fields.items() if value is not None}


def build_finish(script: Script, engine_reason: str | None, named_tool: bool) -> str:
    """vLLM says ``tool_calls`` where a call was chosen or required, ``stop`` where it was named."""
    reason = engine_reason or script.finish_reason
    return "tool_calls" if script.tool is not None and reason == "stop" and not named_tool else reason


def build_chat_logprobs(text: str, alternatives: int) -> Fields:
    """Made-up log probabilities: each token is the likeliest, its rivals are one nat apart."""
    content: list[Fields] = []
    for token, start in zip(encode(text), range(0, len(text), 4), strict=False):
        piece = text[start : start + 4]
        entry: Fields = {"token": piece, "logprob": -(token % 97) / 100.0, "bytes": list(piece.encode())}
        entry["top_logprobs"] = [
            {"token": piece, "logprob": -(token % 97) / 100.0 - rank, "bytes": list(piece.encode())}
            for rank in range(alternatives)
        ]
        content.append(entry)
    return {"content": content}
