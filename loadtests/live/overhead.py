"""Measures what each gateway costs: all of them in turn, on this machine, in one run.

    python -m loadtests.live.overhead [--peers sluice,sluice-ledger,vllm-router,smg,envoy,nginx] [--rounds 2] [--quick]

Every gateway gets a fresh process and a fresh worker per round, a warm-up, the two standard loads and two sequential
loads on one connection (for the added latency). Every second round goes through the gateways backwards, so that a
machine that slows down during the run does not always slow the same one. Writes ``overhead.json``, ``overhead.md``
and ``overhead.png`` and prints a short table last.

A gateway that cannot be had or fails is reported with its reason, and the others go on; the exit code is 1 if one
failed or Sluice itself was wanted and not measured. Everything started here is
stopped when the run ends, on Ctrl-C and on SIGTERM too; no run is longer than ``--limit-s``.
"""

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from loadtests.live.child import ChildError, choose_free_ports, interrupt_on_sigterm
from loadtests.live.client import STANDARD_LOADS, Load
from loadtests.live.overhead_report import (
    HEADINGS,
    JSON_LOAD,
    JSON_SINGLE,
    STREAM_LOAD,
    STREAM_SINGLE,
    Row,
    Sample,
    build_rows,
    build_warnings,
    describe_machine,
    draw_picture,
    format_cells,
    format_page,
)
from loadtests.live.peer_configs import Site
from loadtests.live.peer_install import InstallError
from loadtests.live.peers import (
    DIRECT,
    PEERS,
    REFERENCE,
    REPORTS,
    REPOSITORY,
    SLUICE,
    SLUICE_COMPILED,
    SLUICE_COMPILED_LEDGER,
    SLUICE_LEDGER,
    Installed,
    Running,
    run_peer,
    run_workers,
)

DEFAULT_PEERS = (
    SLUICE_COMPILED,
    SLUICE_COMPILED_LEDGER,
    REFERENCE,
    SLUICE,
    SLUICE_COMPILED,
    SLUICE_COMPILED_LEDGER,
    SLUICE_LEDGER,
    "smg",
    "envoy",
    "nginx",
)
LOAD_LIMIT_S = 180.0
WARM_UP = Load(concurrency=16, requests=500, stream=False, tokens=16, pause_ms=0)
# Chunks of the single stream follow at once, so that its whole length is the path's own and not the timers'.
SINGLE_LOADS = {
    JSON_SINGLE: Load(concurrency=1, requests=500, stream=False, tokens=16, pause_ms=0),
    STREAM_SINGLE: Load(concurrency=1, requests=500, stream=True, tokens=16, pause_ms=0),
}
QUICK_DIVISOR = 4


class OutOfTimeError(Exception):
    """The run has reached its limit."""


@dataclass
class Run:
    """What one run has gathered so far."""

    give_up_at: float
    samples: list[Sample] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def build_steps(*, quick: bool) -> dict[str, Load]:
    """The loads each gateway gets after its warm-up."""
    steps = {JSON_LOAD: STANDARD_LOADS["json"], STREAM_LOAD: STANDARD_LOADS["stream"], **SINGLE_LOADS}
    if not quick:
        return steps
    return {
        name: Load(load.concurrency, load.requests // QUICK_DIVISOR, load.stream, load.tokens, load.pause_ms)
        for name, load in steps.items()
    }


def build_order(peers: Sequence[str], round_number: int) -> list[str]:
    """The order of one round: the worker itself first, the gateways forwards or, every second time, backwards."""
    gateways = [peer for peer in peers if peer != DIRECT]
    return [DIRECT, *(gateways if round_number % 2 else gateways[::-1])]


def build_client_command(load: Load, running: Running) -> list[str]:
    """The client as a process of its own."""
    return [
        *(sys.executable, "-m", "loadtests.live.client"),
        *("--port", str(running.port), "--pid", str(running.pid), "--load", "stream" if load.stream else "json"),
        *("--concurrency", str(load.concurrency), "--requests", str(load.requests)),
        *("--tokens", str(load.tokens), "--pause-ms", str(load.pause_ms), "--key", running.key),
    ]


def run_client(load: Load, running: Running, limit_s: float) -> dict[str, object]:
    """One load from a client process; raises ``ChildError`` if it fails or takes too long."""
    try:
        done = subprocess.run(  # noqa: S603 - our own module
            build_client_command(load, running),
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ChildError(f"the load did not end within {limit_s:.0f} s") from error
    if done.returncode != 0:
        raise ChildError(f"client: {done.stderr[-500:].strip()}")
    result = json.loads(done.stdout)
    if not isinstance(result, dict):
        raise ChildError("client: no result")
    return result


@contextmanager
def run_gateway(peer: str, installed: Installed | None, first_port: int) -> Iterator[Running]:
    """A worker and, unless it is measured alone, the gateway before it."""
    worker_port, port, admin_port = choose_free_ports(first_port, 3)
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder,
        run_workers(worker_port, 1, Path(folder)) as worker_pid,
    ):
        if installed is None:
            yield Running(worker_port, worker_pid)
            return
        site = Site(port, admin_port, (worker_port,), Path(folder))
        with run_peer(PEERS[peer], installed, site) as running:
            yield running


def measure_gateway(run: Run, running: Running, peer: str, round_number: int, steps: dict[str, Load]) -> Iterator[str]:
    """Runs all loads on one gateway; yields the name of each step when it is done."""
    for name, load in {"warm-up": WARM_UP, **steps}.items():
        left_s = run.give_up_at - time.monotonic()
        if left_s <= 0:
            raise OutOfTimeError
        result = run_client(load, running, min(LOAD_LIMIT_S, left_s))
        if name != "warm-up":
            run.samples.append(Sample(peer, round_number, name, result))
        yield name


def install_peers(run: Run, peers: Sequence[str], console: Console) -> dict[str, Installed | None]:
    """Those of the peers that can be had; the others are noted with the reason."""
    found: dict[str, Installed | None] = {DIRECT: None}
    run.versions[DIRECT] = "-"
    for peer in peers:
        if peer == DIRECT:
            continue
        with console.status(f"{peer}: installing if missing"):
            try:
                installed = PEERS[peer].install()
            except InstallError as error:
                run.skipped[peer] = str(error)
                console.print(f"[yellow]{peer} is skipped:[/] {error}", highlight=False)
                continue
        found[peer], run.versions[peer] = installed, installed.version
    return found


def run_all(run: Run, options: argparse.Namespace, console: Console) -> None:
    """All rounds."""
    found = install_peers(run, options.peers, console)
    steps = build_steps(quick=options.quick)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console) as progress:
        per_gateway = len(steps) + 1
        task = progress.add_task("starting", total=len(found) * options.rounds * per_gateway)
        for round_number in range(1, options.rounds + 1):
            for peer in build_order(list(found), round_number):
                done = 0
                progress.update(task, description=f"round {round_number} {peer}")
                try:
                    with run_gateway(peer, found[peer], options.first_port) as running:
                        for _ in measure_gateway(run, running, peer, round_number, steps):
                            done += 1
                            progress.advance(task)
                except ChildError as error:
                    run.failed[peer] = str(error)
                    progress.console.print(f"[red]{peer} failed:[/] {error}", highlight=False)
                    progress.advance(task, per_gateway - done)


def write_reports(run: Run, rows: Sequence[Row], options: argparse.Namespace, machine: dict[str, object]) -> list[str]:
    """JSON, Markdown and picture; gives the warnings that stand in them."""
    folder: Path = options.reports
    folder.mkdir(parents=True, exist_ok=True)
    warnings = build_warnings(run.samples)
    command = " ".join(["python -m loadtests.live.overhead", *sys.argv[1:]])
    report = {
        "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command,
        "rounds": options.rounds,
        "quick": options.quick,
        "machine": machine,
        "versions": run.versions,
        "rows": [asdict(row) for row in rows],
        "skipped": run.skipped,
        "failed": run.failed,
        "warnings": warnings,
        "samples": [asdict(sample) for sample in run.samples],
    }
    (folder / "overhead.json").write_text(json.dumps(report, indent=1) + "\n")
    page = format_page(
        rows,
        command=command,
        rounds=options.rounds,
        machine=machine,
        skipped={**run.skipped, **run.failed},
        warnings=warnings,
    )
    (folder / "overhead.md").write_text(page)
    draw_picture(rows, folder / "overhead.png")
    return warnings


def print_table(rows: Sequence[Row], console: Console) -> None:
    """The short table."""
    table = Table(title="Gateway overhead (medians; lower is better)")
    for index, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if index < 2 else "right")
    for row in rows:
        table.add_row(*format_cells(row), style="bold" if row.peer in (SLUICE, SLUICE_COMPILED) else None)
    console.print(table)


def parse_peers(text: str) -> tuple[str, ...]:
    """The gateways of a comma-separated list; raises for a name that is not known."""
    peers = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    unknown = [peer for peer in peers if peer not in PEERS and peer != DIRECT]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {DIRECT}, {', '.join(PEERS)}")
    return peers


def build_parser() -> argparse.ArgumentParser:
    """The command line's options."""
    parser = argparse.ArgumentParser(description="CPU time and latency that each gateway adds, peers in turn")
    parser.add_argument("--peers", type=parse_peers, default=DEFAULT_PEERS, help=f"of {', '.join(PEERS)}")
    parser.add_argument("--rounds", type=int, help="default 2, with --quick 1")
    parser.add_argument("--quick", action="store_true", help="a quarter of the requests, one round: for tuning")
    parser.add_argument("--first-port", type=int, default=23100, help="free ports are taken from here on")
    parser.add_argument("--limit-s", type=float, default=1200.0, help="the run ends after this time at the latest")
    parser.add_argument("--reports", type=Path, default=REPORTS, help="folder of the reports")
    return parser


def main() -> int:
    """The command line."""
    options = build_parser().parse_args()
    options.rounds = options.rounds or (1 if options.quick else 2)
    interrupt_on_sigterm()
    console = Console(stderr=True)
    machine = describe_machine()
    run = Run(give_up_at=time.monotonic() + options.limit_s)
    try:
        run_all(run, options, console)
    except KeyboardInterrupt:
        console.print("stopped; everything started here is gone, no report written")
        return 130
    except OutOfTimeError:
        run.failed["the rest"] = f"the run reached its limit of {options.limit_s:.0f} s"
    rows = build_rows(run.samples, run.versions)
    warnings = write_reports(run, rows, options, machine)
    out = Console(width=150) if not sys.stdout.isatty() else Console()
    for text in warnings:
        console.print(f"[yellow]doubt:[/] {text}", highlight=False)
    print_table(rows, out)
    out.print(f"reports: {options.reports.name}/overhead.json, .md, .png", highlight=False)
    return 1 if run.failed or {SLUICE, SLUICE_COMPILED} & set(run.skipped) else 0


if __name__ == "__main__":
    sys.exit(main())
