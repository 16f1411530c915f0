"""Writes ``/metrics`` as vLLM does: names, kinds, help, labels and buckets of ``v1/metrics/loggers.py`` in 0.32.0."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from service.emulator.profiles import EngineProfile
from service.emulator.steps import EngineStats
from service.emulator.tally import Tally, build_histograms

PROMPT_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
CACHE_SOURCES = ("device", "host", "p2p", "disk", "external_unspecified")
ESTIMATES = (
    ("flops", "Estimated number of floating point operations per GPU (for Model Flops Utilization calculations)."),
    ("read_bytes", "Estimated number of bytes read from memory per GPU (for Model Flops Utilization calculations)."),
    ("write_bytes", "Estimated number of bytes written to memory per GPU (for Model Flops Utilization calculations)."),
)
CACHE_INFO = {
    "cache_hit_alignment_tokens": "None",
    "enable_prefix_caching": "True",
    "engine": "0",
    "gpu_memory_utilization": "0.92",
    "hash_block_size": "None",
    "is_attention_free": "False",
    "kv_cache_layout": "None",
    "kv_cache_memory_bytes": "None",
    "num_cpu_blocks": "None",
    "num_gpu_blocks_override": "None",
    "prefix_cache_retention_interval": "0",
    "prefix_caching_hash_algo": "sha256",
    "sliding_window": "None",
    "user_specified_block_size": "True",
}


class Exposition:
    """Renders the page from a snapshot at the moment of the scrape."""

    def __init__(self, profile: EngineProfile, model: str, max_model_len: int, created: float) -> None:
        self._profile = profile
        self._max_model_len = max_model_len
        self._labels = {"model_name": model, "engine": "0"}
        self._created = created
        self._stats: EngineStats | None = None
        self.tally = Tally(build_histograms(max_model_len))
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
        info = CACHE_INFO | {
            "block_size": str(self._profile.block_size),
            "cache_dtype": self._profile.cache_dtype,
            "effective_attention_block_size": str(self._profile.block_size),
            "kv_cache_max_concurrency": str(stats.kv_blocks_total * self._profile.block_size / self._max_model_len),
            "kv_cache_size_tokens": str(stats.kv_blocks_total * self._profile.block_size),
            "num_gpu_blocks": str(stats.kv_blocks_total),
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
            "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), "
            "host (offloaded to DRAM), disk, p2p (transferred from another vLLM instance) or external_unspecified. "
            "Counted at admission; sums to vllm:prefix_cache_hits + vllm:external_prefix_cache_hits."
        )
        tiers = dict.fromkeys(CACHE_SOURCES, 0.0) | {"device": float(stats.prefix_hits)}
        yield self._counter("prompt_tokens_cached_by_source", text, source=tiers)
        yield self._counter("generation_tokens", "Number of generation tokens processed.", stats.generation_tokens)
        for name, text in ESTIMATES:  # registered by vLLM in any case, counted only with --enable-mfu-metrics
            yield self._counter(f"estimated_{name}_per_gpu", text, 0)
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
