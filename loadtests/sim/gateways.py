"""What several gateways lose against a single one: ``python -m loadtests.sim.gateways [--seeds N] [--seconds S]``.

Runs mixed traffic at twice the capacity of eight workers through 1, 2, 4 and 16 gateways that share them by reports,
with reports that lag, with a gateway that dies, and with a store that is away; and, beside them, four gateways that do
not know of each other. Prints tables and writes ``replicas.{json,md}``. The bars are those of four gateways: goodput,
what was promised within contract, and how soon a dead one's part is taken up; and that no worker's own valve fires.

With ``--conversations`` it is long conversations instead, below capacity, each turn through another gateway, measured
after three minutes that began with cold caches: ``replicas-agentic.{json,md}``, without bars.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console

from loadtests.sim.measure import RunFigures, check_conservation, measure
from loadtests.sim.replicas import Exchange, ReplicaWorld
from loadtests.sim.scenario import SCENARIOS, Scenario
from service.emulator.steps import EngineConfig
from service.launch.profiles import build_m31_flash_profile

REPORTS = Path(__file__).parents[1] / "reports"
SCENARIO, LOAD = "mixed", 2.0
GOODPUT_BAR, CONTRACT_BAR, TAKEN_BAR_S = 0.97, 0.985, 2.0
KILLED_AT_S = 60.0
DARK = (50.0, 80.0)
COMMAND = "python -m loadtests.sim.gateways"


NEAR = Exchange()

TALKS, TALK_LOADS, TALK_WARMUP_S = "agentic", (0.6, 0.85), 180.0


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table."""

    name: str
    count: int
    exchange: Exchange = NEAR
    killed: bool = False


CASES = (
    Case("one", 1),
    Case("two", 2),
    Case("four", 4),
    Case("four, 5 ms apart", 4, Exchange(lag_s=0.005)),
    Case("four, 200 ms apart", 4, Exchange(lag_s=0.2)),
    Case("four, 500 ms apart", 4, Exchange(lag_s=0.5)),
    Case("four, one is killed", 4, NEAR, killed=True),
    Case("four, store away for 30 s", 4, Exchange(dark=DARK)),
    Case("four, one cut off for 30 s", 4, Exchange(dark=DARK, cut_off=(0,))),
    Case("four that do not share", 4, Exchange(shared=False)),
    Case("sixteen", 16),
)


@dataclass(slots=True)
class Figures:
    """Sums of one case over its seeds. ``classed`` is what the gateways took for within contract, over what a single
    bucket lets through; ``taken_s`` how long a dead gateway's part was idle; ``over`` by how much a worker was asked
    for more than its limit, at most, beyond what a limit that had just come down explains."""

    name: str
    count: int
    goodput_rps: float
    goodput_ratio: float
    contract_attainment: float
    classed: float
    valves: int
    taken_s: float | None
    over: int


def run_case(case: Case, scenario: Scenario, seed: int) -> tuple[ReplicaWorld, RunFigures]:
    """One run, with the valves that the workers are started with."""
    valve = build_m31_flash_profile().limits.in_flight_requests
    killed = (1, KILLED_AT_S) if case.killed else None
    world = ReplicaWorld(
        scenario, case.count, seed, case.exchange, EngineConfig(max_num_queued_reqs=valve), killed
    )  # fmt: skip
    world.run()
    check_conservation(world.attempts)
    return world, measure(world, case.name)


def find_taken_s(world: ReplicaWorld, at: float) -> float | None:
    """From a gateway's death until the others may use 97 % of what the workers carry; ``None`` if they never may."""
    after = (moment for moment, permits, carried in world.permits if moment >= at and permits >= 0.97 * carried)
    found = next(after, None)
    return None if found is None else found - at


def sum_up(case: Case, runs: Sequence[tuple[ReplicaWorld, RunFigures]], single_rps: float | None) -> Figures:
    """The figures of one case."""
    good = bad = 0
    for _, figures in runs:
        good += sum(tier.contract_good for tier in figures.tiers.values())
        bad += sum(tier.contract_bad for tier in figures.tiers.values())
    goodput_rps = sum(figures.goodput_rps for _, figures in runs) / len(runs)
    taken = [find_taken_s(world, KILLED_AT_S) for world, _ in runs] if case.killed else []
    return Figures(
        case.name,
        case.count,
        round(goodput_rps, 2),
        round(goodput_rps / (single_rps or goodput_rps), 4),
        round(good / (good + bad), 4),
        round(sum(world.contract_ratio for world, _ in runs) / len(runs), 3),
        sum(world.count_rejected() for world, _ in runs),
        None if not taken or None in taken else round(max(one for one in taken if one is not None), 1),
        max(world.most_over for world, _ in runs),
    )


def run_cases(cases: Sequence[Case], scenario: Scenario, seeds: int, tell: Callable[[str], None]) -> Iterator[Figures]:
    """One line after another."""
    single_rps: float | None = None
    for case in cases:
        figures = sum_up(case, [run_case(case, scenario, seed) for seed in range(1, seeds + 1)], single_rps)
        single_rps = single_rps or figures.goodput_rps
        tell(render_line(figures))
        yield figures


def render_line(figures: Figures) -> str:
    """One line of the table."""
    taken = "" if figures.taken_s is None else f"{figures.taken_s:.1f}"
    return (
        f"| {figures.name} | {figures.goodput_rps:.1f} | {figures.goodput_ratio * 100:.1f} | "
        f"{figures.contract_attainment * 100:.2f} | {figures.classed * 100:.1f} | {figures.valves} | {figures.over} | "
        f"{taken} |"
    )


HEAD = (
    "| gateways | goodput/s | of one gateway's % | kept within contract % | classed within contract % | valves | "
    "over limit | taken up s |\n|---|---|---|---|---|---|---|---|"
)


def judge(all_figures: Sequence[Figures]) -> list[str]:
    """What four gateways miss of the bars; nothing if they reach them."""
    by_name = {figures.name: figures for figures in all_figures}
    four, killed = by_name["four"], by_name["four, one is killed"]
    missed = []
    if four.goodput_ratio < GOODPUT_BAR:
        missed.append(f"goodput {four.goodput_ratio:.3f} of a single gateway's, below {GOODPUT_BAR}")
    if four.contract_attainment < CONTRACT_BAR:
        missed.append(f"within contract {four.contract_attainment:.4f}, below {CONTRACT_BAR}")
    if killed.taken_s is None or killed.taken_s > TAKEN_BAR_S:
        missed.append(f"a dead gateway's part was idle for {killed.taken_s} s, more than {TAKEN_BAR_S}")
    fired = [figures.name for figures in all_figures if figures.valves and "not share" not in figures.name]
    if fired:
        missed.append(f"workers' valves fired: {', '.join(fired)}")
    return missed


def write_report(all_figures: Sequence[Figures], missed: list[str] | None, command: str, path: Path) -> None:
    """JSON for programs, a table for people; ``missed`` is ``None`` where there are no bars."""
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {"command": command, "missed": missed, "cases": [asdict(figures) for figures in all_figures]}
    path.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    verdict = ""
    if missed is not None:
        verdict = "\nAll bars are reached.\n" if not missed else "\nMissed: " + "; ".join(missed) + ".\n"
    text = "\n".join(map(render_line, all_figures))
    about = (__doc__ or "").partition("\n\n")[2].strip()
    path.with_suffix(".md").write_text(f"# Several gateways\n\n`{command}`\n\n{about}\n\n{HEAD}\n{text}\n{verdict}")


def run_talks(seeds: int, duration_s: float, tell: Callable[[str], None]) -> Iterator[Figures]:
    """Long conversations through one, two and four gateways."""
    for load in TALK_LOADS:
        scenario = replace(SCENARIOS[TALKS], load=load, warmup_s=TALK_WARMUP_S, duration_s=duration_s)
        cases = [replace(case, name=f"{case.name}, {load:g} x") for case in CASES[:3]]
        yield from run_cases(cases, scenario, seeds, tell)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="runs per case (3)")
    parser.add_argument("--seconds", type=float, default=100.0, help="measured seconds per run (100)")
    parser.add_argument("--conversations", action="store_true", help="long conversations below capacity")
    parser.add_argument("--out", type=Path, default=REPORTS, help="folder of the report")
    args = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 170, highlight=False)
    console.print(HEAD)
    command = f"{COMMAND} --seeds {args.seeds} --seconds {args.seconds:g}"
    if args.conversations:
        found = list(run_talks(args.seeds, args.seconds, console.print))
        write_report(found, None, f"{command} --conversations", args.out / "replicas-agentic")
        return 0
    scenario = replace(SCENARIOS[SCENARIO], load=LOAD, duration_s=args.seconds)
    found = list(run_cases(CASES, scenario, args.seeds, console.print))
    missed = judge(found)
    write_report(found, missed, command, args.out / "replicas")
    for one in missed:
        console.print(f"missed: {one}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
