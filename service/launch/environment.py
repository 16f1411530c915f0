"""Builds a virtual environment from a lock file that lists everything: nothing is resolved on the way.

Used for what does not belong into Sluice's own environment: the CPU engine here, load tools in ``loadtests``.
"""

import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from service.launch.build_step import BuildStep, run_step
from service.launch.cache import Say

INSTALL_LIMIT_S = 1800.0


@dataclass(frozen=True, slots=True)
class EnvironmentRecipe:
    """What an environment is called, what is in it, and how long installing that is expected to take."""

    title: str
    lock: Path
    expected_s: float


def build_environment(
    recipe: EnvironmentRecipe, scratch: Path, target: Path, *, say: Say, clock: Callable[[], float]
) -> None:
    """Fill ``scratch``, which is to be renamed to ``target``; pip's output goes to a log beside it."""
    log = target.with_suffix(".log")
    pip_install = (str(scratch / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps", "--requirement")
    steps = (
        BuildStep(f"{recipe.title} environment", (str(_base_python()), "-m", "venv", str(scratch)), 5, 120),
        BuildStep(f"{recipe.title} packages", (*pip_install, str(recipe.lock)), recipe.expected_s, INSTALL_LIMIT_S),
    )
    for step in steps:
        run_step(step, log=log, say=say, clock=clock)
    _point_scripts(scratch, target)


def python_series() -> str:
    """Return the running Python's version as far as wheels care: 3.11."""
    return ".".join(platform.python_version_tuple()[:2])


def _point_scripts(scratch: Path, target: Path) -> None:
    """Let console scripts name the interpreter's final place; the environment is about to be renamed."""
    old, new = f"#!{scratch}/".encode(), f"#!{target}/".encode()
    for script in (scratch / "bin").iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        content = script.read_bytes()
        if content.startswith(old):
            script.write_bytes(new + content[len(old) :])


def _base_python() -> Path:
    """Return the interpreter this one's virtual environment came from: an environment of an environment is fragile."""
    base = Path(sys.base_prefix) / "bin" / f"python{python_series()}"
    return base if base.exists() else Path(sys.executable)
