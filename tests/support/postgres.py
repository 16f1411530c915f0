"""A PostgreSQL server of a test's own, on a Unix socket, which can be stopped and started."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

_DEBIAN = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)


def find_programs() -> Path | None:
    """The folder of ``initdb`` and ``pg_ctl``, if PostgreSQL is installed."""
    for folder in _DEBIAN:
        if (folder / "initdb").exists():
            return folder
    found = shutil.which("initdb")
    return None if found is None else Path(found).parent


class Postgres:
    """One cluster in ``folder``, reached by ``url``."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self._programs = programs
        self._data = folder / "data"
        self._socket = folder / "run"
        self._log = folder / "postgres.log"
        self._socket.mkdir(parents=True)
        if os.geteuid() == 0:  # the server refuses to run as root
            subprocess.run(["chown", "-R", "postgres", str(folder)], check=True)
        self._run("initdb", "-D", str(self._data), "-A", "trust", "-U", "sluice", "--no-sync")

    @property
    def url(self) -> str:
        return f"postgresql://sluice@/postgres?host={self._socket}"

    def start(self) -> None:
        options = f"-c listen_addresses='' -c unix_socket_directories={self._socket}"
        self._run("pg_ctl", "-D", str(self._data), "-l", str(self._log), "-w", "-o", options, "start")

    def stop(self) -> None:
        """At once, as a machine that fails does; it recovers when it is started."""
        self._run("pg_ctl", "-D", str(self._data), "-m", "immediate", "-w", "stop")

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        if os.geteuid() == 0:
            command = ["runuser", "-u", "postgres", "--", *command]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False, cwd="/")
        assert done.returncode == 0, done.stderr.decode()


@contextlib.contextmanager
def run_postgres(folder: Path) -> Iterator[Postgres]:
    """A running server; skips where none is installed, fails there if CI says that nothing may be missing."""
    programs = find_programs()
    if programs is None:
        words = "PostgreSQL is not installed (on Debian: apt-get install postgresql)"
        if os.environ.get("CI") == "true":
            pytest.fail(words)
        pytest.skip(words)
    folder.mkdir(parents=True, exist_ok=True)
    for parent in (folder, *folder.parents):  # its user must reach it
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    server = Postgres(folder, programs)
    server.start()
    try:
        yield server
    finally:
        with contextlib.suppress(AssertionError):  # stopped already
            server.stop()
