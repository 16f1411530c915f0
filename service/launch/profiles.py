"""The two profiles the project ships, and the few things an operator may change about them.

``m3.1-flash`` is MiniMax M3.1 Flash on one worker of four B200 or GB300: static NVFP4 experts, NVFP4 KV cache with the
CUTLASS decode backend, DSpark speculation by batch size. ``cpu-small`` is a real vLLM on a CPU with a small model of
random weights: the same wire, metrics and scheduler, for tests and for trying Sluice out.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import assert_never

from service.launch.fault import Fault, LaunchRefusedError
from service.launch.profile import (
    M3_BLOCK_TOKENS,
    Device,
    Footprint,
    KvCache,
    KvDtype,
    Layout,
    Limits,
    WorkerProfile,
)
from service.launch.speculation import (
    DsparkSpeculation,
    NgramSpeculation,
    NoSpeculation,
    ScheduleStep,
    Speculation,
    parse_schedule,
)

SERVED_MODEL_NAME = "MiniMax-M3.1-Flash"
PROFILE_NAMES = ("m3.1-flash", "cpu-small")

# Batch sizes where speculation stops paying are a guess until `sluice speculation evaluate` has measured the
# operator's traffic; the shape (much, some, none) follows vllm issue 49369.
M31_SCHEDULE = (ScheduleStep(1, 32, 7), ScheduleStep(33, 128, 3), ScheduleStep(129, 1024, 0))

M31_FOOTPRINT = Footprint(
    weight_bytes=257e9,  # vram_minimum_gb of the NVFP4 variant in vLLM's recipe for M3 (vllm-project/recipes 577)
    draft_bytes=4e9,  # guess: five dense layers with FFN 12288 in bfloat16; read the size of dspark/ to replace it
    reserve_bytes_per_device=10e9,  # guess: activations and CUDA graphs; vLLM prints the real figure at start
    layers=60,
    kv_heads=4,
    head_dim=128,
    indexer_dim=128,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """What an operator may say about a shipped profile; ``None`` keeps the profile's own value."""

    model: str | None = None
    tensor_parallel: int | None = None
    data_parallel: int | None = None
    nodes: int | None = None
    kv_dtype: KvDtype | None = None
    context_tokens: int | None = None
    running_requests: int | None = None
    in_flight_requests: int | None = None
    prefill_backlog_tokens: int | None = None
    shutdown_grace_s: int | None = None
    speculation: str | None = None
    guessed_tokens: int | None = None
    schedule: str | None = None


def build_m31_flash_profile() -> WorkerProfile:
    """Return the production profile."""
    return WorkerProfile(
        name="m3.1-flash",
        model="MiniMaxAI/MiniMax-M3.1-Flash",
        served_model_name=SERVED_MODEL_NAME,
        device=Device.CUDA,
        layout=Layout(tensor_parallel=4, expert_parallel=True),
        kv_cache=KvCache(dtype=KvDtype.NVFP4, block_tokens=M3_BLOCK_TOKENS),
        # 256 concurrent requests: the published day-0 profile. 307 is a fifth above.
        limits=Limits(context_tokens=1_048_576, running_requests=256, in_flight_requests=307, shutdown_grace_s=300),
        speculation=DsparkSpeculation(schedule=M31_SCHEDULE),
        footprint=M31_FOOTPRINT,
        tool_call_parser="minimax_m3",
        reasoning_parser="minimax_m3",
        is_m3=True,
        max_context_tokens=1_048_576,
    )


def build_cpu_small_profile(model_dir: Path) -> WorkerProfile:
    """Return the profile of the CPU engine, serving the small model in ``model_dir``.

    No reasoning parser: the model closes no thought, so all of its text would count as one. No speculation by default:
    random weights accept next to nothing.
    """
    return WorkerProfile(
        name="cpu-small",
        model=str(model_dir),
        served_model_name=SERVED_MODEL_NAME,
        device=Device.CPU,
        layout=Layout(),
        kv_cache=KvCache(cpu_space_gib=1),
        limits=Limits(context_tokens=4096, running_requests=16, in_flight_requests=64, shutdown_grace_s=20),
        speculation=NoSpeculation(),
        tool_call_parser="hermes",
        compact_json=True,
        max_context_tokens=8192,
    )


def apply_overrides(profile: WorkerProfile, overrides: Overrides) -> WorkerProfile:
    """Return the profile with what the operator said; the result is not validated yet."""
    layout = replace(
        profile.layout,
        tensor_parallel=_either(overrides.tensor_parallel, profile.layout.tensor_parallel),
        data_parallel=_either(overrides.data_parallel, profile.layout.data_parallel),
        nodes=_either(overrides.nodes, profile.layout.nodes),
    )
    running_requests = _either(overrides.running_requests, profile.limits.running_requests)
    in_flight_requests = overrides.in_flight_requests
    if in_flight_requests is None and overrides.running_requests is not None:
        in_flight_requests = running_requests * 6 // 5 + 1
    limits = replace(
        profile.limits,
        context_tokens=_either(overrides.context_tokens, profile.limits.context_tokens),
        running_requests=running_requests,
        in_flight_requests=_either(in_flight_requests, profile.limits.in_flight_requests),
        prefill_backlog_tokens=overrides.prefill_backlog_tokens or profile.limits.prefill_backlog_tokens,
        shutdown_grace_s=_either(overrides.shutdown_grace_s, profile.limits.shutdown_grace_s),
    )
    return replace(
        profile,
        model=overrides.model or profile.model,
        layout=layout,
        limits=limits,
        kv_cache=replace(profile.kv_cache, dtype=overrides.kv_dtype or profile.kv_cache.dtype),
        speculation=_choose_speculation(profile.speculation, overrides),
    )


def _either(said: int | None, otherwise: int) -> int:
    return otherwise if said is None else said


def _choose_speculation(own: Speculation, overrides: Overrides) -> Speculation:
    chosen: Speculation
    match overrides.speculation:
        case None:
            chosen = own
        case "none":
            chosen = NoSpeculation()
        case "ngram":
            chosen = own if isinstance(own, NgramSpeculation) else NgramSpeculation()
        case "dspark":
            chosen = own if isinstance(own, DsparkSpeculation) else DsparkSpeculation()
        case unknown:
            raise LaunchRefusedError(
                [Fault("speculation", f"{unknown!r} is not a method", "use dspark, ngram or none")]
            )
    if overrides.guessed_tokens is not None:
        chosen = _guess(chosen, overrides.guessed_tokens)
    if overrides.schedule is not None:
        chosen = _schedule(chosen, overrides.schedule)
    return chosen


def _guess(chosen: Speculation, guessed_tokens: int) -> Speculation:
    match chosen:
        case NoSpeculation():
            raise LaunchRefusedError(
                [Fault("speculation.guessed_tokens", "there is no speculation to set it for", "name a method too")]
            )
        case NgramSpeculation():
            return replace(chosen, guessed_tokens=guessed_tokens)
        case DsparkSpeculation():
            # A smaller ceiling lowers the schedule with it: vLLM clamps the same way, here it is written out.
            lowered = tuple(
                replace(step, guessed_tokens=min(step.guessed_tokens, guessed_tokens)) for step in chosen.schedule
            )
            return replace(chosen, guessed_tokens=guessed_tokens, schedule=lowered)
        case _ as unreachable:
            assert_never(unreachable)


def _schedule(chosen: Speculation, text: str) -> Speculation:
    if not isinstance(chosen, DsparkSpeculation):
        raise LaunchRefusedError([Fault("speculation.schedule", "only dspark has a schedule", "use dspark")])
    if text == "off":
        return replace(chosen, schedule=())
    try:
        return replace(chosen, schedule=parse_schedule(text))
    except ValueError as error:
        raise LaunchRefusedError(
            [Fault("speculation.schedule", str(error), "write it as 1-32:7,33-128:3,129-1024:0, or off")]
        ) from error
