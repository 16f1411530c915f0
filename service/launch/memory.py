"""Whether weights and KV cache fit, with the arithmetic in words.

Per device, in bytes:

    weights = (weight_bytes + draft_bytes) / T
    kv      = L * (2 * H/T * D * b + I * 2)          bytes per token
    room    = M * u - weights - reserve
    tokens  = room / kv                               must reach the context asked for

T tensor parallel size, L layers, H KV heads (at least one per device), D head dimension, b bytes per stored number,
I the indexer's key (bfloat16, one copy per device), M device memory, u the share vLLM takes (its default 0.92).
An NVFP4 number takes 4 bits and shares one 8-bit scale among 16: 0.5625 bytes
(https://docs.vllm.ai/en/latest/api/vllm/models/minimax_m3/, ``nvfp4_kv_cache_full_dim``).
"""

from dataclasses import dataclass

from service.launch.profile import Footprint, KvDtype, WorkerProfile

DEVICE_MEMORY_SHARE = 0.92  # vLLM's default --gpu-memory-utilization (reported by cache_config_info of 0.32)

KV_BYTES_PER_NUMBER = {KvDtype.NVFP4: 0.5625, KvDtype.FP8: 1.0, KvDtype.BFLOAT16: 2.0, KvDtype.AUTO: 2.0}


@dataclass(frozen=True, slots=True)
class MemoryVerdict:
    """How many tokens of context fit, and how that was reckoned."""

    fits: bool
    kv_tokens: int
    arithmetic: str


def compute_kv_bytes_per_token(footprint: Footprint, tensor_parallel: int, dtype: KvDtype) -> float:
    """Return the bytes one token of context takes on one device."""
    heads = max(1.0, footprint.kv_heads / tensor_parallel)
    numbers = 2 * heads * footprint.head_dim
    return footprint.layers * (numbers * KV_BYTES_PER_NUMBER[dtype] + footprint.indexer_dim * 2)


def judge_device_memory(profile: WorkerProfile, footprint: Footprint, device_bytes: float) -> MemoryVerdict:
    """Say whether one device of ``device_bytes`` carries its part of the profile."""
    tensor_parallel = profile.layout.tensor_parallel
    weights = (footprint.weight_bytes + footprint.draft_bytes) / tensor_parallel
    usable = device_bytes * DEVICE_MEMORY_SHARE
    room = usable - weights - footprint.reserve_bytes_per_device
    per_token = compute_kv_bytes_per_token(footprint, tensor_parallel, profile.kv_cache.dtype)
    tokens = max(0, int(room / per_token))
    wanted = profile.limits.context_tokens
    fits = tokens >= wanted
    arithmetic = (
        f"per GPU {device_bytes / 1e9:.0f} GB x {DEVICE_MEMORY_SHARE} = {usable / 1e9:.0f} GB usable"
        f" - {weights / 1e9:.0f} GB weights ({footprint.weight_bytes / 1e9:.0f} + {footprint.draft_bytes / 1e9:.0f}"
        f" draft, over {tensor_parallel}) - {footprint.reserve_bytes_per_device / 1e9:.0f} GB reserve"
        f" = {room / 1e9:.0f} GB for KV, at {per_token / 1e3:.1f} kB per token ({profile.kv_cache.dtype})"
        f" = {tokens:,} tokens; {wanted:,} asked"
    )
    return MemoryVerdict(fits, tokens, arithmetic)
