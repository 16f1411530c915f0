"""Runs scenarios: ``python -m loadtests.sim.run SCENARIO [--arm A,B] [--load 1.2,2] [--seeds N] [--quick]``.

``python -m loadtests.sim.run --all`` runs every scenario with every arm; ``--list`` says what there is. ``scaling`` is
another simulator, of days: see :mod:`loadtests.sim.scaling`.
"""

import argparse
import gc
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from loadtests.sim import scaling
from loadtests.sim.arms import ARMS, Plant
from loadtests.sim.measure import RunFigures, check_conservation, measure
from loadtests.sim.report import REPORTS, build_table, write_report
from loadtests.sim.scenario import SCENARIOS, Scenario, shorten
from loadtests.sim.traces import TraceMissingError
from loadtests.sim.world import World

PROCESSES_MAX = 2


@dataclass(frozen=True, slots=True)
class Job:
    """One run."""

    scenario: Scenario
    arm: str
    seed: int


def build_world(job: Job) -> World:
    """A world in which nothing has happened yet."""
    arm = ARMS[job.arm]
    plant = Plant(job.scenario, job.scenario.compute_capacity_rps(), job.seed)
    engine = replace(arm.configure_engine(plant), max_num_batched_tokens=job.scenario.batched_tokens)
    return World(job.scenario, lambda: arm.build(plant), job.seed, engine)


def run_job(job: Job) -> RunFigures:
    """Run, measure, and check that no request was lost or counted twice."""
    gc.collect()
    gc.freeze()
    gc.disable()  # the run makes millions of small values and no cycles worth a search
    try:
        begun = time.process_time()
        world = build_world(job)
        world.run()
        check_conservation(world.attempts)
        figures = measure(world, job.arm)
        figures.cpu_s = time.process_time() - begun
    finally:
        gc.enable()
        gc.unfreeze()
    figures.virtual_s = world.driver.now
    return figures


def run_jobs(jobs: Sequence[Job], processes: int) -> Iterator[RunFigures]:
    """All jobs in order."""
    if processes == 1:
        yield from map(run_job, jobs)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(run_job, jobs)


def sum_up(runs: Iterable[RunFigures]) -> list[RunFigures]:
    """Add the seeds of each arm and load."""
    sums: dict[tuple[str, float, str], RunFigures] = {}
    for run in runs:
        key = (run.scenario, run.load, run.arm)
        if key in sums:
            sums[key].add(run)
        else:
            sums[key] = run
    return list(sums.values())


def plan(scenario: Scenario, arms: Sequence[str], loads: Sequence[float], seeds: int) -> list[Job]:
    """The jobs of one scenario."""
    chosen = loads or scenario.loads or (scenario.load,)
    return [
        Job(replace(scenario, load=load), arm, seed) for load in chosen for arm in arms for seed in range(1, seeds + 1)
    ]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.sim.run", description="Simulate the gateway's policy.")
    parser.add_argument("scenario", nargs="*", metavar="SCENARIO", help="names, see --list")
    parser.add_argument("--all", action="store_true", help="every scenario")
    parser.add_argument("--list", action="store_true", help="print scenarios and arms, and end")
    parser.add_argument("--arm", default="", help="arms, with commas (all)")
    parser.add_argument("--load", default="", help="multiples of capacity, with commas (the scenario's)")
    parser.add_argument("--seeds", type=int, default=1, help="runs per arm and load (1)")
    parser.add_argument("--workers", type=int, help="workers (the scenario's)")
    parser.add_argument("--duration", type=float, help="measured seconds (the scenario's)")
    parser.add_argument("--batched-tokens", type=int, help="the engine's budget per step (the profile's)")
    parser.add_argument("--quick", action="store_true", help="two workers and a third of the time")
    parser.add_argument("--processes", type=int, default=1, choices=range(1, PROCESSES_MAX + 1), help="1 or 2 (1)")
    parser.add_argument("--out", type=Path, default=REPORTS, help="folder of the reports")
    args = parser.parse_args(arguments)
    args.arms = [name for name in args.arm.split(",") if name] or list(ARMS)
    args.loads = [float(text) for text in args.load.split(",") if text]
    args.names = list(SCENARIOS) if args.all else args.scenario
    unknown = [name for name in args.names if name not in SCENARIOS] + [name for name in args.arms if name not in ARMS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; scenarios: {', '.join(SCENARIOS)}; arms: {', '.join(ARMS)}")
    if not args.names and not args.list:
        parser.error("name a scenario, or --all, or --list")
    return args


def adapt(scenario: Scenario, args: argparse.Namespace) -> Scenario:
    """The scenario as the command line wants it."""
    if args.quick:
        scenario = shorten(scenario)
    if args.workers is not None:
        scenario = replace(scenario, workers=args.workers)
    if args.batched_tokens is not None:
        scenario = replace(scenario, batched_tokens=args.batched_tokens)
    if args.duration is not None:
        scenario = replace(scenario, duration_s=args.duration)
    return scenario


def estimate_cost(job: Job) -> float:
    """How long a job takes, in no unit: for the progress bar. Steps of engines, and requests that arrive."""
    scenario = job.scenario
    return (scenario.until_s + scenario.settle_s) * scenario.workers * (1.0 + scenario.load)


def run_scenarios(chosen: Sequence[Scenario], args: argparse.Namespace, console: Console) -> None:
    """All of them, each with its table and reports as soon as it is through."""
    jobs = [plan(scenario, args.arms, args.loads, args.seeds) for scenario in chosen]
    every = [job for some in jobs for job in some]
    columns = (
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=False),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True, speed_estimate_period=300.0) as progress:
        task = progress.add_task("", total=sum(map(estimate_cost, every)))
        runs = run_jobs(every, args.processes)
        for scenario, some in zip(chosen, jobs, strict=True):
            progress.update(task, description=scenario.name)
            done: list[RunFigures] = []
            for job in some:
                done.append(next(runs))
                progress.advance(task, estimate_cost(job))
            sums = sum_up(done)
            console.print(build_table(scenario, sums))
            for path in write_report(scenario, sums, args.out):
                console.print(f"  wrote {path}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["scaling"]:
        return scaling.main(given[1:])
    args = parse(given)
    console = Console(width=None if sys.stdout.isatty() else 170)
    if args.list:
        for name, scenario in SCENARIOS.items():
            console.print(f"{name:18} {scenario.about}; loads {', '.join(map(str, scenario.loads))}", highlight=False)
        console.print(
            "scaling            days of a pool that somebody scales, beside other policies of scaling", highlight=False
        )
        for name, arm in ARMS.items():
            console.print(f"{name:18} {arm.about}", highlight=False)
        return 0
    chosen: list[Scenario] = []
    missing: list[str] = []
    for name in args.names:
        try:
            scenario = adapt(SCENARIOS[name], args)
            scenario.compute_capacity_rps()
            chosen.append(scenario)
        except TraceMissingError as error:
            missing.append(f"{name}: left out, {error}")
    if chosen:
        run_scenarios(chosen, args, console)
    for line in missing:
        console.print(line)
    if args.all:
        scaling.main(["--quick"] if args.quick else [])
    return 0 if chosen else 1


if __name__ == "__main__":
    sys.exit(main())
