"""The Node ``openai`` SDK, installed once per version into the cache folder."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

from service.launch.cache import build_once, compute_key, default_cache_dir

NODE_OPENAI = "openai@7.59.0"
INSTALL_LIMIT_S = 300


def install_node_sdk_or_skip() -> Path:
    """Return a folder whose ``node_modules`` has the SDK; without Node, fail under CI and skip elsewhere."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        _give_up("node and npm are not installed (apt-get install nodejs npm)")
    try:
        return build_once(default_cache_dir() / f"node-openai-{compute_key(NODE_OPENAI)}", _install, _say)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        _give_up(f"npm could not install {NODE_OPENAI}: {error}")


def _install(scratch: Path) -> None:
    subprocess.run(
        [
            "npm",
            "install",
            "--no-audit",
            "--no-fund",
            "--no-save",
            "--ignore-scripts",
            "--prefix",
            str(scratch),
            NODE_OPENAI,
        ],
        check=True,
        capture_output=True,
        timeout=INSTALL_LIMIT_S,
    )


def _give_up(reason: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def _say(line: str) -> None:
    os.write(2, f"{line}\n".encode())
