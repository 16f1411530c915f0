"""A redis-server of a test's own."""

import contextlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.service_process import find_ports


class RedisProcess:
    """One server, in memory only. ``kill``, ``start`` again, ``pause`` and ``resume`` it; ``say`` runs redis-cli."""

    def __init__(self, folder: Path, password: str | None = None):
        (self.port,) = find_ports(1)
        self._folder = folder
        self._password = password
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self, *options: str) -> None:
        argv = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        argv += ["--dir", str(self._folder), "--daemonize", "no", *options]
        if self._password is not None:
            argv += ["--requirepass", self._password]
        log = (self._folder / f"redis-{self.port}.log").open("ab")
        self._child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        log.close()
        until = time.monotonic() + 10
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 0.2):
                return
            time.sleep(0.01)
        raise AssertionError((self._folder / f"redis-{self.port}.log").read_text())

    def kill(self) -> None:
        """As kill -9."""
        if self._child is not None:
            self._child.send_signal(signal.SIGCONT)
            self._child.kill()
            self._child.wait()
            self._child = None

    def pause(self) -> None:
        """As SIGSTOP: connections stay, nothing answers."""
        self._child.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._child.send_signal(signal.SIGCONT)

    def say(self, *words: str) -> str:
        argv = ["redis-cli", "-p", str(self.port)]
        argv += [] if self._password is None else ["-a", self._password, "--no-auth-warning"]
        return subprocess.run([*argv, *words], capture_output=True, text=True, check=True, timeout=10).stdout.strip()


@contextlib.contextmanager
def run_redis(folder: Path, password: str | None = None) -> Iterator[RedisProcess]:
    """A server until the block ends."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed: apt-get install redis-server")
    server = RedisProcess(folder, password)
    server.start()
    try:
        yield server
    finally:
        server.kill()
