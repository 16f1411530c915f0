"""Holds the values that go into the engine and come out of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class RefusalReason(StrEnum):
    """vLLM's two valves in front of the engine; the values are its metric labels."""

    QUEUED_REQUESTS = "max_num_queued_reqs"
    QUEUED_TOKENS = "max_num_queued_tokens"


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What the engine must know of a request. ``output_tokens`` is where it will end, decided by the caller."""

    request_id: str
    prompt_tokens: int
    output_tokens: int
    priority: int = 0
    block_hashes: tuple[int, ...] = ()
    """Hash of each full block of prompt and output, as far as known; enables prefix reuse."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits and order, beyond what the profile says. ``None`` = the profile's value, or no limit."""

    priority_scheduling: bool = False
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_blocks: int | None = None
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    prefix_caching: bool = True
    trace_accepts: bool = False
    """Keep a histogram of accepted drafts per request (costs a little per token)."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What can change while the engine runs: a slow machine, drafts that fail, blocks that are lost."""

    step_factor: float = 1.0
    accept_scale: float = 1.0
    kv_blocks: int | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The life of a request that produced all its tokens."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    preemptions: int
    arrived_at: float
    scheduled_at: float
    first_token_at: float
    last_token_at: float
    draft_tokens: int = 0
    accept_histogram: tuple[int, ...] = ()
    """Steps by accepted drafts; only with ``trace_accepts``."""


@dataclass(slots=True)
class StepResult:
    """What one finished step brought, and what starting the next one changed."""

    duration_s: float = 0.0
    tokens: list[tuple[str, int]] = field(default_factory=list)
    first_tokens: list[tuple[str, float, int]] = field(default_factory=list)
    """(request, seconds since arrival, cached prompt tokens) of those whose first token came in this step."""
    finished: list[Finished] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    decoding: int = 0
    prefill_tokens: int = 0


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot. Counters run from construction."""

    running: int
    waiting: int
    queued_tokens: int
    kv_blocks_used: int
    kv_blocks_total: int
    kv_tokens: int
    steps: int
    preemptions: int
    prompt_tokens: int
    cached_tokens: int
    generation_tokens: int
    prefix_queries: int
    prefix_hits: int
    drafts: int
    draft_tokens: int
    accepted_tokens: int
    accepted_per_position: tuple[int, ...]

    @property
    def kv_usage_ratio(self) -> float:
        return self.kv_blocks_used / self.kv_blocks_total if self.kv_blocks_total > 0 else 1.0
