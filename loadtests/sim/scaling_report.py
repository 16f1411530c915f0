"""Prints and draws days of scaling: a table per cold start, what each policy costs at equal attainment, a picture."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from loadtests.sim.curves import read_curves
from loadtests.sim.day import Curve, Day, DayFigures, simulate_day
from loadtests.sim.scalers import build_law

REPORTS = Path(__file__).parents[1] / "reports"

HEADS = (
    "cold start", "arm", "within %", "excess %", "best effort %", "worker-hours/day", "turns/h", "forecast off %",
    "setting",
)  # fmt: skip
DOMINANCE_HEADS = ("baseline", "its best within % at our cost", "ours %", "its least cost at our within %", "our cost")


@dataclass(slots=True)
class ArmFigures:
    """An arm's days at one cold start."""

    name: str
    setting: str
    cold_start_s: float
    figures: DayFigures
    forecast_error: float | None = None
    """Mean absolute error of the demand foreseen a lead time ahead, over the mean of what came."""

    @property
    def cost(self) -> float:
        """Worker-hours a day."""
        return self.figures.worker_hours / self.figures.days


def list_cells(row: ArmFigures) -> list[str]:
    """A line of the table."""
    figures = row.figures
    return [
        f"{row.cold_start_s / 60.0:.0f} min",
        row.name,
        f"{figures.attainment * 100.0:.2f}",
        f"{figures.excess_good / figures.excess_offered * 100.0:.0f}",
        f"{figures.best_effort_good / figures.best_effort_offered * 100.0:.0f}",
        f"{row.cost:.0f}",
        str(figures.direction_changes_most),
        "" if row.forecast_error is None else f"{row.forecast_error * 100.0:.1f}",
        row.setting,
    ]


def build_table(rows: Sequence[ArmFigures]) -> Table:
    """A line per cold start and arm."""
    title = "a day of scaling: attainment within contracts, and what it cost"
    table = Table(*HEADS, title=title, title_justify="left")
    for row in rows:
        table.add_row(*list_cells(row))
    return table


def list_dominance(points: Sequence[ArmFigures]) -> list[list[str]]:
    """For each baseline, over all its settings: the most it attains for no more than the law costs, and the least it
    costs to attain as much."""
    law = next(point for point in points if point.name == "law, 85 % full")
    lines: list[list[str]] = []
    for name in dict.fromkeys(point.name for point in points if not point.name.startswith("law")):
        mine = [point for point in points if point.name == name]
        attained = max((one.figures.attainment for one in mine if one.cost <= law.cost), default=None)
        cost = min((one.cost for one in mine if one.figures.attainment >= law.figures.attainment), default=None)
        lines.append(
            [
                name,
                "-" if attained is None else f"{attained * 100.0:.2f}",
                f"{law.figures.attainment * 100.0:.2f}",
                "never" if cost is None else f"{cost:.0f}",
                f"{law.cost:.0f}",
            ]
        )
    return lines


def build_dominance_table(points: Sequence[ArmFigures]) -> Table:
    """The law beside each baseline at equal cost and at equal attainment."""
    table = Table(*DOMINANCE_HEADS, title="at equal cost, and at equal attainment", title_justify="left")
    for line in list_dominance(points):
        table.add_row(*line)
    return table


def write_scaling_report(
    rows: Sequence[ArmFigures], points: Sequence[ArmFigures], dark_falls: int, out: Path
) -> list[Path]:
    """JSON, Markdown and a picture; cold starts that were not run stay as they were reported."""
    file = out / "scaling.json"
    earlier = json.loads(file.read_text()) if file.exists() else {"table": [], "dominance": []}
    fresh = [list_cells(row) for row in rows]
    again = {cells[0] for cells in fresh}
    table = [cells for cells in earlier["table"] if cells[0] not in again] + fresh
    table.sort(key=lambda cells: int(cells[0].split()[0]))
    dominance = list_dominance(points) if points else earlier["dominance"]
    record = {
        "days": rows[0].figures.days,
        "heads": HEADS,
        "table": table,
        "dominance_heads": DOMINANCE_HEADS,
        "dominance": dominance,
        "falls_while_prometheus_is_away": dark_falls,
    }
    file.write_text(json.dumps(record, indent=1) + "\n")
    page = out / "scaling.md"
    lines = [
        "# Days of scaling, simulated\n",
        f"{rows[0].figures.days} days an arm: a diurnal curve, two bursts within contracts, a worker lost at the peak. "
        "Baselines at their best settings: the cheapest that reaches 99 % on other days. One worker-hour is as many "
        "GPU-hours as a worker has GPUs. `make sim OPTIONS=scaling` makes this page.\n",
        *_render(HEADS, table),
        "\nCold start of 10 minutes, all settings of the sweeps:\n",
        *_render(DOMINANCE_HEADS, dominance),
        f"\nPrometheus away for ten minutes at the peak: {dark_falls} falls of the target.",
    ]
    page.write_text("\n".join(lines) + "\n")
    if not points:
        return [file, page]
    picture = out / "scaling.png"
    draw(points, picture)
    return [file, page, picture]


def _render(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads), *(f"| {' | '.join(row)} |" for row in rows)]


def draw(points: Sequence[ArmFigures], path: Path) -> None:
    """Left: what every setting attains and costs. Right: a day under the law."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(14, 5.5))
    law = [point for point in points if point.name.startswith("law")]
    for name in dict.fromkeys(point.name for point in points if not point.name.startswith("law")):
        mine = [point for point in points if point.name == name]
        left.scatter([one.cost for one in mine], [one.figures.attainment * 100.0 for one in mine], s=14, label=name)
    law.sort(key=lambda one: one.cost)
    left.plot([one.cost for one in law], [one.figures.attainment * 100.0 for one in law], "k.-", label="the law")
    left.set(xlim=(220, 620), ylim=(97.0, 100.05), xlabel="worker-hours a day", ylabel="met within contracts, %")
    left.axhline(99.5, color="0.7", linewidth=0.8)
    left.legend(loc="lower right")
    left.set_title("every setting of every policy, cold start 10 min")
    day = Day()
    trail = simulate_day(day, build_law(day, 1), Curve(read_curves()), 1, keep_trail=True).trail
    hours = [line[0] for line in trail]
    right.plot(hours, [line[2] for line in trail], color="0.75", label="all demand")
    right.plot(hours, [line[1] for line in trail], label="demand within contracts")
    right.step(hours, [line[4] for line in trail], where="post", label="workers ready")
    right.step(hours, [line[3] for line in trail], where="post", linestyle=":", color="k", label="workers wanted")
    right.set(xlabel="hour", ylabel="workers", title="a day under the law")
    right.legend(loc="upper left")
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
