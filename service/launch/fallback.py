"""Judges a started worker: does it run what was asked, or did the engine quietly fall back?

A worker on another KV dtype, another block size or without speculation answers every request, only slower or with less
room. It must not carry the SLA profile. What it really runs is in its own ``/metrics``: the labels of
``vllm:cache_config_info`` and the presence of ``vllm:spec_decode_*`` series.

*Trade-offs*: the attention backend is not in the metrics, so a fallback there shows only in vLLM's log and in speed.
"""

import re
from dataclasses import dataclass

from service.launch.fault import Fault
from service.launch.profile import Device, WorkerProfile
from service.launch.speculation import NoSpeculation

_CACHE_INFO = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    """What an engine says it runs; ``None`` where it does not say."""

    kv_dtype: str | None = None
    block_tokens: int | None = None
    kv_tokens: int | None = None
    speculates: bool = False


def parse_engine_report(metrics: str) -> EngineReport:
    """Read the text of ``/metrics``."""
    found = _CACHE_INFO.search(metrics)
    labels = dict(_LABEL.findall(found.group(1))) if found else {}
    return EngineReport(
        kv_dtype=labels.get("cache_dtype"),
        block_tokens=_as_count(labels.get("block_size")),
        kv_tokens=_as_count(labels.get("kv_cache_size_tokens")),
        speculates="\nvllm:spec_decode_num_drafts_total" in metrics,
    )


def find_fallbacks(profile: WorkerProfile, report: EngineReport) -> tuple[Fault, ...]:
    """Return every way in which the engine runs other than asked."""
    faults = []
    asked = profile.kv_cache
    if report.kv_dtype != asked.dtype.value:
        faults.append(_differs("kv_cache.dtype", asked.dtype.value, report.kv_dtype))
    if asked.block_tokens is not None and report.block_tokens != asked.block_tokens:
        faults.append(_differs("kv_cache.block_tokens", asked.block_tokens, report.block_tokens))
    speculates = not isinstance(profile.speculation, NoSpeculation)
    if speculates is not report.speculates:
        faults.append(_differs("speculation", speculates, report.speculates))
    if profile.device is Device.CUDA and (report.kv_tokens or 0) < profile.limits.context_tokens:
        faults.append(_differs("limits.context_tokens", profile.limits.context_tokens, report.kv_tokens))
    return tuple(faults)


def _differs(field: str, asked: object, runs: object) -> Fault:
    told = "does not say" if runs is None else f"runs {runs}"
    return Fault(field, f"asked {asked}, the engine {told}", "read vLLM's log for the reason; keep it out of the pool")


def _as_count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
