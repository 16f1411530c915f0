"""Gateways and emulated workers as real processes, for tests of what happens to processes."""

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx
import yaml

MODEL = "MiniMax-M3.1-Flash"
KEY = "sk-sluice-GoodGoodGoodGoodGoodGoodGoodGood"
SUSPENDED_KEY = "sk-sluice-SuspSuspSuspSuspSuspSuspSuspSusp"
TOKEN = "admin-token-of-a-test"
PORTS = range(26000, 27000)
_taken: set[int] = set()


def find_ports(count: int) -> list[int]:
    """Ports of the tests' range on which nothing listens, none given twice by this process."""
    found: list[int] = []
    offset = os.getpid() * 13 % len(PORTS)
    for port in (*PORTS[offset:], *PORTS[:offset]):
        if port in _taken:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _taken.add(port)
        found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError("no free port is left in the tests' range")


def hash_of(key: str) -> dict[str, str]:
    """What a configuration keeps of ``key``."""
    return {"hash": f"sha256:{hashlib.sha256(key.encode()).hexdigest()}", "prefix": key[:14]}


def build_settings(worker_ports: list[int], port: int, admin_port: int, **more: Any) -> dict[str, Any]:
    """A small configuration; ``more`` replaces whole parts."""
    return {
        "model": MODEL,
        "pool": {"discovery": "static", "workers": [f"http://127.0.0.1:{one}" for one in worker_ports]},
        "tiers": {"flex": {"rank": 0, "best_effort": True}},
        "tenants": [
            {"id": "acme", "tier": "flex", "keys": [hash_of(KEY)]},
            {"id": "late", "tier": "flex", "suspended": True, "keys": [hash_of(SUSPENDED_KEY)]},
        ],
        "listen": {"port": port, "admin_port": admin_port},
        "limits": {"requests_per_worker": 64, "drain_delay_s": 0.0, "grace_s": 10.0},
        "ledger": None,
        **more,
    }


class Listening(Protocol):
    """Any worker process."""

    port: int


@dataclass
class Process:
    """A process under test; ``log`` has its output."""

    process: "subprocess.Popen[bytes]"
    log: Path
    port: int
    admin_port: int = 0
    config: Path | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    def admin(self, method: str, path: str, token: str | None = TOKEN) -> httpx.Response:
        """One call to the admin port."""
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        return httpx.request(method, self.admin_url + path, headers=headers, trust_env=False, timeout=10)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def text(self) -> str:
        return self.log.read_text()


def request_body(max_tokens: int, stream: bool = True) -> dict[str, Any]:
    """A chat request that yields exactly ``max_tokens``."""
    return {
        "model": MODEL,
        "stream": stream,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": "hello"}],
    }


def read_stream(text: str) -> list[Any]:
    """The data of each event but ``[DONE]``."""
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@contextlib.contextmanager
def run_process(argv: list[str], log: Path, port: int, environment: dict[str, str] | None = None) -> Iterator[Process]:
    """Run ``argv`` until the block ends; whatever of its group is left then is killed."""
    with log.open("wb") as output:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
    try:
        yield Process(child, log, port)
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(15)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


@contextlib.contextmanager
def run_worker(folder: Path, profile: str = "m3.1-flash", *options: str) -> Iterator[Process]:
    """One emulated worker."""
    (port,) = find_ports(1)
    argv = [sys.executable, "-m", "service.emulator", "--port", str(port), "--profile", profile, *options]
    with run_process(argv, folder / f"worker-{port}.log", port) as worker:
        await_success(f"{worker.url}/health", worker)
        yield worker


@contextlib.contextmanager
def run_gateway(
    folder: Path,
    workers: Sequence[Listening],
    environment: dict[str, str] | None = None,
    ready: bool = True,
    ready_on_admin: bool = False,
    **more: Any,
) -> Iterator[Process]:
    """One gateway in front of ``workers``, ready unless that is not to be waited for; ``listen`` in ``more`` names
    both ports."""
    listen = more.get("listen")
    port, admin_port = find_ports(2) if listen is None else (listen["port"], listen["admin_port"])
    config = folder / f"sluice-{port}.yaml"
    config.write_text(yaml.safe_dump(build_settings([one.port for one in workers], port, admin_port, **more)))
    argv = [sys.executable, "-m", "service", "serve", "-c", str(config)]
    secrets = {"SLUICE_ADMIN_TOKEN": TOKEN, **(environment or {})}
    with run_process(argv, folder / f"gateway-{port}.log", port, secrets) as gateway:
        gateway.admin_port, gateway.config = admin_port, config
        await_success(f"{gateway.admin_url}/healthz", gateway)
        if ready:
            await_success(f"{gateway.admin_url if ready_on_admin else gateway.url}/readyz", gateway)
        yield gateway


def await_success(url: str, process: Process, patience_s: float = 60.0) -> None:
    """Wait until ``url`` answers 2xx."""
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        assert process.process.poll() is None, process.text()
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url, trust_env=False, timeout=2).is_success:
                return
        time.sleep(0.05)
    raise AssertionError(f"{url} did not answer: {process.text()}")


def list_group(pid: int) -> list[int]:
    """Living processes of the group that ``pid`` leads."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[2]) == pid and fields[0] != "Z":
                found.append(int(stat.parent.name))
    return found


def list_children(pid: int) -> list[int]:
    """Children of ``pid``, living."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(stat.parent.name))
    return found


def is_alive(pid: int) -> bool:
    """Whether ``pid`` runs; a zombie does not, nor one that is just being taken away."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False
