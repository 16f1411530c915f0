"""What ``sluice up --autoscale`` runs beside the gateway: a Prometheus, the scaler, and a fleet that follows it."""

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from service.cli.demo import HOST
from service.launch.family import Child
from service.launch.fault import EngineUnavailableError
from service.launch.fleet import Fleet
from service.scaler.scaled_object import build_query
from service.settings.admin_token import find_token

POOL = "local"
SCRAPES_PER_STEP = 3.0
_LOOK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Elasticity:
    """How the fleet may move. All times of the scaler are in proportion to ``step_s`` (30 in production)."""

    least: int
    most: int
    cold_start_s: float
    step_s: float
    prometheus_port: int
    scaler_port: int


def find_prometheus() -> str:
    """The program.

    Raises:
        EngineUnavailableError: it is not installed.
    """
    found = shutil.which("prometheus")
    if found is None:
        raise EngineUnavailableError("--autoscale needs Prometheus: apt-get install prometheus, or put it on the PATH")
    return found


def write_prometheus_config(folder: Path, how: Elasticity, admin_port: int) -> Path:
    """What is scraped: the gateway and the scaler."""
    scrape: Mapping[str, Any] = {
        "global": {"scrape_interval": f"{round(how.step_s / SCRAPES_PER_STEP * 1000)}ms"},
        "scrape_configs": [
            {"job_name": "sluice", "static_configs": [{"targets": [f"{HOST}:{admin_port}"]}]},
            {"job_name": "sluice-scaler", "static_configs": [{"targets": [f"{HOST}:{how.scaler_port}"]}]},
        ],
    }
    path = folder / "prometheus.yaml"
    path.write_text(yaml.safe_dump(scrape, sort_keys=False))
    return path


class GatewayRoll:
    """The gateway of this family: its configuration names the workers, and its admin port is told to read it again."""

    def __init__(self, admin_port: int, write: Callable[[Sequence[int]], None]) -> None:
        self._url = f"http://{HOST}:{admin_port}/admin/v1"
        self._admin_port = admin_port
        self._write = write

    def relist(self, ports: Sequence[int]) -> bool:
        """See :class:`service.launch.fleet.Roll`."""
        self._write(ports)
        answer = self._call("POST", "/config/reload")
        return answer is not None and answer.is_success

    def let_go(self) -> int | None:
        """See there."""
        answer = self._call("POST", "/workers/leave")
        return None if answer is None or answer.is_error else _read_port(answer.json()["worker"])

    def count_in_flight(self, port: int) -> int | None:
        """See there; a worker that is not listed has nothing."""
        answer = self._call("GET", "/workers")
        if answer is None or answer.is_error:
            return None
        there = [one for one in answer.json()["workers"] if _read_port(one["id"]) == port]
        return sum(int(one["in_flight_requests"]) for one in there)

    def _call(self, method: str, path: str) -> httpx.Response | None:
        token = find_token(self._admin_port, os.environ)
        try:
            headers = {"authorization": f"Bearer {token}"}
            return httpx.request(method, f"{self._url}{path}", headers=headers, timeout=5.0, trust_env=False)
        except httpx.HTTPError:
            return None


def _read_port(worker_id: str) -> int:
    """A worker is called by its address, and ``~2`` behind it for the second at the same place."""
    return int(worker_id.split("~")[0].rsplit(":", 1)[1])


class Elastic:
    """Starts what decides, asks it as KEDA would, and moves the fleet."""

    def __init__(self, how: Elasticity, fleet: Fleet, now: Callable[[], float]) -> None:
        self.fleet = fleet
        self._how, self._now = how, now
        self._looked_at = now()

    def start(
        self, folder: Path, config: Path, admin_port: int, child: Callable[[str, str, tuple[str, ...]], Child]
    ) -> list[Child]:
        """Prometheus and the scaler."""
        how = self._how
        url = f"http://{HOST}:{how.prometheus_port}"
        file = write_prometheus_config(folder, how, admin_port)
        prometheus = (
            find_prometheus(), f"--config.file={file}", f"--storage.tsdb.path={folder / 'prometheus'}",
            f"--web.listen-address={HOST}:{how.prometheus_port}", "--log.level=warn",
        )  # fmt: skip
        scaler = (
            sys.executable, "-m", "service", "scaler", "-c", str(config), "--prometheus", url, "--pool", POOL,
            "--selector", 'job="sluice"', "--least", str(how.least), "--most", str(how.most),
            "--cold-start-s", str(how.cold_start_s), "--step-s", str(how.step_s), "--port", str(how.scaler_port),
        )  # fmt: skip
        return [child("prometheus", "prometheus.log", prometheus), child("scaler", "scaler.log", scaler)]

    def step(self) -> None:
        """Look at the fleet, and move it towards what is desired; an answer that is not there changes nothing."""
        if self._now() - self._looked_at < _LOOK_EVERY_S:
            return
        self._looked_at = self._now()
        self.fleet.look()
        desired = self.ask_desired()
        if desired is not None:
            self.fleet.move(min(max(desired, self._how.least), self._how.most))

    def ask_desired(self) -> int | None:
        """What KEDA's trigger would read."""
        url = f"http://{HOST}:{self._how.prometheus_port}/api/v1/query"
        with suppress(httpx.HTTPError, ValueError, KeyError, IndexError):
            answer = httpx.get(url, params={"query": build_query(POOL)}, timeout=2.0, trust_env=False)
            return round(float(answer.json()["data"]["result"][0]["value"][1]))
        return None
