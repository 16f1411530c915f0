"""Runs checkov over the rendered chart and the Dockerfiles, from an environment of its own in the user's cache.

checkov brings a hundred packages of its own versions, so it does not live in the project's environment.
"""

import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from service.launch.cache import build_once, compute_key, default_cache_dir
from service.launch.environment import EnvironmentRecipe, build_environment, python_series

LOCK = Path(__file__).parents[1] / "chart" / "checkov.lock"
RUN_LIMIT_S = 300


def locate() -> Path:
    """Where the environment is or would be."""
    return default_cache_dir() / f"checkov-{compute_key(LOCK.read_text(), python_series())}"


def prepare() -> Path:
    """The environment's Python, installed if need be (a minute)."""
    target = locate()
    recipe = EnvironmentRecipe("checkov", LOCK, 60)
    build_once(
        target,
        lambda scratch: build_environment(recipe, scratch, target, say=print, clock=time.monotonic),
        print,
    )
    return target / "bin" / "python"


def judge(framework: str, files: dict[str, str]) -> dict[str, Any]:
    """What checkov says of the files: ``passed_checks``, ``failed_checks``, ``skipped_checks``."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text)
        done = subprocess.run(
            (prepare(), "-m", "checkov.main", "--framework", framework, "--directory", folder, "--output", "json",
             "--skip-download", "--quiet", "--compact"),
            capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False,
        )  # fmt: skip
    try:
        told = json.loads(done.stdout)
    except json.JSONDecodeError:
        raise RuntimeError(f"checkov: {done.stderr[-1000:]}{done.stdout[-1000:]}") from None
    return told["results"] | {"summary": told["summary"]}
