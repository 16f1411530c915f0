"""Puts peers on this machine: Python packages in an environment of their own, Debian packages where allowed.

An environment is built once under the user's cache folder, keyed by name and version, beside its final place, and
renamed when complete: a build that was cut off leaves nothing that looks finished, and two builders cannot mix.
Where packages come from is the machine's own pip and apt configuration.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

INSTALL_LIMIT_S = 600.0


class InstallError(Exception):
    """A peer cannot be had on this machine; the text says what to do about it."""


def build_cache_root(environment: dict[str, str]) -> Path:
    """Where peers live: the user's cache folder, as the XDG base directory specification has it."""
    base = environment.get("XDG_CACHE_HOME") or str(Path(environment.get("HOME", "~")).expanduser() / ".cache")
    return Path(base) / "sluice" / "peers"


def install_python_peer(name: str, version: str) -> Path:
    """The ``bin`` folder of the peer's environment, built if it is missing."""
    root = build_cache_root(dict(os.environ))
    home = root / f"{name}-{version}"
    if (home / "complete").exists():
        return home / "bin"
    root.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{name}-{version}-", dir=root))
    try:
        _run([sys.executable, "-m", "venv", str(building)])
        # Console scripts carry the path of their interpreter: written for the final place from the start.
        _run([str(building / "bin" / "python"), "-m", "pip", "install", "--quiet", f"{name}=={version}"])
        _repoint_scripts(building, home)
        (building / "complete").write_text(f"{name}=={version}\n")
        try:
            building.rename(home)
        except OSError:
            if not (home / "complete").exists():
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return home / "bin"


def _repoint_scripts(building: Path, home: Path) -> None:
    for script in (building / "bin").iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        content = script.read_bytes()
        if content.startswith(b"#!") and str(building).encode() in content:
            script.write_bytes(content.replace(str(building).encode(), str(home).encode()))


def install_debian_peer(program: str, package: str) -> Path:
    """The path of a program, installed with apt where it is missing and we may."""
    search = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    found = shutil.which(program, path=search)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        _run(["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", package])
        found = shutil.which(program, path=search)
    if found is None:
        raise InstallError(f"{program} is missing; as root: apt-get install {package}")
    return Path(found)


def fetch_program_version(argv: list[str]) -> str:
    """What a program says of its version, on either stream; empty if it says nothing."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout + done.stderr).strip()


def _run(argv: list[str]) -> None:
    # A peer's installer must not start a service of its own on this machine's ports.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    try:
        done = subprocess.run(  # noqa: S603 - fixed commands
            argv, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallError(f"{argv[0]}: {error}") from error
    if done.returncode != 0:
        raise InstallError(f"{' '.join(argv)}: {(done.stdout + done.stderr)[-800:].strip()}")
