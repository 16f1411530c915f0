"""A real Prometheus and a real Alertmanager with the shipped configuration in quick motion, and whom they call."""

import json
import shutil
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from loadtests.live.child import ChildError, choose_free_ports, run_child, wait_until_answering

ROOT = Path(__file__).parents[2]
PROGRAMS = {"prometheus": "prometheus", "prometheus-alertmanager": "prometheus-alertmanager"}
"""Programs and the Debian packages they are in."""

_START_LIMIT_S = 30.0


@dataclass(frozen=True)
class Call:
    """One notification of Alertmanager's: ``at`` is monotonic seconds, ``receiver`` who was called."""

    at: float
    receiver: str
    alert: str
    status: str
    severity: str
    tier: str
    slo: str


@dataclass
class Webhook:
    """Takes notifications; ``calls`` in the order they came."""

    calls: list[Call] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, body: Mapping[str, Any]) -> None:
        """One notification: a group of alerts."""
        now = time.monotonic()
        with self._lock:
            for alert in body["alerts"]:
                labels = alert["labels"]
                self.calls.append(
                    Call(
                        now, body["receiver"], labels["alertname"], alert["status"], labels.get("severity", ""),
                        labels.get("tier", ""), labels.get("slo", ""),
                    )
                )  # fmt: skip

    def find(self, alert: str, status: str, since: float, **labels: str) -> Call | None:
        """The first call of this kind since a moment."""
        with self._lock:
            for call in self.calls:
                fits = all(getattr(call, name) == value for name, value in labels.items())
                if fits and (call.alert, call.status) == (alert, status) and call.at >= since:
                    return call
        return None


@dataclass(frozen=True)
class AlarmChain:
    """What runs, and how to ask it."""

    webhook: Webhook
    prometheus: str

    def query(self, expression: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Values by labels of an instant query."""
        url = f"{self.prometheus}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        with urllib.request.urlopen(url, timeout=10) as response:  # noqa: S310 - http on loopback
            found = json.load(response)
        return {tuple(sorted(one["metric"].items())): float(one["value"][1]) for one in found["data"]["result"]}


def find_missing_programs() -> list[str]:
    """Debian packages of the programs that are not there."""
    return [package for program, package in PROGRAMS.items() if shutil.which(program) is None]


@contextmanager
def run_alarm_chain(
    folder: Path, targets: Sequence[str], rules: Mapping[str, str], first_port: int
) -> Iterator[AlarmChain]:
    """Prometheus scrapes ``targets`` (host:port) every second and evaluates ``rules`` (texts by path); Alertmanager
    tells a webhook at once. Both end with the context.

    Raises:
        ChildError: one of them is not there or does not start.
    """
    missing = find_missing_programs()
    if missing:
        raise ChildError(f"not installed: {', '.join(missing)} (on Debian: apt-get install {' '.join(missing)})")
    prometheus_port, alertmanager_port = choose_free_ports(first_port, 2)
    for name, text in rules.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with _run_webhook() as (webhook, webhook_port):
        _write(folder / "alertmanager.yml", _shorten_alertmanager(webhook_port))
        _write(folder / "prometheus.yml", _shorten_prometheus(targets, alertmanager_port))
        alertmanager = [
            "prometheus-alertmanager", f"--config.file={folder / 'alertmanager.yml'}",
            f"--storage.path={folder / 'alertmanager'}", f"--web.listen-address=127.0.0.1:{alertmanager_port}",
            "--cluster.listen-address=", "--log.level=warn",
        ]  # fmt: skip
        prometheus = [
            "prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{prometheus_port}", "--log.level=warn",
        ]  # fmt: skip
        logs = (folder / "alertmanager.log", folder / "prometheus.log")
        with run_child(alertmanager, logs[0]) as told, run_child(prometheus, logs[1]) as judging:
            for process, port, log in ((told, alertmanager_port, logs[0]), (judging, prometheus_port, logs[1])):
                wait_until_answering(process, f"http://127.0.0.1:{port}/-/ready", log, _START_LIMIT_S, "")
            yield AlarmChain(webhook, f"http://127.0.0.1:{prometheus_port}")


def _write(path: Path, tree: Mapping[str, Any]) -> None:
    path.write_text(yaml.safe_dump(tree, sort_keys=False))


def _shorten_alertmanager(port: int) -> dict[str, Any]:
    """The shipped configuration, with one webhook for all and no waiting."""
    tree: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "alertmanager" / "alertmanager.yml").read_text())
    tree["route"].update(group_wait="0s", group_interval="1s")
    for receiver in tree["receivers"]:
        for hook in receiver.get("webhook_configs", ()):
            hook["url"] = f"http://127.0.0.1:{port}/"
    return tree


def _shorten_prometheus(targets: Sequence[str], alertmanager_port: int) -> dict[str, Any]:
    """The shipped configuration, every second and with other addresses; no prober."""
    tree: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    tree["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    tree["rule_files"] = ["rules/*.yaml"]
    jobs = [job for job in tree["scrape_configs"] if job["job_name"] == "sluice-gateway"]
    jobs[0]["static_configs"] = [{"targets": list(targets)}]
    tree["scrape_configs"] = jobs
    tree["alerting"]["alertmanagers"] = [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager_port}"]}]}]
    return tree


@contextmanager
def _run_webhook() -> Iterator[tuple[Webhook, int]]:
    webhook = Webhook()

    class Answering(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            webhook.take(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield webhook, server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
