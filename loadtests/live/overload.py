"""Offers the same traffic, at and above capacity, to each gateway in turn, and tells which promises were kept.

    python -m loadtests.live.overload [--arms sluice,smg,...] [--loads 1,2,3,5] [--seconds 15] [--mix uniform]
                                      [--passes 1] [--quick]

First the emulated engine alone is measured in a closed loop: its peak gives the loads (1x is 76 % of the peak, as in
the anchors) and the ideal row. Then every arm at every load gets fresh workers, a fresh gateway and the same trace from
an open-loop client. Where we may, client, gateway and workers get the same raised priority, because a busy neighbour
would otherwise be measured. A run whose client was more than 50 ms late (p99) is repeated once and marked if it was
late again. Every second pass goes through the arms backwards.

Writes ``overload.json``, ``overload.md`` and ``overload.png`` (``overload-MIX`` for other mixes than the uniform one)
and prints a short table last. Everything started here is stopped at the end, on Ctrl-C and on SIGTERM too; no run is
longer than ``--limit-s``.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from loadtests.live.child import ChildError, choose_free_ports, interrupt_on_sigterm, run_child, wait_until_answering
from loadtests.live.ideal import ANCHOR_RATIO, Ideal, compute_ideal, compute_mix_peak, compute_peak
from loadtests.live.open_loop import Plan
from loadtests.live.overhead_report import describe_machine
from loadtests.live.overload_arms import ARMS, DIRECT_ARM, Arm, EngineFacts, Setting, describe_settings
from loadtests.live.overload_report import (
    Run,
    build_doubts,
    build_refusal_rows,
    build_table,
    draw_picture,
    format_lag,
    format_load,
    format_page,
)
from loadtests.live.peer_configs import BENCH_KEY, Site
from loadtests.live.peer_install import InstallError
from loadtests.live.peers import PEERS, REPORTS, REPOSITORY, SLUICE, Installed, run_peer
from loadtests.live.traffic import MIXES, UNIFORM, Mix, Schedule, dump_mix

SLOTS = 16  # cpu-small's max_num_seqs
PROFILE = "cpu-small"
PRIORITY = -10
START_LIMIT_S = 30.0
CLIENT_GRACE_S = 30.0
RAMP_SHARES = (0.5, 1.0, 1.25)
RAMP_WARM_UP_S, RAMP_SECONDS = 4.0, 8.0
QUICK_RAMP_SHARES = (1.125,)
LOAD_MAX = 20.0


class OutOfTimeError(Exception):
    """The test has reached its limit."""


@dataclass
class Gathered:
    """What one invocation has gathered so far."""

    give_up_at: float
    runs: list[Run] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    ramps: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    unit_rps: float = 0.0
    raised: bool = True


def build_worker_command(port: int, seed: int, speed: float, extra: Sequence[str]) -> list[str]:
    """One emulated worker; a speed other than one scales every step."""
    slow = ["--fault", f"slow;factor={1 / speed:.6f}"] if speed != 1.0 else []
    return [
        *(sys.executable, "-m", "service.emulator", "--port", str(port), "--profile", PROFILE),
        *("--seed", str(seed), "--request-log", "0", *slow, *extra),
    ]


def raise_priority(test: Gathered, pid: int) -> None:
    """The same raised priority for a whole process group; without the right to, all stay as they are."""
    try:
        os.setpriority(os.PRIO_PGRP, pid, PRIORITY)
    except PermissionError:
        test.raised = False
    except ProcessLookupError:
        pass


@contextmanager
def run_emulators(
    test: Gathered, ports: Sequence[int], speed: float, extra: Sequence[str], folder: Path
) -> Iterator[None]:
    """Emulated workers, one process each, ready."""
    with ExitStack() as stack:
        for index, port in enumerate(ports):
            log = folder / f"worker-{port}.log"
            process = stack.enter_context(
                run_child(build_worker_command(port, index, speed, extra), log, cwd=REPOSITORY)
            )
            raise_priority(test, process.pid)
            wait_until_answering(process, f"http://127.0.0.1:{port}/health", log, START_LIMIT_S, BENCH_KEY)
        yield


def run_client(test: Gathered, plan: Plan) -> dict[str, object]:
    """One plan in a process of its own; its result."""
    argv = [sys.executable, "-m", "loadtests.live.open_loop"]
    if test.raised:
        argv += ["--nice", str(PRIORITY)]
    limit_s = min(plan.limit_s + plan.schedule.warm_up_s + CLIENT_GRACE_S, test.give_up_at - time.monotonic())
    if limit_s <= 0:
        raise OutOfTimeError
    try:
        done = subprocess.run(  # noqa: S603 - our own module
            argv, input=plan.dump(), cwd=REPOSITORY, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ChildError(f"the client did not end within {limit_s:.0f} s") from error
    if done.returncode != 0:
        raise ChildError(f"client: {done.stderr[-500:].strip()}")
    result = json.loads(done.stdout)
    if not isinstance(result, dict):
        raise ChildError("client: no result")
    return result


@contextmanager
def run_arm(
    test: Gathered, arm: Arm, installed: Installed | None, setting: Setting, options: argparse.Namespace
) -> Iterator[tuple[int, ...]]:
    """Fresh workers and the arm's gateway before them; gives the ports that the client asks in turn."""
    ports = choose_free_ports(options.first_port, setting.mix.workers + 2)
    workers, port, admin_port = ports[:-2], ports[-2], ports[-1]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-overload-")))
        extra = arm.build_worker_options(setting)
        stack.enter_context(run_emulators(test, workers, options.engine_speed, extra, folder))
        if arm.build_peer is None or installed is None:
            yield tuple(workers)
            return
        site = Site(port, admin_port, tuple(workers), folder)
        running = stack.enter_context(run_peer(arm.build_peer(setting), installed, site))
        raise_priority(test, running.pid)
        yield (port,)


def build_plan(arm: Arm, mix: Mix, ports: tuple[int, ...], schedule: Schedule, *, keep_rows: bool) -> Plan:
    """What the client does with one arm."""
    last_s = max(seconds for targets in mix.tiers for _, seconds in targets.ttft_s)
    answer_s = max(shape.tokens * mix.choose_targets(shape.tier).tpot_s for shape in mix.shapes)
    return Plan(
        ports=ports,
        mix=mix,
        schedule=schedule,
        headers=arm.build_headers(mix),
        bodies=arm.build_bodies(mix),
        limit_s=schedule.seconds + last_s + answer_s + 1.0,
        keep_rows=keep_rows,
    )


def measure_engine(test: Gathered, mix: Mix, options: argparse.Namespace) -> EngineFacts:
    """A closed-loop ramp on bare workers, once for each tier alone: the best goodput that meets the targets."""
    first = mix.tiers[0].tier
    tiers = [targets.tier for targets in mix.tiers]
    if len({(shape.prompt_tokens, shape.tokens) for shape in mix.shapes}) == 1:
        tiers = [first]  # one shape: what the strictest tier gets, all get
    shares = QUICK_RAMP_SHARES if options.quick else RAMP_SHARES
    answer_s = 0.0
    for tier in tiers:
        levels = []
        for share in shares:
            plan = Plan(
                ports=(),
                mix=mix.restrict(tier),
                schedule=Schedule(1.0, RAMP_SECONDS, RAMP_WARM_UP_S),
                concurrency=round(share * SLOTS * mix.workers),
            )
            setting = Setting(mix, EngineFacts(SLOTS, {}, 0.0))
            with run_arm(test, ARMS[DIRECT_ARM], None, setting, options) as ports:
                closed = run_client(test, replace(plan, ports=ports))["closed"]
            if not isinstance(closed, dict):
                raise ChildError("client: no figures of the closed loop")
            levels.append({name: float(value) for name, value in closed.items()})
            if share >= 1.0 and not answer_s:
                answer_s = levels[-1]["mean_s"]
        test.ramps[tier] = levels
    peaks = {
        targets.tier: compute_peak(test.ramps.get(targets.tier, test.ramps[first])) / mix.workers
        for targets in mix.tiers
    }
    return EngineFacts(SLOTS, peaks, answer_s)


def compute_ideals(mix: Mix, facts: EngineFacts, loads: Sequence[float]) -> tuple[float, dict[float, Ideal]]:
    """1x in requests per second, and the bound at each load."""
    peaks = {tier: rps * mix.workers for tier, rps in facts.peak_rps.items()}
    shares = {targets.tier: mix.compute_share(targets.tier) for targets in mix.tiers}
    unit_rps = ANCHOR_RATIO * compute_mix_peak(shares, peaks)
    return unit_rps, {
        load: compute_ideal({tier: share * load * unit_rps for tier, share in shares.items()}, peaks) for load in loads
    }


def install_arms(test: Gathered, arms: Sequence[str], console: Console) -> dict[str, Installed | None]:
    """Those of the arms that can be had; the others are noted with the reason."""
    found: dict[str, Installed | None] = {}
    for name in arms:
        peer = ARMS[name].install
        if peer is None:
            found[name] = None
            continue
        with console.status(f"{name}: installing if missing"):
            try:
                installed = PEERS[peer].install()
            except InstallError as error:
                test.skipped[name] = str(error)
                console.print(f"[yellow]{name} is skipped:[/] {error}", highlight=False)
                continue
        found[name], test.versions[name] = installed, installed.version
    return found


def measure_run(
    test: Gathered,
    name: str,
    installed: Installed | None,
    setting: Setting,
    options: argparse.Namespace,
    rate_rps: float,
) -> dict[str, object]:
    """One arm at one rate on fresh processes."""
    schedule = Schedule(rate_rps, options.seconds, options.warm_up, options.cool_down, options.seed)
    with run_arm(test, ARMS[name], installed, setting, options) as ports:
        return run_client(test, build_plan(ARMS[name], setting.mix, ports, schedule, keep_rows=options.raw is not None))


def keep_raw(run: Run, mix: Mix, options: argparse.Namespace) -> None:
    """The run with every request in it, where it was asked for."""
    if options.raw is not None:
        options.raw.mkdir(parents=True, exist_ok=True)
        path = options.raw / f"{mix.name}-{run.arm}-{format_load(run.load)}-{run.number}.json"
        path.write_text(json.dumps(asdict(run)))


def measure_cell(
    test: Gathered,
    name: str,
    installed: Installed | None,
    setting: Setting,
    options: argparse.Namespace,
    load: float,
    number: int,
) -> Run:
    """One arm at one load; once more if the client was late, and then the better of the two."""
    rate_rps = load * test.unit_rps
    run = Run(name, load, number, measure_run(test, name, installed, setting, options, rate_rps))
    if run.is_suspect:
        again = measure_run(test, name, installed, setting, options, rate_rps)
        run = min(replace(run, repeated=True), Run(name, load, number, again, repeated=True), key=lambda r: r.lag_ms)
    keep_raw(run, setting.mix, options)
    return replace(run, result={key: value for key, value in run.result.items() if key != "rows"})


def run_all(test: Gathered, setting: Setting, options: argparse.Namespace, console: Console) -> None:
    """All arms at all loads in all passes."""
    found = install_arms(test, options.arms, console)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("starting", total=len(found) * len(options.loads) * options.passes)
        for number in range(1, options.passes + 1):
            for load in options.loads:
                for name in list(found) if number % 2 else list(found)[::-1]:
                    progress.update(task, description=f"pass {number} {format_load(load)} {name}")
                    try:
                        test.runs.append(measure_cell(test, name, found[name], setting, options, load, number))
                    except ChildError as error:
                        test.failed[name] = str(error)
                        progress.console.print(f"[red]{name} failed:[/] {error}", highlight=False)
                    progress.advance(task)


def write_reports(
    test: Gathered, setting: Setting, ideals: Mapping[float, Ideal], options: argparse.Namespace
) -> tuple[list[str], list[list[str]]]:
    """JSON, Markdown and picture; gives the table's headings and rows."""
    folder: Path = options.reports
    folder.mkdir(parents=True, exist_ok=True)
    mix, tiers = setting.mix, [targets.tier for targets in setting.mix.tiers]
    name = "overload" if mix.name == UNIFORM.name else f"overload-{mix.name}"
    command = " ".join(["python -m loadtests.live.overload", *sys.argv[1:]])
    machine, doubts = describe_machine(), build_doubts(test.runs)
    headings, rows = build_table(test.runs, ideals, list(ARMS), tiers)
    (folder / f"{name}.json").write_text(
        json.dumps(
            {
                "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "command": command,
                "machine": machine,
                "versions": test.versions,
                "mix": dump_mix(mix),
                "engine": {**asdict(setting.facts), "speed": options.engine_speed, "ramps": test.ramps},
                "peers_were_told": json.loads(describe_settings(setting)),
                "unit_rps": test.unit_rps,
                "seconds": options.seconds,
                "warm_up_s": options.warm_up,
                "cool_down_s": options.cool_down,
                "priority_raised": test.raised,
                "ideal": {format_load(load): asdict(one) for load, one in ideals.items()},
                "runs": [asdict(run) for run in test.runs],
                "skipped": test.skipped,
                "failed": test.failed,
                "doubts": doubts,
            },
            indent=1,
        )
        + "\n"
    )
    worst = max(options.loads)
    page = format_page(
        headings,
        rows,
        about=[
            f"Mix *{mix.name}*: "
            + "; ".join(
                f"{100 * mix.compute_share(t.tier):.0f} % {t.tier} (first token within "
                f"{' or '.join(f'{s:g}' for _, s in t.ttft_s)} s, {1e3 * t.tpot_s:.0f} ms per token)"
                for t in mix.tiers
            )
            + f". {mix.workers} emulated worker(s), profile {PROFILE}, {SLOTS} places each, speed "
            f"{options.engine_speed:g}. Open loop, {options.seconds:g} s counted after {options.warm_up:g} s of the "
            f"same load and before {options.cool_down:g} s more; attainment over offered requests; median of "
            f"{options.passes} pass(es). 1x = {test.unit_rps:.2f} requests per second, {100 * ANCHOR_RATIO:.0f} % of "
            "the peak measured below.",
            "",
            f"Machine: {machine['processor']}, {machine['cores']} cores, Linux {machine['kernel']}, Python "
            f"{machine['python']}; load average at the end {machine['load_average']}. "
            + ("Client, gateway and workers at the same raised priority." if test.raised else "Priority not raised.")
            + f" Sum of it: {format_lag(test.runs)}.",
            "",
            f"Command: `{command}`",
        ],
        refusals={
            f"Refusals and first tokens of {tier} at {format_load(worst)}": build_refusal_rows(
                test.runs, list(ARMS), worst, tier
            )
            for tier in tiers
        },
        notes={
            "The engine alone (closed loop)": [
                f"{tier}: {level['concurrency']:.0f} at once: {level['goodput_rps']:.2f} good per second, "
                f"{level['mean_s']:.2f} s each"
                for tier, levels in test.ramps.items()
                for level in levels
            ],
            "What the peers were told": [f"`{describe_settings(setting)}`"],
            "Not measured": [f"{arm}: {reason}" for arm, reason in {**test.skipped, **test.failed}.items()],
            "Doubts": doubts,
        },
    )
    (folder / f"{name}.md").write_text(page)
    draw_picture(test.runs, ideals, list(ARMS), tiers, folder / f"{name}.png")
    return headings, rows


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], console: Console) -> None:
    """The short table."""
    table = Table(title="What overload does (a * marks runs with a late client)")
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*row, style="bold" if row[0] in (ARMS[SLUICE].title, rows[0][0]) else None)
    console.print(table)


def parse_arms(text: str) -> tuple[str, ...]:
    """The arms of a comma-separated list; raises for a name that is not known."""
    arms = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    unknown = [arm for arm in arms if arm not in ARMS]
    if unknown or not arms:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {', '.join(ARMS)}")
    return arms


def parse_loads(text: str) -> tuple[float, ...]:
    """The loads of a comma-separated list, ascending."""
    try:
        loads = tuple(sorted({float(part) for part in text.split(",") if part.strip()}))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not a list of numbers: {text}") from error
    if not loads or loads[0] <= 0 or loads[-1] > LOAD_MAX:
        raise argparse.ArgumentTypeError(f"loads must lie between 0 and {LOAD_MAX:g}")
    return loads


def build_parser() -> argparse.ArgumentParser:
    """The command line's options."""
    parser = argparse.ArgumentParser(description="the same overload through each gateway in turn")
    parser.add_argument("--arms", type=parse_arms, default=tuple(ARMS), help=f"of {', '.join(ARMS)}")
    parser.add_argument("--loads", type=parse_loads, help="multiples of 76 %% of the peak; default 1,2,3,5")
    parser.add_argument("--mix", choices=sorted(MIXES), default=UNIFORM.name)
    parser.add_argument("--seconds", type=float, help="counted window; default 15, with --quick 6")
    parser.add_argument("--warm-up", type=float, default=5.0, help="seconds of the same load before the window")
    parser.add_argument("--cool-down", type=float, default=5.0, help="seconds of the same load after it")
    parser.add_argument("--passes", type=int, default=1, help="the table shows medians")
    parser.add_argument("--quick", action="store_true", help="loads 1,3, short windows, one level of the ramp")
    parser.add_argument("--engine-speed", type=float, default=1.0, help="scales the emulated worker's steps")
    parser.add_argument("--seed", type=int, default=1, help="of the arrivals")
    parser.add_argument("--first-port", type=int, default=23600, help="free ports are taken from here on")
    parser.add_argument("--limit-s", type=float, default=3600.0, help="the test ends after this time at the latest")
    parser.add_argument("--reports", type=Path, default=REPORTS, help="folder of the reports")
    parser.add_argument("--raw", type=Path, help="folder for one JSON file per run with every request in it")
    return parser


def main() -> int:
    """The command line."""
    options = build_parser().parse_args()
    options.loads = options.loads or ((1.0, 3.0) if options.quick else (1.0, 2.0, 3.0, 5.0))
    options.seconds = options.seconds or (6.0 if options.quick else 15.0)
    interrupt_on_sigterm()
    console, mix = Console(stderr=True), MIXES[options.mix]
    test = Gathered(give_up_at=time.monotonic() + options.limit_s)
    out = Console(width=150) if not sys.stdout.isatty() else Console()
    try:
        with console.status("measuring the engine alone"):
            facts = measure_engine(test, mix, options)
        test.unit_rps, ideals = compute_ideals(mix, facts, options.loads)
        peaks = ", ".join(f"{tier} {rps:.2f}" for tier, rps in facts.peak_rps.items())
        console.print(f"peak per worker: {peaks} requests/s; 1x = {test.unit_rps:.2f}/s", highlight=False)
        setting = Setting(mix, facts)
        try:
            run_all(test, setting, options, console)
        except OutOfTimeError:
            test.failed["the rest"] = f"the test reached its limit of {options.limit_s:.0f} s"
    except KeyboardInterrupt:
        console.print("stopped; everything started here is gone, no report written")
        return 130
    except (ChildError, OutOfTimeError) as error:
        console.print(f"[red]the engine could not be measured:[/] {error}", highlight=False)
        return 1
    headings, rows = write_reports(test, setting, ideals, options)
    for text in build_doubts(test.runs):
        console.print(f"[yellow]doubt:[/] {text}", highlight=False)
    print_table(headings, rows, out)
    out.print(format_lag(test.runs), highlight=False)
    return 1 if test.failed or SLUICE in test.skipped else 0


if __name__ == "__main__":
    sys.exit(main())
