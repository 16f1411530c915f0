"""A started worker that runs other than asked."""

from pathlib import Path

from service.launch.fallback import EngineReport, find_fallbacks, parse_engine_report
from service.launch.profile import KvDtype
from service.launch.profiles import Overrides, apply_overrides, build_cpu_small_profile, build_m31_flash_profile

M31 = build_m31_flash_profile()
AS_ASKED = EngineReport(kv_dtype="nvfp4", block_tokens=128, kv_tokens=6_000_000, speculates=True)

METRICS = """\
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="128",cache_dtype="nvfp4",engine="0",kv_cache_size_tokens="6000000"} 1.0
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 0.0
"""


def test_report_is_read_from_metrics() -> None:
    assert parse_engine_report(METRICS) == AS_ASKED
    assert parse_engine_report("") == EngineReport()
    assert parse_engine_report('vllm:cache_config_info{block_size="None"} 1.0').block_tokens is None


def test_a_worker_as_asked_has_no_fallbacks() -> None:
    assert find_fallbacks(M31, AS_ASKED) == ()


def test_every_quiet_fallback_is_told() -> None:
    fell = EngineReport(kv_dtype="fp8", block_tokens=64, kv_tokens=500_000, speculates=False)
    assert [fault.field for fault in find_fallbacks(M31, fell)] == [
        "kv_cache.dtype",
        "kv_cache.block_tokens",
        "speculation",
        "limits.context_tokens",
    ]


def test_silence_is_not_consent() -> None:
    told = [str(fault) for fault in find_fallbacks(M31, EngineReport(speculates=True))]
    assert len(told) == 3
    assert all("does not say" in line for line in told)


def test_asking_for_less_is_no_fallback() -> None:
    asked = apply_overrides(M31, Overrides(kv_dtype=KvDtype.FP8, speculation="none"))
    runs = EngineReport(kv_dtype="fp8", block_tokens=128, kv_tokens=6_000_000)
    assert find_fallbacks(asked, runs) == ()
    assert find_fallbacks(build_cpu_small_profile(Path("/m")), EngineReport(kv_dtype="auto")) == ()
