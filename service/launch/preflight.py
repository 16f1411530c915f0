"""Judges a machine against a profile before a worker is started: what is missing, why it matters, what cures it.

A wrong machine fails late and obscurely (an NVFP4 cache on Hopper dies while kernels compile, minutes in), or does not
fail at all and serves slower than sold. Each check is a plain sentence. Nothing is guessed from a version number where
the thing itself can be looked for. A check whose fact is unknown fails: silence is not consent.

*Trade-offs*: memory is judged with the profile's estimates of weights and reserve; a machine within a few percent of
the limit may be judged wrongly either way. vLLM's own start has the last word.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from service.launch.facts import EngineFacts, Gpu, MachineFacts
from service.launch.memory import judge_device_memory
from service.launch.profile import Device, KvDtype, WorkerProfile, find_profile_faults
from service.launch.speculation import DsparkSpeculation

M3_MODULE = "vllm.models.minimax_m3"
# In the documentation of vLLM's main branch, not in the 0.33.0 wheel; so it is looked for, not inferred.
M3_DSPARK_MODULE = "vllm.models.minimax_m3.common.dspark"
MSA_KERNELS_MODULE = "vllm.third_party.fmha_sm100"
ENGINE_MODULES = (M3_MODULE, M3_DSPARK_MODULE, MSA_KERNELS_MODULE)

NVFP4_CAPABILITY = 10  # compute capability 10.x: B200, GB200, B300, GB300

# Resident memory of one CPU worker without its KV cache: its three processes, measured on vLLM 0.32.0.
CPU_WORKER_BYTES = 3.3e9


class Verdict(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Check:
    """One question about the machine, answered."""

    name: str
    verdict: Verdict
    message: str
    cure: str = ""


def check_machine(profile: WorkerProfile, facts: MachineFacts) -> tuple[Check, ...]:
    """Return every check in a fixed order."""
    checks = list(_check_profile(profile))
    if profile.device is Device.CPU:
        checks += _check_cpu(profile, facts)
    else:
        checks += [*_check_gpus(profile, facts), *_check_driver(facts), *_check_engine(profile, facts)]
        checks += _check_speculation(profile, facts)
    return tuple(checks)


def is_ready(checks: tuple[Check, ...]) -> bool:
    """Say whether a worker may be started: warnings do not stop it, failures do."""
    return all(check.verdict is not Verdict.FAILED for check in checks)


def _check_profile(profile: WorkerProfile) -> Iterator[Check]:
    faults = find_profile_faults(profile)
    for fault in faults:
        yield Check(fault.field, Verdict.FAILED, fault.message, fault.cure)
    if not faults:
        yield Check("profile", Verdict.PASSED, f"{profile.name} is consistent")


def _check_gpus(profile: WorkerProfile, facts: MachineFacts) -> Iterator[Check]:
    wanted = profile.layout.devices_per_node
    if not facts.gpus:
        reason = "nvidia-smi is not on this machine" if facts.gpus is None else "nvidia-smi lists no GPU"
        yield Check(
            "gpu",
            Verdict.FAILED,
            f"no NVIDIA GPU: {reason}; the profile needs {wanted}",
            "run it on a machine with four B200 or GB300, or try --profile cpu-small here",
        )
        return
    counted = len(facts.gpus)
    yield Check(
        "gpu",
        Verdict.PASSED if counted >= wanted else Verdict.FAILED,
        f"{counted} GPU(s) ({facts.gpus[0].name}); the profile needs {wanted} "
        f"(tensor parallel {profile.layout.tensor_parallel} x data parallel {profile.layout.data_parallel}, "
        f"over {profile.layout.nodes} node(s))",
        "" if counted >= wanted else "lower --tensor-parallel if memory allows, or use a larger machine",
    )
    yield _check_capability(profile, facts.gpus[:wanted])
    yield _check_memory(profile, facts.gpus[:wanted])


def _check_capability(profile: WorkerProfile, gpus: tuple[Gpu, ...]) -> Check:
    name = "compute capability"
    unknown = [gpu.name for gpu in gpus if gpu.compute_capability is None]
    if unknown:
        return Check(name, Verdict.FAILED, f"{unknown[0]} does not tell it", "update the NVIDIA driver")
    seen = sorted({gpu.compute_capability for gpu in gpus if gpu.compute_capability})
    text = ", ".join(f"{major}.{minor}" for major, minor in seen)
    dtype = profile.kv_cache.dtype
    if dtype is KvDtype.NVFP4 and any(major != NVFP4_CAPABILITY for major, _ in seen):
        reason = "its MSA kernels with the CUTLASS decode backend exist for 10.x only, and there is no Triton fallback"
        if any(capability >= (12, 0) for capability in seen):
            reason += "; 12.x (GB10 is 12.1) also lacks DeepGEMM"
        return Check(
            name,
            Verdict.FAILED,
            f"{text}, but an NVFP4 KV cache for M3 needs 10.x: {reason}",
            "use B200 or GB300; or accept an fp8 cache knowingly: --kv-cache-dtype fp8",
        )
    if dtype is KvDtype.FP8 and any(capability < (8, 9) for capability in seen):
        return Check(name, Verdict.FAILED, f"{text} has no fp8", "use --kv-cache-dtype bfloat16")
    return Check(name, Verdict.PASSED, f"{text} carries a KV cache of {dtype}")


def _check_memory(profile: WorkerProfile, gpus: tuple[Gpu, ...]) -> Check:
    name = "gpu memory"
    if profile.footprint is None:
        return Check(name, Verdict.WARNING, "the profile does not say what the model weighs", "watch vLLM's start")
    sizes = [gpu.memory_bytes for gpu in gpus if gpu.memory_bytes is not None]
    if len(sizes) < len(gpus):
        return Check(name, Verdict.FAILED, "a GPU does not tell its memory", "update the NVIDIA driver")
    verdict = judge_device_memory(profile, profile.footprint, min(sizes))
    if verdict.fits:
        return Check(name, Verdict.PASSED, verdict.arithmetic)
    cure = (
        f"lower --context-tokens to {verdict.kv_tokens} or less, or raise --tensor-parallel"
        if verdict.kv_tokens
        else "the weights alone do not fit: raise --tensor-parallel"
    )
    return Check(name, Verdict.FAILED, verdict.arithmetic, cure)


def _check_driver(facts: MachineFacts) -> Iterator[Check]:
    if not facts.gpus:
        return
    if facts.driver_cuda is None:
        yield Check("driver", Verdict.FAILED, "nvidia-smi does not tell the driver's CUDA version", "update the driver")
        return
    torch_cuda = facts.engine.torch_cuda if facts.engine else None
    if torch_cuda is None:
        return
    told = (
        f"driver {facts.driver_version} carries CUDA {facts.driver_cuda}; the engine's torch was built for {torch_cuda}"
    )
    if _as_version(facts.driver_cuda) >= _as_version(torch_cuda):
        yield Check("driver", Verdict.PASSED, told)
    else:
        yield Check("driver", Verdict.FAILED, told, "update the driver, or install a torch built for an older CUDA")


def _check_engine(profile: WorkerProfile, facts: MachineFacts) -> Iterator[Check]:
    engine = facts.engine
    if engine is None or engine.vllm_version is None:
        problem = facts.engine_problem or (
            f"vLLM is not installed for {engine.python}" if engine else "no Python for it"
        )
        yield Check(
            "vllm", Verdict.FAILED, problem, "pip install 'sluice[engine]', or name its Python: --engine-python"
        )
        return
    yield Check("vllm", Verdict.PASSED, f"vLLM {engine.vllm_version} in {engine.python}")
    if engine.torch_cuda is None:
        yield Check(
            "torch", Verdict.FAILED, f"torch {engine.torch_version} is a CPU build", "install vLLM's CUDA build"
        )
    if not profile.is_m3:
        return
    yield _look_for(engine, "m3 architecture", M3_MODULE, "install vLLM 0.33 or later")
    if profile.kv_cache.dtype is KvDtype.NVFP4:
        cure = "install a vLLM build for SM100, or --kv-cache-dtype fp8"
        yield _look_for(engine, "msa kernels", MSA_KERNELS_MODULE, cure)


def _check_speculation(profile: WorkerProfile, facts: MachineFacts) -> Iterator[Check]:
    if not isinstance(profile.speculation, DsparkSpeculation):
        return
    if facts.engine is not None and facts.engine.vllm_version is not None:
        cure = "install a vLLM that has it (0.33.0 has not), or run without: --speculation none"
        yield _look_for(facts.engine, "dspark draft", M3_DSPARK_MODULE, cure)
    if profile.kv_cache.dtype is KvDtype.NVFP4:
        yield Check(
            "dspark with nvfp4",
            Verdict.WARNING,
            "open reports against an NVFP4 KV cache together with DSpark (vllm issue 52447)",
            "compare outputs with --speculation none before selling it",
        )
    if not profile.speculation.schedule:
        yield Check(
            "dspark schedule",
            Verdict.WARNING,
            "guessing ahead at every batch size can halve throughput when saturated (vllm issue 49369)",
            "give a --schedule that ends in 0 for large batches",
        )


def _look_for(engine: EngineFacts, name: str, module: str, cure: str) -> Check:
    if module in engine.modules:
        return Check(name, Verdict.PASSED, f"{module} is installed")
    return Check(name, Verdict.FAILED, f"{module} is not in the installed vLLM {engine.vllm_version}", cure)


def _check_cpu(profile: WorkerProfile, facts: MachineFacts) -> Iterator[Check]:
    supported = facts.system == "Linux" and facts.machine == "x86_64"
    yield Check(
        "platform",
        Verdict.PASSED if supported else Verdict.FAILED,
        f"{facts.system} on {facts.machine}; the CPU engine's lock is for Linux on x86_64",
        "" if supported else "use --profile m3.1-flash on a GPU machine, or the emulated worker",
    )
    if facts.engine is None or facts.engine.vllm_version is None:
        yield Check(
            "cpu engine",
            Verdict.WARNING,
            facts.engine_problem or "it is not built yet (3.3 GB in the cache folder, two to four minutes)",
            "sluice worker run --profile cpu-small builds it",
        )
    else:
        yield Check("cpu engine", Verdict.PASSED, f"vLLM {facts.engine.vllm_version} in {facts.engine.python}")
    wanted = CPU_WORKER_BYTES + (profile.kv_cache.cpu_space_gib or 0) * 2**30
    if facts.memory_available_bytes is None:
        yield Check("memory", Verdict.FAILED, "the machine does not tell its free memory", "run it on Linux")
        return
    fits = facts.memory_available_bytes >= wanted
    yield Check(
        "memory",
        Verdict.PASSED if fits else Verdict.FAILED,
        f"{CPU_WORKER_BYTES / 1e9:.1f} GB for the engine + {profile.kv_cache.cpu_space_gib} GiB KV cache = "
        f"{wanted / 1e9:.1f} GB; {facts.memory_available_bytes / 1e9:.1f} GB available",
        "" if fits else "stop something, or use the emulated worker",
    )


def _as_version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())
