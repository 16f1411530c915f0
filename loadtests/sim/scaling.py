"""Compares policies of scaling over days: ``python -m loadtests.sim.scaling [--seeds N] [--quick]``.

Baselines are swept first, on seeds of their own; of each the cheapest setting that reaches 99 % within contracts is
kept, or the one with the best attainment if none does. Then all run the same days, with cold starts of 5, 10 and 16
minutes. Writes ``loadtests/reports/scaling.{json,md,png}``.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import track

from loadtests.sim.curves import read_curves
from loadtests.sim.day import Curve, Day, DayFigures, Scaler, simulate_day
from loadtests.sim.scalers import Law, ScalerArm, build_law, list_baselines
from loadtests.sim.scaling_report import REPORTS, ArmFigures, build_dominance_table, build_table, write_scaling_report

SWEEP_SEEDS = (101,)
REACHED = 0.99

LAWS: dict[str, dict[str, object]] = {
    "law": {},
    "law, no earlier week": {"history": False},
    "law, no forecast": {"use_forecast": False},
}

FRONTIER: dict[str, dict[str, object]] = {
    f"law, {full * 100:.0f} % full": {"full_ratio": full, "full_ratio_most": full + 0.1}
    for full in (0.6, 0.7, 0.8, 0.85, 0.9, 1.0, 1.1)
}
"""The law at other prices: what an operator would change to buy more or less attainment."""

FRONTIER_COLD_START_S = 600.0
DARK_H = (14.1, 14.1 + 1.0 / 6.0)


def build_arm(name: str, setting: str) -> Callable[[Day, int], Scaler]:
    """How an arm is built, by its name and setting."""
    if (changes := {**LAWS, **FRONTIER}.get(name)) is not None:
        return lambda day, seed: build_law(day, seed, **changes)
    return next(arm.build for arm in list_baselines() if (arm.name, arm.setting) == (name, setting))


def run_arm(job: tuple[str, str, Day, tuple[int, ...]]) -> ArmFigures:
    """All seeds of an arm."""
    name, setting, day, seeds = job
    curve, build = Curve(read_curves()), build_arm(name, setting)
    total, errors = DayFigures(days=0), [0.0, 0.0]
    for seed in seeds:
        scaler = build(day, seed)
        figures = simulate_day(day, scaler, curve, seed)
        total.add(figures)
        if isinstance(scaler, Law):
            off, came, _ = scaler.scaling.forecast.absolute_errors
            errors[0] += off
            errors[1] += came
    forecast_error = errors[0] / errors[1] if errors[1] and name != "law, no forecast" else None
    return ArmFigures(name, setting, day.cold_start_s, total, forecast_error)


def choose_best(found: Sequence[ArmFigures]) -> ArmFigures:
    """The cheapest that reaches 99 %, else the one with the best attainment."""
    reaching = [one for one in found if one.figures.attainment >= REACHED]
    if reaching:
        return min(reaching, key=lambda one: one.figures.worker_hours)
    return max(found, key=lambda one: one.figures.attainment)


def sweep(arms: Sequence[ScalerArm], day: Day, seeds: tuple[int, ...], processes: int) -> dict[str, list[ArmFigures]]:
    """Every setting of every baseline."""
    jobs = [(arm.name, arm.setting, day, seeds) for arm in arms]
    with ProcessPoolExecutor(processes) as pool:
        found = track(pool.map(run_arm, jobs, chunksize=4), "sweep of baselines", len(jobs), transient=True)
        by_name: dict[str, list[ArmFigures]] = {}
        for one in found:
            by_name.setdefault(one.name, []).append(one)
    return by_name


def run_dark(seeds: Sequence[int]) -> int:
    """How often the law's target falls while Prometheus is away for ten minutes at the peak."""
    curve, day = Curve(read_curves()), replace(Day(), dark_h=DARK_H, begin_h=10.0, hours=5.0)
    return sum(simulate_day(day, build_law(day, seed), curve, seed).falls_in_the_dark for seed in seeds)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.sim.scaling", description="Simulate days of scaling.")
    parser.add_argument("--seeds", type=int, default=10, help="days per arm (10)")
    parser.add_argument("--cold-starts", default="5,10,16", help="minutes, with commas; others stay as reported before")
    parser.add_argument("--quick", action="store_true", help="two days, one cold start")
    parser.add_argument("--processes", type=int, default=1, choices=(1, 2), help="1 or 2 (1)")
    parser.add_argument("--out", type=Path, default=REPORTS, help="folder of the reports")
    args = parser.parse_args(arguments)
    args.cold_starts_s = [60.0 * float(text) for text in args.cold_starts.split(",")]
    if args.quick:
        args.seeds, args.cold_starts_s = 2, [600.0]
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    args = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 170)
    seeds = tuple(range(1, args.seeds + 1))
    rows: list[ArmFigures] = []
    points: list[ArmFigures] = []
    for cold_start_s in args.cold_starts_s:
        day = replace(Day(), cold_start_s=cold_start_s)
        swept = sweep(list_baselines(), day, SWEEP_SEEDS, args.processes)
        chosen = [(name, "", day, seeds) for name in LAWS]
        chosen += [(name, choose_best(found).setting, day, seeds) for name, found in swept.items()]
        rows += map(run_arm, chosen)
        if cold_start_s == FRONTIER_COLD_START_S:
            points = [one for found in swept.values() for one in found]
            points += [run_arm((name, "", day, SWEEP_SEEDS)) for name in FRONTIER]
            console.print(build_dominance_table(points))
    dark = run_dark(seeds)
    console.print(build_table(rows))
    console.print(f"Prometheus away for 10 minutes at the peak: {dark} falls of the target in {len(seeds)} days")
    for path in write_scaling_report(rows, points, dark, args.out):
        console.print(f"  wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
