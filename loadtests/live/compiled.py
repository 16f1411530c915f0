"""Builds the compiled form of this tree: the wheel of ``make build``, unpacked where Python can run it.

    python -m loadtests.live.compiled dist

builds the wheel into a folder. Unpacked, it is kept once per state of the sources under the user's cache folder. A C
compiler and Python's headers are needed.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path

from loadtests.live.peer_install import InstallError
from service.launch.cache import build_once, compute_key, default_cache_dir

REPOSITORY = Path(__file__).resolve().parents[2]
PARTS = ("service", "pyproject.toml", "README.md", "LICENSE")
"""What a wheel is built from."""

BUILD_LIMIT_S = 600.0
HOOK = "HATCH_BUILD_HOOK_ENABLE_MYPYC"
"""The variable of the environment that turns compiling on."""


def build_compiled_tree() -> Path:
    """The folder that holds the compiled ``service``: to be the first on Python's path. About a minute the first time.

    Raises:
        InstallError: It cannot be built; the text has the compiler's last words.
    """
    sources = [path for part in PARTS for path in sorted((REPOSITORY / part).rglob("*")) or [REPOSITORY / part]]
    texts = [path.read_text() for path in sources if path.suffix in (".py", ".toml")]
    key = compute_key(sys.version, platform.machine(), version("mypy"), *texts)
    return build_once(default_cache_dir() / f"compiled-{key}", _build, lambda said: None)


def build_wheel(into: Path) -> Path:
    """Build the wheel with its core compiled; its path in ``into``.

    Raises:
        InstallError: It cannot be built; the text has the compiler's last words.
    """
    with tempfile.TemporaryDirectory(prefix="sluice-build-") as copy:  # the build puts its products beside the sources
        for part in PARTS:
            source, target = REPOSITORY / part, Path(copy) / part
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
            else:
                shutil.copy2(source, target)
        argv = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-build-isolation"]
        argv += ["--no-deps", "--no-index", "--wheel-dir", str(into), copy]
        environment = {**os.environ, HOOK: "true"}
        try:
            done = subprocess.run(  # noqa: S603 - our own build
                argv, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False, env=environment
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InstallError(f"the compiled form: {error}") from error
    if done.returncode != 0:
        raise InstallError(f"the compiled form: {(done.stdout + done.stderr)[-800:].strip()}")
    return max(into.glob("*.whl"), key=lambda wheel: wheel.stat().st_mtime)


def _build(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as wheels, zipfile.ZipFile(build_wheel(Path(wheels))) as archive:
        archive.extractall(folder)


if __name__ == "__main__":
    try:
        print(build_wheel(Path(sys.argv[1])))
    except InstallError as error:
        sys.exit(str(error))
