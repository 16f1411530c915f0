"""Which series of a worker's ``/metrics`` we read, and how the values of several engines become one.

The names hold for vLLM 0.32 (read from a real server; a captured page is in the tests) and 0.33 (read in its source);
they are equal, so there is one table. When a version renames a series, add a row: a row whose series is absent from the
page changes nothing, and a field for which no row matched is ``None``. The long-gone ``vllm:gpu_cache_usage_perc`` and
``vllm:time_per_output_token_seconds`` are not here on purpose.
"""

from dataclasses import dataclass
from enum import Enum


class Fold(Enum):
    """How the samples of one series, which differ in labels such as ``engine``, are joined."""

    SUM = "sum"
    MAX = "max"


class Field(Enum):
    """What we want to know."""

    STARTED_AT = "started_at"
    RUNNING = "running"
    WAITING = "waiting"
    KV_CACHE = "kv_cache"
    ITERATION_TOKENS = "iteration_tokens"
    PROMPT_TOKENS = "prompt_tokens"
    GENERATION_TOKENS = "generation_tokens"
    FINISHED = "finished"
    REJECTED = "rejected"
    PREEMPTIONS = "preemptions"
    PREFIX_QUERIED = "prefix_queried"
    PREFIX_HIT = "prefix_hit"
    DRAFTS = "drafts"
    DRAFT_TOKENS = "draft_tokens"
    ACCEPTED_TOKENS = "accepted_tokens"


@dataclass(frozen=True, slots=True)
class Series:
    """One row: a series, the field it feeds, and how its samples are joined."""

    name: bytes
    field: Field
    fold: Fold = Fold.SUM


SERIES = (
    # Of the server process. MAX: one process, one sample.
    Series(b"process_start_time_seconds", Field.STARTED_AT, Fold.MAX),
    # Gauges, set by each engine step, so they stand still when the engine does.
    Series(b"vllm:num_requests_running", Field.RUNNING),
    Series(b"vllm:num_requests_waiting", Field.WAITING),
    Series(b"vllm:kv_cache_usage_perc", Field.KV_CACHE, Fold.MAX),
    # Sum of a histogram observed once per engine step that yielded output: tokens computed + generated.
    Series(b"vllm:iteration_tokens_total_sum", Field.ITERATION_TOKENS),
    # Counters.
    Series(b"vllm:prompt_tokens_total", Field.PROMPT_TOKENS),
    Series(b"vllm:generation_tokens_total", Field.GENERATION_TOKENS),
    Series(b"vllm:request_success_total", Field.FINISHED),
    Series(b"vllm:admission_rejections_total", Field.REJECTED),
    Series(b"vllm:num_preemptions_total", Field.PREEMPTIONS),
    Series(b"vllm:prefix_cache_queries_total", Field.PREFIX_QUERIED),
    Series(b"vllm:prefix_cache_hits_total", Field.PREFIX_HIT),
    Series(b"vllm:spec_decode_num_drafts_total", Field.DRAFTS),
    Series(b"vllm:spec_decode_num_draft_tokens_total", Field.DRAFT_TOKENS),
    Series(b"vllm:spec_decode_num_accepted_tokens_total", Field.ACCEPTED_TOKENS),
)

MODEL_LABEL_FROM = b"vllm:num_requests_running"
"""The series whose ``model_name`` label names the model."""
