"""Compares policies of scaling over days: ``python -m loadtests.sim.scaling [--seeds N] [--quick]``.

Baselines are swept first, on seeds of their own; of each the cheapest setting that reaches 99 % within contracts is
kept, or the one with the best attainment if none does. Then all run the same days, with cold starts of 5, 10 and 16
minutes. Writes ``loadtests/reports/scaling.{json,md,png}``.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from loadtests.sim.curves import read_curves
from loadtests.sim.day import Curve, Day, DayFigures, Scaler, simulate_day
from loadtests.sim.scalers import Law, ScalerArm, build_law, list_baselines

REPORTS = Path(__file__).parents[1] / "reports"
COLD_STARTS_S = (300.0, 600.0, 960.0)
SWEEP_SEEDS = (101, 102)
REACHED = 0.99

LAWS: dict[str, dict[str, object]] = {
    "law": {},
    "law, no earlier week": {"history": False},
    "law, no forecast": {"use_forecast": False},
}


@dataclass(slots=True)
class ArmFigures:
    """An arm's days at one cold start."""

    name: str
    setting: str
    cold_start_s: float
    figures: DayFigures
    forecast_error: float | None = None
    """Mean absolute error of the demand foreseen a lead time ahead, over the mean of what came."""


def build_arm(name: str, setting: str) -> Callable[[Day, int], Scaler]:
    """How an arm is built, by its name and setting."""
    if name in LAWS:
        return lambda day, seed: build_law(day, seed, **LAWS[name])
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


def build_table(rows: Sequence[ArmFigures]) -> Table:
    """A line per cold start and arm."""
    table = Table(title="a day of scaling: attainment within contracts, and what it cost", title_justify="left")
    heads = ("cold start", "arm", "within %", "missed by fault %", "excess %", "best effort %", "worker-hours/day",
             "turns/h", "forecast off %", "setting")  # fmt: skip
    for head in heads:
        table.add_column(head, justify="left" if head in ("arm", "setting") else "right")
    for row in rows:
        figures = row.figures
        table.add_row(
            f"{row.cold_start_s / 60.0:.0f} min", row.name, f"{figures.attainment * 100.0:.2f}",
            f"{figures.missed_by_fault / figures.offered * 100.0:.3f}",
            f"{figures.excess_good / figures.excess_offered * 100.0:.0f}",
            f"{figures.best_effort_good / figures.best_effort_offered * 100.0:.0f}",
            f"{figures.worker_hours / figures.days:.0f}", str(figures.direction_changes_most),
            "" if row.forecast_error is None else f"{row.forecast_error * 100.0:.1f}", row.setting,
        )  # fmt: skip
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.sim.scaling", description="Simulate days of scaling.")
    parser.add_argument("--seeds", type=int, default=10, help="days per arm (10)")
    parser.add_argument("--quick", action="store_true", help="two days, one cold start")
    parser.add_argument("--processes", type=int, default=1, choices=(1, 2), help="1 or 2 (1)")
    parser.add_argument("--out", type=Path, default=REPORTS, help="folder of the reports")
    args = parser.parse_args(arguments)
    seeds = tuple(range(1, (2 if args.quick else args.seeds) + 1))
    console = Console(width=None if sys.stdout.isatty() else 170)
    rows: list[ArmFigures] = []
    sweeps: dict[str, list[ArmFigures]] = {}
    for cold_start_s in (600.0,) if args.quick else COLD_STARTS_S:
        day = replace(Day(), cold_start_s=cold_start_s)
        swept = sweep(list_baselines(), day, SWEEP_SEEDS[:1] if args.quick else SWEEP_SEEDS, args.processes)
        if cold_start_s == 600.0:
            sweeps = swept
        chosen = [(name, "", day, seeds) for name in LAWS]
        chosen += [(name, choose_best(found).setting, day, seeds) for name, found in swept.items()]
        rows += map(run_arm, chosen)
    console.print(build_table(rows))
    record = [
        {"arm": row.name, "setting": row.setting, "cold_start_s": row.cold_start_s, "days": row.figures.days,
         "attainment": row.figures.attainment, "worker_hours_per_day": row.figures.worker_hours / row.figures.days,
         "direction_changes_most_per_hour": row.figures.direction_changes_most, "forecast_error": row.forecast_error}
        for row in rows
    ]  # fmt: skip
    (args.out / "scaling.json").write_text(json.dumps({"arms": record}, indent=1) + "\n")
    del sweeps
    return 0


if __name__ == "__main__":
    sys.exit(main())
