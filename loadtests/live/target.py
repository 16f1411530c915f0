"""The gateway under test: started here before the bench's own workers, or already running somewhere on this machine.

Three ways, by options: nothing or ``--peer NAME`` starts that gateway; ``--gateway-cmd`` starts any command with
``{port}``, ``{admin_port}``, ``{workers}`` (URLs, comma-separated) and ``{folder}`` filled in; ``--port`` with
``--pid`` takes a running one, which must have the bench's worker (``loadtests.live.backend``) behind it.
"""

import argparse
import asyncio
import math
import os
import resource
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from loadtests.live.backend import MODEL
from loadtests.live.child import choose_free_ports, run_child, wait_until_answering
from loadtests.live.client import Target
from loadtests.live.peer_configs import BENCH_KEY, Site
from loadtests.live.peers import PEERS, REPORTS, SLUICE, START_LIMIT_S, Running, run_peer, run_workers
from loadtests.live.process_cost import fetch_descriptors, fetch_family, fetch_rss_kib

SAMPLE_PERIOD_S = 0.5


def add_target_options(parser: argparse.ArgumentParser, *, workers: int) -> None:
    """The options that choose the gateway."""
    parser.add_argument("--peer", choices=sorted(PEERS), default=SLUICE, help="gateway to start")
    parser.add_argument("--gateway-cmd", help="command to start instead; {port} {admin_port} {workers} {folder}")
    parser.add_argument("--port", type=int, help="port of a gateway that runs already (with --pid)")
    parser.add_argument("--pid", type=int, help="its process")
    parser.add_argument("--key", default=os.environ.get("KEY", BENCH_KEY), help="default: environment KEY")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--workers", type=int, default=workers, help="workers behind a gateway started here")
    parser.add_argument("--first-port", type=int, default=23200, help="free ports are taken from here on")
    parser.add_argument("--reports", type=Path, default=REPORTS, help="folder of the reports")


def fill_command(template: str, site: Site) -> list[str]:
    """The command of ``--gateway-cmd`` for one site."""
    values = {
        "port": str(site.port),
        "admin_port": str(site.admin_port),
        "workers": ",".join(site.worker_urls),
        "folder": str(site.folder),
    }
    return [part.format(**values) for part in shlex.split(template)]


@contextmanager
def run_target(options: argparse.Namespace) -> Iterator[Target]:
    """The gateway of the options, ready; what was started here is gone when the context ends."""
    if (options.port is None) != (options.pid is None):
        raise ValueError("--port and --pid go together")
    if options.port is not None:
        yield Target(port=options.port, key=options.key, model=options.model, pids=(options.pid,))
        return
    port, admin_port, *worker_ports = choose_free_ports(options.first_port, 2 + options.workers)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as name:
        site = Site(port, admin_port, tuple(worker_ports), Path(name))
        with run_workers(worker_ports[0], options.workers, site.folder), _run_gateway(options, site) as running:
            yield Target(port=running.port, key=options.key, model=options.model, pids=(running.pid,))


@contextmanager
def _run_gateway(options: argparse.Namespace, site: Site) -> Iterator[Running]:
    if options.gateway_cmd is None:
        peer = PEERS[options.peer]
        with run_peer(peer, peer.install(), site) as running:
            yield running
        return
    log = site.folder / "gateway.log"
    with run_child(fill_command(options.gateway_cmd, site), log) as process:
        url = f"http://127.0.0.1:{site.port}/v1/models"
        wait_until_answering(process, url, log, START_LIMIT_S, options.key)
        yield Running(site.port, process.pid, options.key)


def raise_descriptor_limit(needed: int) -> None:
    """Lifts this process's soft limit of open files, which its children inherit; raises if the hard limit forbids."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ValueError(f"{needed} open files are needed, the hard limit is {hard}: raise it (ulimit -Hn) or ask less")
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


@dataclass
class ProcessWatch:
    """Memory and descriptors of the gateway's processes, looked at while something else happens."""

    roots: list[int]
    rss_kib: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    def look(self) -> tuple[int | None, int | None]:
        """Takes one sample: resident memory in KiB and open descriptors at present."""
        pids = fetch_family(self.roots)
        rss_kib, descriptors = fetch_rss_kib(pids), fetch_descriptors(pids)
        if rss_kib is not None:
            self.rss_kib.append(rss_kib)
        if descriptors is not None:
            self.descriptors.append(descriptors)
        return rss_kib, descriptors

    async def run(self, most_kib: float = math.inf) -> None:
        """Samples until cancelled or until the processes hold more than ``most_kib``."""
        while True:
            rss_kib, _ = self.look()
            if rss_kib is not None and rss_kib > most_kib:
                return
            await asyncio.sleep(SAMPLE_PERIOD_S)

    async def wait_for_descriptors(self, most: int, limit_s: float) -> int | None:
        """Descriptors once they are down to ``most``, or what they are when the time is over."""
        for _ in range(max(1, round(limit_s / SAMPLE_PERIOD_S))):
            _, descriptors = self.look()
            if descriptors is None or descriptors <= most:
                return descriptors
            await asyncio.sleep(SAMPLE_PERIOD_S)
        return self.descriptors[-1]
