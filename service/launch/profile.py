"""What a worker is, as one frozen value: model, layout over devices, KV cache, speculation, valves.

A profile says what is wanted, in units of its own; ``command`` knows vLLM's words for it. ``find_profile_faults`` holds
the rules that need no machine to be judged. The order of the valves is arithmetic: the gateway keeps at most
``running_requests`` in flight per worker; vLLM's own valve ``in_flight_requests`` counts running *and* waiting and
stands about a fifth above, so if it ever fires the gateway's books have drifted.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from service.launch.fault import Fault, LaunchRefusedError
from service.launch.speculation import Speculation, find_speculation_faults

# M3's indexer works on blocks of 128 tokens; any other size aborts vLLM's KV cache initialisation.
M3_BLOCK_TOKENS = 128


class Device(StrEnum):
    """What the engine computes on."""

    CUDA = "cuda"
    CPU = "cpu"


class KvDtype(StrEnum):
    """How keys and values are stored, in vLLM's spelling."""

    AUTO = "auto"
    BFLOAT16 = "bfloat16"
    FP8 = "fp8"
    NVFP4 = "nvfp4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How one worker spreads over devices."""

    tensor_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: bool = False
    nodes: int = 1

    @property
    def devices(self) -> int:
        """Devices one worker occupies."""
        return self.tensor_parallel * self.data_parallel

    @property
    def devices_per_node(self) -> int:
        """Devices it occupies on each of its machines."""
        return self.devices // max(1, self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCache:
    """How attention state is stored."""

    dtype: KvDtype = KvDtype.AUTO
    block_tokens: int | None = None
    cpu_space_gib: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The worker's valves; ``None`` leaves vLLM's own default."""

    context_tokens: int
    running_requests: int
    in_flight_requests: int
    prefill_backlog_tokens: int | None = None
    shutdown_grace_s: int
    keep_alive_s: int = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What the model weighs; the arithmetic is in ``memory``."""

    weight_bytes: float
    draft_bytes: float
    reserve_bytes_per_device: float
    layers: int
    kv_heads: int
    head_dim: int
    indexer_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProfile:
    """One worker, entirely described."""

    name: str
    model: str
    served_model_name: str
    device: Device
    layout: Layout
    kv_cache: KvCache
    limits: Limits
    speculation: Speculation
    footprint: Footprint | None = None
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    # Forced JSON without free whitespace: a model of random weights would otherwise never leave a run of blanks.
    compact_json: bool = False
    is_m3: bool = False
    max_context_tokens: int


def find_profile_faults(profile: WorkerProfile) -> tuple[Fault, ...]:
    """Return everything that is wrong with the profile on any machine."""
    return (
        *_find_limit_faults(profile),
        *_find_layout_faults(profile),
        *find_speculation_faults(
            profile.speculation,
            on_cpu=profile.device is Device.CPU,
            data_parallel=profile.layout.data_parallel,
            running_requests=profile.limits.running_requests,
        ),
    )


def require_valid(profile: WorkerProfile) -> None:
    """Raise ``LaunchRefusedError`` with all faults of the profile, if there are any."""
    if faults := find_profile_faults(profile):
        raise LaunchRefusedError(faults)


def _find_limit_faults(profile: WorkerProfile) -> Iterator[Fault]:
    limits = profile.limits
    if not 1 <= limits.context_tokens <= profile.max_context_tokens:
        yield Fault(
            "limits.context_tokens",
            f"{limits.context_tokens} is outside what the model was built for",
            f"use 1 to {profile.max_context_tokens}",
        )
    if limits.running_requests < 1:
        yield Fault("limits.running_requests", f"{limits.running_requests} requests cannot run", "use 1 or more")
    if limits.in_flight_requests < limits.running_requests:
        yield Fault(
            "limits.in_flight_requests",
            f"vLLM counts running and waiting requests against it, so at {limits.in_flight_requests} it refuses "
            f"before {limits.running_requests} requests run",
            f"use about a fifth more than running_requests: {limits.running_requests * 6 // 5}",
        )
    if limits.prefill_backlog_tokens is not None and limits.prefill_backlog_tokens < limits.context_tokens:
        yield Fault(
            "limits.prefill_backlog_tokens",
            f"a prompt of {limits.context_tokens} tokens could never be admitted at {limits.prefill_backlog_tokens}",
            "use at least context_tokens, or leave it out",
        )
    if limits.shutdown_grace_s < 1:
        yield Fault("limits.shutdown_grace_s", "0 cuts every running stream at shutdown", "use 1 second or more")
    if limits.keep_alive_s < 6:  # one above vLLM's own default
        yield Fault(
            "limits.keep_alive_s",
            f"at {limits.keep_alive_s} s the worker closes idle connections under the gateway's pool",
            "use 120, and a shorter idle time in the pool",
        )


def _find_layout_faults(profile: WorkerProfile) -> Iterator[Fault]:
    layout, kv_cache = profile.layout, profile.kv_cache
    if layout.tensor_parallel not in {1, 2, 4, 8, 16}:
        yield Fault(
            "layout.tensor_parallel",
            f"attention heads do not divide over {layout.tensor_parallel} devices",
            "use 1, 2, 4, 8 or 16",
        )
    if layout.data_parallel < 1:
        yield Fault("layout.data_parallel", f"{layout.data_parallel} replicas cannot run", "use 1 or more")
    if layout.nodes < 1 or layout.tensor_parallel % layout.nodes or (layout.nodes > 1 and layout.data_parallel > 1):
        yield Fault(
            "layout.nodes",
            f"tensor parallel {layout.tensor_parallel} x data parallel {layout.data_parallel} does not spread over "
            f"{layout.nodes} nodes",
            "use nodes that divide tensor_parallel, with data_parallel 1",
        )
    if profile.is_m3 and kv_cache.block_tokens != M3_BLOCK_TOKENS:
        yield Fault(
            "kv_cache.block_tokens",
            f"M3's indexer works on blocks of {M3_BLOCK_TOKENS} tokens; {kv_cache.block_tokens} aborts at start",
            f"use {M3_BLOCK_TOKENS}",
        )
    if profile.device is Device.CPU and kv_cache.dtype not in {KvDtype.AUTO, KvDtype.BFLOAT16}:
        yield Fault("kv_cache.dtype", f"{kv_cache.dtype} is not for CPUs", "use auto")
    if profile.device is Device.CPU and kv_cache.cpu_space_gib is None:
        yield Fault("kv_cache.cpu_space_gib", "a CPU engine must be told its KV cache size", "use 1")
