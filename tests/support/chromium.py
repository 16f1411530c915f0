"""A headless Chromium, for tests of what a person would see."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def find_chromium() -> str:
    """Its program; skips where none is installed, fails there if CI says that nothing may be missing."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is not None:
        return found
    words = "Chromium is not installed (on Debian: apt-get install chromium)"
    if os.environ.get("CI") == "true":
        pytest.fail(words)
    pytest.skip(words)


def _run(folder: Path, page: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [
        find_chromium(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        f"--user-data-dir={folder / 'profile'}", "--hide-scrollbars", "--host-resolver-rules=MAP * ~NOTFOUND", *options,
        page.resolve().as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=True)


def read_page(folder: Path, page: Path) -> str:
    """The page as Chromium has it after it was shown."""
    return _run(folder, page, "--dump-dom").stdout


def take_picture(folder: Path, page: Path, picture: Path, width: int = 1000, height: int = 1500) -> None:
    """What it looks like, as PNG."""
    _run(folder, page, f"--screenshot={picture}", f"--window-size={width},{height}")
