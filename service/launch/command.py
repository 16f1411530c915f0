"""Turns a profile into the command line and environment of a vLLM server: the one place that knows vLLM's flags.

Every flag is listed whether or not it equals vLLM's default of the day, because a default that moves would change the
contract. ``--quantization`` is left out on purpose: vLLM detects static NVFP4 from the checkpoint.
"""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from service.launch.fault import Fault, LaunchRefusedError
from service.launch.profile import Device, KvDtype, WorkerProfile, require_valid
from service.launch.speculation import DsparkSpeculation, build_speculative_config

# Seconds. Edges where SLA targets sit (TTFT 1 to 12 s, TPOT 25 and 50 ms), finer below: vLLM's own are too coarse to
# tell 20 ms from 25 ms.
HISTOGRAM_BUCKETS = {
    "time_to_first_token": [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2.5, 3, 4, 6, 12, 25, 60, 120],
    "inter_token_latency": [0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.25, 1],
    "request_latency": [0.1, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600],
}


@dataclass(frozen=True, slots=True)
class WorkerCommand:
    """An argument vector and the variables to add to the environment."""

    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Seat:
    """Which machine of a worker that spans several this is: ``rank`` from 0, the one that answers; ``leader`` is the
    address of rank 0."""

    rank: int
    leader: str


def build_worker_command(
    profile: WorkerProfile,
    *,
    port: int,
    host: str = "127.0.0.1",
    launcher: tuple[str, ...] = ("vllm",),
    seat: Seat | None = None,
) -> WorkerCommand:
    """Return the command that starts the profile; raise ``LaunchRefusedError`` if it has faults or the seat does not
    fit its nodes."""
    require_valid(profile)
    seating = tuple(_build_seating(profile.layout.nodes, seat))
    argv = (*launcher, "serve", profile.model, "--host", host, "--port", str(port), *_build_flags(profile), *seating)
    return WorkerCommand(argv, tuple(_build_environment(profile)))


def format_shell(command: WorkerCommand) -> str:
    """Return the command as a shell would take it, an option a line."""
    lines = [f"{name}={shlex.quote(value)}" for name, value in command.environment]
    line: list[str] = []
    for word in command.argv:
        if word.startswith("--"):
            lines.append(" ".join(line))
            line = []
        line.append(shlex.quote(word))
    lines.append(" ".join(line))
    return " \\\n  ".join(lines)


def _build_flags(profile: WorkerProfile) -> Iterator[str]:
    limits = profile.limits
    yield from ("--served-model-name", profile.served_model_name)
    yield from _build_device_flags(profile)
    if config := build_speculative_config(profile.speculation):
        yield from ("--speculative-config", config)
    if profile.tool_call_parser:
        yield from ("--tool-call-parser", profile.tool_call_parser, "--enable-auto-tool-choice")
    if profile.reasoning_parser:
        yield from ("--reasoning-parser", profile.reasoning_parser)
    if profile.compact_json:
        yield from ("--structured-outputs-config", '{"backend":"xgrammar","disable_any_whitespace":true}')
    yield from ("--max-model-len", str(limits.context_tokens))
    yield from ("--max-num-seqs", str(limits.running_requests))
    yield from ("--scheduling-policy", "priority")
    yield from ("--max-num-queued-reqs", str(limits.in_flight_requests))
    if limits.prefill_backlog_tokens is not None:
        yield from ("--max-num-queued-tokens", str(limits.prefill_backlog_tokens))
    yield from ("--shutdown-timeout", str(limits.shutdown_grace_s))
    yield from ("--enable-per-request-metrics", "--enable-prompt-tokens-details", "--enable-request-id-headers")
    if isinstance(profile.speculation, DsparkSpeculation):
        yield from ("--per-request-spec-decode-metrics", "summary")
    yield from ("--custom-histogram-buckets", json.dumps(HISTOGRAM_BUCKETS, separators=(",", ":")))
    yield "--disable-uvicorn-access-log"  # the gateway's ledger is the record of requests


def _build_seating(nodes: int, seat: Seat | None) -> Iterator[str]:
    if nodes == 1 and seat is None:
        return
    if seat is None or not seat.leader or not 0 <= seat.rank < nodes:
        rank, leader = ("none", "") if seat is None else (seat.rank, seat.leader)
        raise LaunchRefusedError(
            [
                Fault(
                    "layout.nodes",
                    f"this node's rank is {rank} of {nodes} nodes, and the leader is {leader or 'unknown'}",
                    "give --nodes, --node-rank (from 0) and --leader together",
                )
            ]
        )
    yield from ("--nnodes", str(nodes), "--node-rank", str(seat.rank), "--master-addr", seat.leader)
    if seat.rank:
        yield "--headless"  # computes, but answers nobody


def _build_device_flags(profile: WorkerProfile) -> Iterator[str]:
    layout, kv_cache = profile.layout, profile.kv_cache
    if profile.device is Device.CPU:
        yield from ("--dtype", "bfloat16", "--enforce-eager")
        return
    yield from ("--tensor-parallel-size", str(layout.tensor_parallel))
    if layout.data_parallel > 1:
        yield from ("--data-parallel-size", str(layout.data_parallel))
    if layout.expert_parallel:
        yield "--enable-expert-parallel"
    if kv_cache.block_tokens is not None:
        yield from ("--block-size", str(kv_cache.block_tokens))
    yield from ("--kv-cache-dtype", kv_cache.dtype.value)
    if profile.is_m3 and kv_cache.dtype is KvDtype.NVFP4:
        yield from ("--attention-config", '{"minimax_m3_msa_decode_backend":"cutlass"}')


def _build_environment(profile: WorkerProfile) -> Iterator[tuple[str, str]]:
    yield ("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", str(profile.limits.keep_alive_s))
    if profile.device is Device.CPU:
        yield ("VLLM_CPU_KVCACHE_SPACE", str(profile.kv_cache.cpu_space_gib))
        yield ("HF_HUB_OFFLINE", "1")
        yield ("VLLM_NO_USAGE_STATS", "1")
        # One thread: the model is so small that handing work between threads costs more than the work.
        yield ("OMP_NUM_THREADS", "1")
