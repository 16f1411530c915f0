"""Offers the same traffic, at and above capacity, to each gateway in turn, and tells which promises were kept.

    python -m loadtests.live.overload [--arms sluice,smg,...] [--loads 1,2,3,5] [--seconds 15] [--mix uniform]
                                      [--passes 1] [--quick]

First the emulated engine alone is measured in a closed loop: its peak gives the loads (1x is 76 % of the peak, as in
the anchors) and the ideal row. Then every arm at every load gets fresh workers, a fresh gateway and the same trace from
an open-loop client. Where we may, client, gateway and workers get the same raised priority, because a busy neighbour
would otherwise be measured. A run whose client was more than 50 ms late (p99) is repeated once and marked if it was
late again. Every second pass goes through the arms backwards.

The warm-up must be long enough to fill the queues: at 2x a queue of 5 s takes 7 s to fill, and with 4 s of warm-up an
arm came out a seventh above the engine's peak, because its queue was longer at the end of the window than at its start.

Writes ``overload.json``, ``overload.md`` and ``overload.png`` (``overload-MIX`` for other mixes than the uniform one)
and prints a short table last. Everything started here is stopped at the end, on Ctrl-C and on SIGTERM too; no run is
longer than ``--limit-s``.
"""

import argparse
import datetime
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from loadtests.live.child import ChildError, interrupt_on_sigterm
from loadtests.live.ideal import ANCHOR_RATIO, Ideal
from loadtests.live.overhead_report import describe_machine
from loadtests.live.overload_arms import ARMS, Setting, describe_settings
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
from loadtests.live.overload_runs import (
    PROFILE,
    SLOTS,
    Gathered,
    OutOfTimeError,
    build_schedule,
    compute_ideals,
    compute_unit_rps,
    measure_engine,
    measure_run,
)
from loadtests.live.peer_install import InstallError
from loadtests.live.peers import PEERS, REPORTS, SLUICE, Installed
from loadtests.live.traffic import MIXES, UNIFORM, Mix, dump_mix

LOAD_MAX = 20.0


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
    schedule = build_schedule(options, load * test.unit_rps, number)
    run = Run(name, load, number, measure_run(test, name, installed, setting, options, schedule))
    if run.is_suspect:
        again = measure_run(test, name, installed, setting, options, schedule)
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
    parser.add_argument("--warm-up", type=float, default=10.0, help="seconds of the same load before the window")
    parser.add_argument("--cool-down", type=float, default=5.0, help="seconds of the same load after it")
    parser.add_argument("--passes", type=int, default=1, help="the table shows medians")
    parser.add_argument("--quick", action="store_true", help="loads 1,3, short windows, one level of the ramp")
    parser.add_argument("--engine-speed", type=float, default=1.0, help="scales the emulated worker's steps")
    parser.add_argument("--seed", type=int, default=1, help="of the arrivals; the next pass has the next one")
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
        test.unit_rps = compute_unit_rps(mix, facts)
        ideals = compute_ideals(mix, facts, options.loads, options)
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
