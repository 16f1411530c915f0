"""Calibrates the emulator on a real engine and says whether it is honest: ``sluice bench calibrate``.

Exit codes: 0 the emulator is honest, 1 it is not or the engine failed, 2 bad input.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from loadtests.calibration.client import Measured, RunFailedError, dump_rows
from loadtests.calibration.engine import (
    CPU_MAX_NUM_BATCHED_TOKENS,
    CPU_MAX_NUM_SEQS,
    LAYERS,
    Target,
    TargetUnfitError,
    inspect,
    run_cpu_engine,
)
from loadtests.calibration.fit import Fit
from loadtests.calibration.machine import Meter, arrange
from loadtests.calibration.plan import MIXES, UTILISATIONS, Sweep, plan_sweep, plan_warm_up
from loadtests.calibration.replay import ReplayError
from loadtests.calibration.report import Story, build_table, format_verdict, write_reports
from loadtests.calibration.session import Session, fit_sweep, measure_held_out
from loadtests.calibration.texts import Writer
from loadtests.calibration.verdict import LIMIT, judge
from loadtests.live.child import ChildError, interrupt_on_sigterm
from loadtests.live.overhead_report import describe_machine
from service.emulator.profile_file import ProfileFault, dump_profile, load_profile
from service.launch.fault import EngineUnavailableError

NOTHING_ARRANGED = "the worker is somebody else's, nothing was arranged"
REPORTS = Path(__file__).parents[1] / "reports"
QUICK = Sweep(
    batches=(1, 8), prompts=(48, 1200), reuses=(0.0,), output_tokens=24, staggers_s=(0.006,), singles=2,
    single_prompts=(48, 600, 2400), single_gap_s=0.15,
)  # fmt: skip


def calibrate(target: Target, options: argparse.Namespace, console: Console) -> Story:
    """Measure, fit, judge."""
    columns = (
        TextColumn("{task.description:14}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"),
        TimeRemainingColumn(),
    )  # fmt: skip
    pids = target.pids
    with (
        httpx.Client(base_url=target.url, trust_env=False, timeout=30.0) as client,
        arrange(pids[0]) if pids else nullcontext(NOTHING_ARRANGED) as arrangement,
        Progress(*columns, console=console) as progress,
    ):
        writer = Writer(client, target.model, target.block_size)
        session = Session(target, writer, Meter(pids), progress, options.patience_s)
        session.measure(plan_warm_up(target.context_tokens))
        found: Fit | None = None
        sweep: list[Measured] = []
        if options.judge is None:
            sweep = session.measure_sweep(plan_sweep(QUICK if options.quick else Sweep(), target.context_tokens))
            found = fit_sweep(session, sweep)
            profile = found.profile
        else:
            profile = load_profile(str(options.judge))
        mixes = MIXES[:1] if options.quick else MIXES
        held_out = measure_held_out(session, profile, mixes, options.loads, options.seconds, options.seed)
    if options.rows is not None:
        parts = {"sweep": sweep, "held_out": held_out.measured}
        options.rows.write_text(json.dumps({name: [dump_rows(run) for run in runs] for name, runs in parts.items()}))
    if not held_out.judged:
        raise TargetUnfitError(f"no held-out run could be measured: {'; '.join(held_out.failed)}")
    return Story(
        command=f"sluice bench calibrate {shlex.join(options.given)}".rstrip(),
        machine=describe_machine(),
        engine={**describe_engine(target), "arrangement": arrangement},
        profile=profile,
        fit=found,
        sweep_requests=sum(len(one.times) for one in sweep),
        runs=held_out.judged,
        verdict=judge(held_out.judged, held_out.failed, options.limit),
        capacities_rps=held_out.capacities_rps,
        disturbed=session.disturbed,
        repeated=session.repeated,
    )


def describe_engine(target: Target) -> dict[str, object]:
    """What was measured, in words and figures."""
    started = f"a Qwen3 of {LAYERS} narrow layers and random weights on the CPU, bfloat16, one computing thread"
    return {
        "version": target.version,
        "about": started if target.pids else "a worker that ran already",
        "model": target.model,
        "context_tokens": target.context_tokens,
        "max_num_seqs": target.max_num_seqs,
        "max_num_batched_tokens": target.max_num_batched_tokens,
        "block_size": target.block_size,
    }


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="sluice bench calibrate",
        description="Fit the emulator to a real vLLM and say whether it can be trusted: a sweep (batch x prompt length "
        "x prefix reuse) of streamed requests, a least-squares fit of what a step costs, then held-out runs (other "
        "mixes and seeds, Poisson arrivals) that are measured and predicted. Takes about four minutes; leave the "
        "machine alone meanwhile: runs in which others use the processors are repeated, then marked.",
        epilog="Exit codes: 0 honest, 1 not honest or the engine failed, 2 bad input. Examples: 'sluice bench "
        "calibrate' starts a vLLM on the CPU; 'sluice bench calibrate --worker http://gpu-1:8000 --max-num-seqs 256 "
        "--max-num-batched-tokens 8192 --out var/gpu-1' measures a worker of yours, not one that serves customers; "
        "'sluice bench calibrate --judge FILE' asks whether a profile still holds; "
        "'sluice emulate --profile loadtests/reports/calibrated.json' emulates what was found.",
    )
    parser.add_argument("--worker", metavar="URL", help="measure this worker instead of starting one; it must be idle")
    parser.add_argument("--judge", type=Path, metavar="FILE", help="judge this profile: no sweep, no fit")
    parser.add_argument("--max-num-seqs", type=int, default=CPU_MAX_NUM_SEQS, help="of the worker (%(default)s)")
    parser.add_argument(
        "--max-num-batched-tokens", type=int, default=CPU_MAX_NUM_BATCHED_TOKENS, help="of the worker (%(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a held-out run (%(default)s)")
    parser.add_argument("--load", default="", help="held-out loads, parts of capacity, with commas (0.5,0.65,0.8)")
    parser.add_argument("--seed", type=int, default=2000, help="of the held-out arrivals (%(default)s)")
    parser.add_argument("--limit", type=float, default=LIMIT, help="median end-to-end error allowed (%(default)s)")
    parser.add_argument(
        "--patience-s",
        type=float,
        default=90.0,
        help="seconds spent on disturbed runs, in all (%(default)s)",
    )
    parser.add_argument("--rows", type=Path, help="keep every request that was measured in this file (JSON)")
    parser.add_argument("--quick", action="store_true", help="a small sweep and one mix: tries the mechanics")
    parser.add_argument("--out", type=Path, default=REPORTS, help="folder of the reports (%(default)s)")
    parser.add_argument("--profile-out", type=Path, help="where the fitted profile goes (calibrated.json in --out)")
    options = parser.parse_args(arguments)
    options.given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options.loads = [float(text) for text in options.load.split(",") if text] or list(UTILISATIONS)
    except ValueError:
        parser.error(f"--load: {options.load!r} is not a list of numbers")
    if min(options.loads) <= 0 or max(options.loads) >= 1:
        parser.error("--load: an open loop is judged below capacity: between 0 and 1")
    for name in ("seconds", "limit", "max_num_seqs", "max_num_batched_tokens"):
        if getattr(options, name) <= 0:
            parser.error(f"--{name.replace('_', '-')}: must be above zero")
    if options.judge is not None:
        try:
            load_profile(str(options.judge))
        except ProfileFault as error:
            parser.error(f"--judge: {error}")
    return options


def open_target(options: argparse.Namespace, console: Console) -> AbstractContextManager[Target]:
    """The engine to measure."""
    if options.worker:
        return nullcontext(inspect(options.worker.rstrip("/"), options.max_num_seqs, options.max_num_batched_tokens))
    log = Path(tempfile.gettempdir()) / f"sluice-calibrate-{os.getpid()}.log"
    return run_cpu_engine(log, console.print)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    options = parse(arguments)
    interrupt_on_sigterm()
    console = Console(width=None if sys.stdout.isatty() else 170)
    try:
        with open_target(options, console) as target:
            story = calibrate(target, options, console)
    except (
        ChildError,
        EngineUnavailableError,
        TargetUnfitError,
        RunFailedError,
        ReplayError,
        httpx.HTTPError,
    ) as error:
        console.print(f"calibrate: {error}", style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        return 130
    console.print(build_table(story))
    for path in write_reports(story, options.out):
        console.print(f"  wrote {path}", markup=False)
    if story.fit is not None:
        path = options.profile_out or options.out / "calibrated.json"
        remarks = {"made_by": story.command, "machine": story.machine, "engine": story.engine}
        path.write_text(dump_profile(story.profile, remarks))
        console.print(f"  wrote {path}: sluice emulate --profile {path}", markup=False)
    console.print(format_verdict(story.verdict), style="green" if story.verdict.is_honest else "red", markup=False)
    return 0 if story.verdict.is_honest else 1


if __name__ == "__main__":
    sys.exit(main())
