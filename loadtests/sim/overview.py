"""Draws two pictures over all overload scenarios whose reports lie in a folder: attainment by tier, and goodput.

``python -m loadtests.sim.run`` draws them after its runs; ``python -m loadtests.sim.overview`` draws them anew.
"""

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadtests.sim.report import REPORTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCENARIOS = ("mixed", "azure-conv", "azure-code", "mooncake", "uniform")
LOADS_MIN = 3
OURS = "sluice"
STYLES = ("o", "s", "^", "v", "D", "P", "X", "*")
BAR = 99.0
"""What the contracts promise, %."""

Run = dict[str, Any]
Report = dict[str, Any]


def load_reports(folder: Path) -> list[Report]:
    """The reports of overload scenarios in ``folder`` that cover at least ``LOADS_MIN`` loads."""
    paths = [folder / f"{name}.json" for name in SCENARIOS]
    reports = [json.loads(path.read_text()) for path in paths if path.is_file()]
    return [report for report in reports if len({run["load"] for run in report["runs"]}) >= LOADS_MIN]


def list_promised_tiers(report: Report) -> list[str]:
    """Tiers in which something lies within contract."""
    tiers = report["runs"][0]["tiers"]
    return [name for name, tier in tiers.items() if tier["contract_attainment"] is not None]


def draw_overview(folder: Path = REPORTS) -> list[Path]:
    """Both pictures; nothing where there are no reports or no matplotlib."""
    reports = load_reports(folder)
    try:
        import matplotlib as mpl
    except ImportError:
        return []
    if not reports:
        return []
    mpl.use("Agg")
    return [_draw_attainment(reports, folder), _draw_goodput(reports, folder)]


def _read_attainment(tier: str, run: Run) -> float:
    return 100.0 * float(run["tiers"][tier]["contract_attainment"])


def _draw_lines(axis: "Axes", runs: Sequence[Run], read: Callable[[Run], float]) -> None:
    arms = list(dict.fromkeys(run["arm"] for run in runs))
    for index, arm in enumerate(arms):
        mine = [run for run in runs if run["arm"] == arm]
        ours = arm == OURS
        axis.plot(
            [run["load"] for run in mine],
            [read(run) for run in mine],
            marker=STYLES[index % len(STYLES)],
            markersize=6 if ours else 4,
            linewidth=3.0 if ours else 1.0,
            color="crimson" if ours else None,
            zorder=3 if ours else 2,
            label=arm,
        )
    loads = sorted({run["load"] for run in runs})
    axis.set_xscale("log")
    axis.set_xticks(loads, [f"{load:g}x" for load in loads])
    axis.minorticks_off()
    axis.grid(alpha=0.3)


def _draw_attainment(reports: Sequence[Report], folder: Path) -> Path:
    from matplotlib import pyplot as plt

    rows = max(len(list_promised_tiers(report)) for report in reports)
    figure, axes = plt.subplots(rows, len(reports), figsize=(3.6 * len(reports), 3.1 * rows), squeeze=False)
    for column, report in enumerate(reports):
        for row, tier in enumerate(list_promised_tiers(report)):
            axis = axes[row][column]
            _draw_lines(axis, report["runs"], partial(_read_attainment, tier))
            loads = sorted({run["load"] for run in report["runs"]})
            ideal = {run["load"]: run["tiers"][tier]["ideal_contract_attainment"] for run in report["runs"]}
            axis.plot(loads, [100.0 * ideal[load] for load in loads], "k--", linewidth=1.0, label="oracle")
            axis.axhline(BAR, color="grey", linewidth=0.8, linestyle=":")
            axis.set_ylim(-3, 103)
            axis.set_title(f"{report['scenario']}: {tier}", fontsize=10)
    for row in axes:
        row[0].set_ylabel("kept within contract, %")
    for axis in axes[-1]:
        axis.set_xlabel("load, x capacity")
    return _save(figure, axes, folder / "attainment.png")


def _draw_goodput(reports: Sequence[Report], folder: Path) -> Path:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(reports), figsize=(3.6 * len(reports), 3.4), squeeze=False)
    for axis, report in zip(axes[0], reports, strict=True):
        _draw_lines(axis, report["runs"], lambda run: float(run["goodput_rps"]))
        axis.set_ylim(bottom=0.0)
        axis.set_title(report["scenario"], fontsize=10)
        axis.set_xlabel("load, x capacity")
    axes[0][0].set_ylabel("good requests a second")
    return _save(figure, axes, folder / "goodput.png")


def _save(figure: Any, axes: Any, path: Path) -> Path:  # noqa: ANN401 - matplotlib tells no types
    from matplotlib import pyplot as plt

    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=len(labels), fontsize=9, frameon=False)
    figure.tight_layout(rect=(0.0, 0.06, 1.0, 1.0))
    figure.savefig(path, dpi=90)
    plt.close(figure)
    return path


if __name__ == "__main__":
    for drawn in draw_overview():
        sys.stdout.write(f"wrote {drawn}\n")
