"""Holds the figures behind ``/metrics`` that the engine does not count itself: histograms, endings, refusals.

Bucket bounds are those of vLLM 0.32.0, ``v1/metrics/buckets.py``.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from prometheus_client.core import HistogramMetricFamily, Metric

from service.emulator.steps import Finished, RefusalReason, StepResult

LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160,
               640, 2560)  # fmt: skip
GAP = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
CHOICES = (1, 2, 5, 10, 20)
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


def build_token_buckets(limit: int) -> tuple[float, ...]:
    """1, 2, 5, 10 ... up to the context length."""
    return tuple(m * 10**e for e in range(10) for m in (1, 2, 5) if m * 10**e <= limit)


class Histogram:
    """Counts per bucket; cheaper than the client library, since a step brings many equal values at once."""

    __slots__ = ("bounds", "counts", "help", "name", "total")

    def __init__(self, name: str, text: str, bounds: tuple[float, ...]) -> None:
        self.name = name
        self.help = text
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def collect(self, labels: dict[str, str], created: float) -> Metric:
        family = HistogramMetricFamily(f"vllm:{self.name}", self.help, labels=list(labels))
        buckets: list[tuple[str, float]] = []
        running = 0
        for bound, seen in zip((*self.bounds, float("inf")), self.counts, strict=True):
            running += seen
            buckets.append(("+Inf" if bound == float("inf") else str(float(bound)), running))
        family.add_metric(list(labels.values()), buckets, self.total)
        family.add_sample(f"vllm:{self.name}_created", labels, created)
        return family


def build_histograms(max_model_len: int) -> dict[str, Histogram]:
    """vLLM's histograms by name without ``vllm:``; buckets of token counts end at ``max_model_len``."""
    tokens = build_token_buckets(max_model_len)
    rows: tuple[tuple[str, str, tuple[float, ...]], ...] = (
        ("request_prompt_tokens", "Number of prefill tokens processed.", tokens),
        ("request_generation_tokens", "Number of generation tokens processed.", tokens),
        ("iteration_tokens_total", "Histogram of number of tokens per engine_step.", STEP_TOKENS),
        ("request_max_num_generation_tokens", "Histogram of maximum number of requested generation tokens.", tokens),
        ("request_params_n", "Histogram of the n request parameter.", CHOICES),
        ("request_params_max_tokens", "Histogram of the max_tokens request parameter.", tokens),
        ("time_to_first_token_seconds", "Histogram of time to first token in seconds.", FIRST_TOKEN),
        ("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", GAP),
        ("request_time_per_output_token_seconds", "Histogram of time_per_output_token_seconds per request.", GAP),
        ("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", LATENCY),
        ("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", LATENCY),
        ("request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.", LATENCY),
        ("request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", LATENCY),
        ("request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", LATENCY),
        ("request_num_preemptions", "Histogram of the number of times a request was preempted.", PREEMPTIONS),
        (
            "request_prefill_kv_computed_tokens",
            "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
            tokens,
        ),
    )
    return {name: Histogram(name, text, bounds) for name, text, bounds in rows}


@dataclass(slots=True)
class Tally:
    """What the metrics need beyond the engine's own counters."""

    histograms: dict[str, Histogram]
    success: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FINISH_REASONS, 0))
    rejections: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys((str(reason) for reason in RefusalReason), 0)
    )

    def observe_step(self, result: StepResult) -> None:
        """Fold one engine step in."""
        histograms = self.histograms
        tokens = 0
        for _, gained in result.tokens:
            tokens += gained
        if tokens or result.prefill_tokens:
            histograms["iteration_tokens_total"].observe(tokens + result.prefill_tokens)
        if result.decoding:
            histograms["inter_token_latency_seconds"].observe(result.duration_s, result.decoding)
        for _, waited_s, _ in result.first_tokens:
            histograms["time_to_first_token_seconds"].observe(waited_s)

    def observe_finished(self, done: Finished, reason: str, max_tokens: int) -> None:
        """Fold a served request in. Aborted ones never come here: vLLM does not count them."""
        self.success[reason] = self.success.get(reason, 0) + 1
        decode_s = done.last_token_at - done.first_token_at
        values = {
            "e2e_request_latency_seconds": done.last_token_at - done.arrived_at,
            "request_queue_time_seconds": done.scheduled_at - done.arrived_at,
            "request_prefill_time_seconds": done.first_token_at - done.scheduled_at,
            "request_inference_time_seconds": done.last_token_at - done.scheduled_at,
            "request_decode_time_seconds": decode_s,
            "request_time_per_output_token_seconds": decode_s / max(1, done.output_tokens - 1),
            "request_num_preemptions": done.preemptions,
            "request_prefill_kv_computed_tokens": done.prompt_tokens - done.cached_tokens,
            "request_prompt_tokens": done.prompt_tokens,
            "request_generation_tokens": done.output_tokens,
            "request_max_num_generation_tokens": done.output_tokens,
            "request_params_n": 1,
            "request_params_max_tokens": max_tokens,
        }
        for name, value in values.items():
            self.histograms[name].observe(value)
