"""Writes ``/metrics`` as vLLM does: names, kinds, help, labels and buckets of ``v1/metrics/loggers.py`` in 0.32.0."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from service.emulator.profiles import EngineProfile
from service.emulator.steps import EngineStats, Finished, RefusalReason, StepResult

LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640,
               2560)  # fmt: skip
GAP = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
CHOICES = (1, 2, 5, 10, 20)
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
PROMPT_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
CACHE_SOURCES = ("device", "host", "p2p", "disk", "external_unspecified")


def build_token_buckets(limit: int) -> tuple[float, ...]:
    """1, 2, 5, 10 ... up to the context length."""
    return tuple(m * 10**e for e in range(10) for m in (1, 2, 5) if m * 10**e <= limit)


class Histogram:
    """Counts per bucket; cheaper than a client object per observation, since a step brings many equal values."""

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


class Exposition:
    """Renders the page from a snapshot at the moment of the scrape."""

    def __init__(self, profile: EngineProfile, model: str, created: float) -> None:
        self._profile = profile
        self._labels = {"model_name": model, "engine": "0"}
        self._created = created
        self._stats: EngineStats | None = None
        self.tally = Tally(build_histograms(profile.max_model_len))
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self, stats: EngineStats) -> bytes:
        self._stats = stats
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Called by the registry."""
        stats = self._stats
        if stats is None:
            return
        yield from self._collect_gauges(stats)
        yield from self._collect_counters(stats)
        if self._profile.speculation.enabled:
            yield from self._collect_speculation(stats)
        for histogram in self.tally.histograms.values():
            yield histogram.collect(self._labels, self._created)

    def _collect_gauges(self, stats: EngineStats) -> Iterator[Metric]:
        yield self._gauge("num_requests_running", "Number of requests in model execution batches.", stats.running)
        yield self._gauge("num_requests_waiting", "Number of requests waiting to be processed.", stats.waiting)
        text = (
            "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; "
            "'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). "
            "Sum of all reasons equals vllm:num_requests_waiting."
        )
        yield self._gauge(
            "num_requests_waiting_by_reason", text, reason={"capacity": float(stats.waiting), "deferred": 0.0}
        )
        text = (
            "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "
            "weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2."
        )
        states = {"awake": 1.0, "weights_offloaded": 0.0, "discard_all": 0.0}
        yield self._gauge("engine_sleep_state", text, sleep_state=states)
        text = "KV-cache usage. 1 means 100 percent usage."
        yield self._gauge("kv_cache_usage_perc", text, stats.kv_usage_ratio)
        info = {
            "block_size": str(self._profile.block_size),
            "cache_dtype": self._profile.cache_dtype,
            "enable_prefix_caching": "True",
            "engine": "0",
            "gpu_memory_utilization": "0.92",
            "num_gpu_blocks": str(stats.kv_blocks_total),
            "num_cpu_blocks": "None",
            "prefix_caching_hash_algo": "sha256",
            "sliding_window": "None",
        }
        text = "Information of the LLMEngine CacheConfig"
        family = GaugeMetricFamily("vllm:cache_config_info", text, labels=list(info))
        family.add_metric(list(info.values()), 1.0)
        yield family

    def _collect_counters(self, stats: EngineStats) -> Iterator[Metric]:
        computed = stats.prompt_tokens - stats.cached_tokens
        yield self._counter(
            "prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.", stats.prefix_queries
        )
        yield self._counter(
            "prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", stats.prefix_hits
        )
        for kind, unit in (("queries", "queried"), ("hits", "cached")):
            text = (
                f"External prefix cache {kind} from KV connector cross-instance cache sharing, "
                f"in terms of number of {unit} tokens."
            )
            yield self._counter(f"external_prefix_cache_{kind}", text, 0)
            text = f"Multi-modal cache {kind}, in terms of number of {unit} items."
            yield self._counter(f"mm_cache_{kind}", text, 0)
        yield self._counter("num_preemptions", "Cumulative number of preemption from the engine.", stats.preemptions)
        yield self._counter("prompt_tokens", "Number of prefill tokens processed.", stats.prompt_tokens)
        by_source = dict(zip(PROMPT_SOURCES, (float(computed), float(stats.cached_tokens), 0.0), strict=True))
        yield self._counter("prompt_tokens_by_source", "Number of prompt tokens by source.", source=by_source)
        text = "Number of cached prompt tokens (local + external)."
        yield self._counter("prompt_tokens_cached", text, stats.cached_tokens)
        text = (
            "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to DRAM), "
            "disk, p2p (transferred from another vLLM instance) or external_unspecified. Counted at admission; sums to "
            "vllm:prefix_cache_hits + vllm:external_prefix_cache_hits."
        )
        tiers = dict.fromkeys(CACHE_SOURCES, 0.0) | {"device": float(stats.prefix_hits)}
        yield self._counter("prompt_tokens_cached_by_source", text, source=tiers)
        yield self._counter("generation_tokens", "Number of generation tokens processed.", stats.generation_tokens)
        success = {reason: float(value) for reason, value in self.tally.success.items()}
        yield self._counter("request_success", "Count of successfully processed requests.", finished_reason=success)
        text = "Number of admission attempts rejected by a queue limit, by reason."
        family = CounterMetricFamily("vllm:admission_rejections", text, labels=["model_name", "reason"])
        for reason, value in self.tally.rejections.items():
            family.add_metric([self._labels["model_name"], reason], value, self._created)
        yield family

    def _collect_speculation(self, stats: EngineStats) -> Iterator[Metric]:
        yield self._counter("spec_decode_num_drafts", "Number of spec decoding drafts.", stats.drafts)
        yield self._counter("spec_decode_num_draft_tokens", "Number of draft tokens.", stats.draft_tokens)
        yield self._counter("spec_decode_num_accepted_tokens", "Number of accepted tokens.", stats.accepted_tokens)
        positions = {str(place): float(value) for place, value in enumerate(stats.accepted_per_position)}
        text = "Accepted tokens per draft position."
        yield self._counter("spec_decode_num_accepted_tokens_per_pos", text, position=positions)

    def _gauge(self, name: str, text: str, value: float = 0.0, **split: dict[str, float]) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=[*self._labels, *split])
        for labels, sample in self._samples(value, split):
            family.add_metric(labels, sample)
        return family

    def _counter(self, name: str, text: str, value: float = 0.0, **split: dict[str, float]) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", text, labels=[*self._labels, *split])
        for labels, sample in self._samples(value, split):
            family.add_metric(labels, sample, self._created)
        return family

    def _samples(self, value: float, split: dict[str, dict[str, float]]) -> Iterator[tuple[list[str], float]]:
        own = list(self._labels.values())
        if not split:
            yield own, value
        for values in split.values():
            for label, sample in values.items():
                yield [*own, label], sample
