"""Builds large things once per machine: a directory appears whole under its final name, or not at all.

The name carries a hash of the recipe, so a changed recipe is another directory and a second clone of the project finds
the first one's work. A builder holds a file lock; whoever comes meanwhile waits for it instead of building beside it.
The build happens in a scratch directory on the same file system and is renamed at the end; what a killed builder left
is removed by the next one, which is safe because it holds the lock.
"""

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Say = Callable[[str], None]


def default_cache_dir() -> Path:
    """Return ``$XDG_CACHE_HOME/sluice`` or ``~/.cache/sluice``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sluice"


def compute_key(*parts: str) -> str:
    """Return a short name for a recipe: the same for the same parts, in order."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:".encode() + part.encode())
    return digest.hexdigest()[:12]


def build_once(target: Path, build: Callable[[Path], None], say: Say) -> Path:
    """Return ``target``, letting ``build`` fill a scratch directory for it first if it does not exist."""
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _hold_lock(target.with_name(target.name + ".lock"), say):
        if target.is_dir():
            return target
        for leftover in target.parent.glob(f".{target.name}.*"):
            shutil.rmtree(leftover, ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            build(scratch)
            scratch.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return target


@contextmanager
def _hold_lock(path: Path, say: Say) -> Iterator[None]:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is building {path.stem}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
