"""A gateway with a ledger in front of emulated workers; all of them can be killed and started again."""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from loadtests.live.child import choose_free_ports, run_child, stop_group, wait_until_answering
from loadtests.live.record_client import CALLERS, MODEL, SUSPENDED_KEY, TTFT_S

TOKEN = "admin-token-of-the-rig"  # noqa: S105 - of a gateway that lives for one check
_START_LIMIT_S = 60.0
_TIERS: dict[str, dict[str, Any]] = {
    "priority": {
        "rank": 0, "availability": 0.999, "attainment": 0.99, "ttft": {4096: TTFT_S, 131072: 20.0}, "tpot_s": 0.5,
    },
    "default": {"rank": 1, "availability": 0.995, "attainment": 0.99, "ttft": {4096: 10.0}, "tpot_s": 0.000001},
    "flex": {"rank": 2, "best_effort": True, "queue_ttl_s": 30.0},
}  # fmt: skip
"""Made so that some requests are late (priority) and all are too slow (default)."""


class Rig:
    """``workers`` emulated workers and one gateway, all in ``folder``. Use it as a context."""

    def __init__(self, folder: Path, first_port: int, workers: int = 2, ledger: str | None = None) -> None:
        self.folder = folder
        self.url = ledger or f"sqlite:///{folder}/ledger.db"
        self.port, self._admin_port, *self.worker_ports = choose_free_ports(first_port, 2 + workers)
        self._workers: list[tuple[contextlib.ExitStack, subprocess.Popen[bytes]]] = []
        self._gateway: contextlib.ExitStack | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self._starts = 0

    def __enter__(self) -> "Rig":
        self._config = self._write_config()
        for index in range(len(self.worker_ports)):
            self._workers.append(self._start_worker(index))
        return self

    def __exit__(self, *_: object) -> None:
        if self._gateway is not None:
            self._gateway.close()
        for stack, _process in self._workers:
            stack.close()

    def _write_config(self) -> Path:
        tiers = {"acme": "priority", "umbra": "default", "flexi": "flex"}
        tenants: list[dict[str, Any]] = [
            {"id": caller.tenant, "tier": tiers[caller.tenant], "keys": [_describe_key(caller.key)]}
            for caller in CALLERS
        ]
        tenants.append({"id": "gone", "tier": "default", "suspended": True, "keys": [_describe_key(SUSPENDED_KEY)]})
        settings = {
            "model": MODEL,
            "pool": {
                "discovery": "static",
                "workers": [f"http://127.0.0.1:{port}" for port in self.worker_ports],
            },
            "tiers": _TIERS,
            "tenants": tenants,
            "listen": {"port": self.port, "admin_port": self._admin_port},
            "limits": {"drain_delay_s": 2.0, "grace_s": 20.0, "body_max_bytes": 65536, "requests_per_worker": 256},
            "logs": {"requests": "none"},
            "ledger": self.url,
            "record": {"spool": str(self.folder / "spool")},
        }
        path = self.folder / "sluice.yaml"
        path.write_text(yaml.safe_dump(settings, sort_keys=False))
        return path

    # ---------------------------------------------------------------- workers

    def _start_worker(self, index: int) -> tuple[contextlib.ExitStack, subprocess.Popen[bytes]]:
        port = self.worker_ports[index]
        stack = contextlib.ExitStack()
        argv = [sys.executable, "-m", "service.emulator", "--port", str(port), "--seed", str(port), "--model", MODEL]
        log = self.folder / f"worker-{index}.log"
        process = stack.enter_context(run_child(argv, log))
        wait_until_answering(process, f"http://127.0.0.1:{port}/health", log, _START_LIMIT_S, "")
        return stack, process

    def kill_worker(self, index: int) -> None:
        """It dies with everything it was doing."""
        stack, process = self._workers[index]
        process.kill()
        process.wait()
        stack.close()

    def restart_worker(self, index: int) -> None:
        """Another takes its place."""
        self._workers[index] = self._start_worker(index)

    def set_faults(self, index: int, faults: list[dict[str, object]]) -> None:
        """What the worker does wrong from now on."""
        _post(f"http://127.0.0.1:{self.worker_ports[index]}/emulator/faults", {"faults": faults})

    # ---------------------------------------------------------------- gateway

    def start_gateway(self) -> None:
        """Start it and wait until it is ready."""
        self._starts += 1
        stack = contextlib.ExitStack()
        log = self.folder / f"gateway-{self._starts}.log"
        argv = [sys.executable, "-m", "service", "serve", "-c", str(self._config)]
        self.process = stack.enter_context(run_child(argv, log, env={"SLUICE_ADMIN_TOKEN": TOKEN}))
        wait_until_answering(self.process, f"http://127.0.0.1:{self.port}/readyz", log, _START_LIMIT_S, "")
        # A tier whose budget burns by design would hold the others back, which is not what is checked here.
        _post(f"http://127.0.0.1:{self._admin_port}/admin/v1/restraint", {"on": False}, TOKEN)
        self._gateway = stack

    def kill_gateway(self) -> None:
        """It dies at once; its clerk, as a process of its own, does not."""
        assert self.process is not None  # noqa: S101 - a mistake of the check
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._gateway = None

    def ask_gateway_to_leave(self) -> None:
        """SIGTERM; it serves on for two seconds."""
        assert self.process is not None  # noqa: S101 - a mistake of the check
        self.process.send_signal(signal.SIGTERM)

    def await_end(self, limit_s: float = 60.0) -> None:
        """Wait until it has left, with its books in order."""
        assert self.process is not None  # noqa: S101 - a mistake of the check
        self.process.wait(limit_s)
        stop_group(self.process)
        self._gateway = None

    def read_metrics(self) -> str:
        """One scrape."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._admin_port}/metrics", timeout=10) as answer:
            text: str = answer.read().decode()
            return text

    def read_figure(self, name: str) -> float:
        """One gauge without labels."""
        for line in self.read_metrics().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
        raise KeyError(name)

    def read_counts(self, name: str, *labels: str) -> Counter[tuple[str, ...]]:
        """A counter's values by ``labels``, what is zero left out."""
        counts: Counter[tuple[str, ...]] = Counter()
        for line in self.read_metrics().splitlines():
            if line.startswith(name + "{"):
                inside, _, value = line[len(name) + 1 :].rpartition("} ")
                told = dict(pair.split("=", 1) for pair in inside.replace('"', "").split(","))
                counts[tuple(told[label] for label in labels)] += int(float(value))
        return +counts


def _describe_key(key: str) -> dict[str, str]:
    return {"hash": f"sha256:{hashlib.sha256(key.encode()).hexdigest()}", "prefix": key[:14]}


def _post(url: str, body: dict[str, object], token: str = "") -> None:
    request = urllib.request.Request(  # noqa: S310 - http on loopback
        url,
        json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {token}"},
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=10):  # noqa: S310 - same
        pass


@contextlib.contextmanager
def open_rig(folder: Path, first_port: int, workers: int = 2, ledger: str | None = None) -> Iterator[Rig]:
    """A rig with its gateway running."""
    with Rig(folder, first_port, workers, ledger) as rig:
        rig.start_gateway()
        yield rig
