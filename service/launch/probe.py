"""Gathers ``MachineFacts``: asks nvidia-smi, the kernel and the engine's own Python, each with a bound on time.

Whatever cannot be asked becomes ``None``; a probe never raises for what it finds.
"""

import json
import platform
import re
import subprocess
from pathlib import Path

from service.launch.facts import EngineFacts, Gpu, MachineFacts
from service.launch.preflight import ENGINE_MODULES

ENGINE_SIDE = Path(__file__).parent / "engine_side"

ASK_LIMIT_S = 60.0

_MIB = 2**20


def probe_machine(engine_python: Path | None) -> MachineFacts:
    """Return the facts of this machine and of the vLLM in ``engine_python`` (``None``: there is no such Python)."""
    listing = _ask(
        "nvidia-smi", "--query-gpu=name,compute_cap,memory.total,driver_version", "--format=csv,noheader,nounits"
    )
    banner = _ask("nvidia-smi") if listing is not None else None
    gpus, driver_version = parse_gpu_listing(listing) if listing is not None else (None, None)
    engine, problem = probe_engine(engine_python)
    return MachineFacts(
        gpus=gpus,
        driver_version=driver_version,
        driver_cuda=parse_driver_cuda(banner or ""),
        engine=engine,
        engine_problem=problem,
        memory_available_bytes=_read_available_memory(),
        machine=platform.machine(),
        system=platform.system(),
    )


def probe_engine(python: Path | None) -> tuple[EngineFacts | None, str | None]:
    """Return what vLLM ``python`` has, or why that cannot be told."""
    if python is None:
        return None, None
    if not python.exists():
        return None, f"{python} does not exist"
    answer = _ask(str(python), str(ENGINE_SIDE / "describe_engine.py"), *ENGINE_MODULES)
    if answer is None:
        return None, f"{python} does not run or did not answer within {ASK_LIMIT_S:.0f} s"
    told = json.loads(answer)
    return (
        EngineFacts(
            python=str(python),
            vllm_version=told["vllm_version"],
            torch_version=told["torch_version"],
            torch_cuda=told["torch_cuda"],
            modules=frozenset(told["modules"]),
        ),
        None,
    )


def parse_gpu_listing(listing: str) -> tuple[tuple[Gpu, ...], str | None]:
    """Read nvidia-smi's CSV: name, compute capability, MiB, driver version."""
    gpus = []
    driver_version = None
    for line in listing.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != 4:
            continue
        name, capability, mebibytes, driver_version = fields
        major, dot, minor = capability.partition(".")
        known = bool(dot) and major.isdigit() and minor.isdigit()
        gpus.append(
            Gpu(
                name,
                (int(major), int(minor)) if known else None,
                float(mebibytes) * _MIB if mebibytes.isdigit() else None,
            )
        )
    return tuple(gpus), driver_version


def parse_driver_cuda(banner: str) -> str | None:
    """Find the CUDA version the driver carries in nvidia-smi's table."""
    found = re.search(r"CUDA Version:\s*(\d+\.\d+)", banner)
    return found.group(1) if found else None


def parse_available_memory(meminfo: str) -> float | None:
    """Find the memory the kernel says new processes may use."""
    found = re.search(r"^MemAvailable:\s*(\d+) kB$", meminfo, re.MULTILINE)
    return float(found.group(1)) * 1024 if found else None


def _read_available_memory() -> float | None:
    try:
        return parse_available_memory(Path("/proc/meminfo").read_text())
    except OSError:
        return None


def _ask(*argv: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 - fixed programs and the operator's own Python
            argv, capture_output=True, text=True, timeout=ASK_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
