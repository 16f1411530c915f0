"""What a machine is, as frozen values: the ground ``preflight`` judges on and ``probe`` gathers.

Missing is ``None``, never zero: a machine that does not tell its driver version is not a machine with driver 0.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device as nvidia-smi describes it."""

    name: str
    compute_capability: tuple[int, int] | None
    memory_bytes: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """The vLLM that would be started."""

    python: str
    vllm_version: str | None = None
    torch_version: str | None = None
    torch_cuda: str | None = None
    modules: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """One machine at one moment."""

    gpus: tuple[Gpu, ...] | None = None
    driver_version: str | None = None
    driver_cuda: str | None = None
    engine: EngineFacts | None = None
    engine_problem: str | None = None
    memory_available_bytes: float | None = None
    machine: str = ""
    system: str = ""
