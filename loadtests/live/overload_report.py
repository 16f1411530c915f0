"""Turns the runs of the overload test into what people read: a short table, a Markdown page and a picture.

A run is one arm at one load in one pass, as the client printed it. Within a run ratios are made from sums; over passes
the median is taken. The ideal row stands first: nothing is worth more than its distance from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtests.live.figures import DASH, compute_median, format_markdown
from loadtests.live.ideal import Ideal
from loadtests.live.overhead_report import read_figure
from loadtests.live.overload_arms import ARMS
from loadtests.live.peers import SLUICE

IDEAL = "ideal"
LAG_LIMIT_MS = 50.0
"""A run whose client was later than this (p99) measures the machine: it is repeated once."""


@dataclass(frozen=True)
class Run:
    """One arm at one load in one pass."""

    arm: str
    load: float
    number: int
    result: Mapping[str, object]
    repeated: bool = False

    @property
    def lag_ms(self) -> float:
        """How late the client was, by the worse of its two measures (p99)."""
        lags = (read_figure(self.result, "client", name, "p99") for name in ("lag_ms", "send_lag_ms"))
        return max(lag or 0.0 for lag in lags)

    @property
    def is_suspect(self) -> bool:
        """Whether the client itself was late."""
        return self.lag_ms > LAG_LIMIT_MS


@dataclass(frozen=True)
class Cell:
    """Medians over the passes of one arm at one load."""

    attainment: Mapping[str, float | None]
    goodput_rps: float | None
    lag_ms: float | None
    suspect: bool


def build_cell(runs: Sequence[Run], arm: str, load: float, tiers: Sequence[str]) -> Cell | None:
    """The cell of an arm and a load; None where it was not measured."""
    mine = [run for run in runs if run.arm == arm and run.load == load]
    if not mine:
        return None
    return Cell(
        {
            tier: compute_median([read_figure(run.result, "tiers", tier, "attainment") for run in mine])
            for tier in tiers
        },
        compute_median([read_figure(run.result, "goodput_rps") for run in mine]),
        compute_median([run.lag_ms for run in mine]),
        any(run.is_suspect for run in mine),
    )


def format_load(load: float) -> str:
    """A load as a heading."""
    return f"{load:g}x"


def format_cell(cell: Cell | None) -> str:
    """``hi / lo %, goodput``; an asterisk where the client was late."""
    if cell is None:
        return DASH
    shares = " / ".join(DASH if share is None else f"{100 * share:.0f}" for share in cell.attainment.values())
    goodput = DASH if cell.goodput_rps is None else f"{cell.goodput_rps:.1f}"
    return f"{shares} %, {goodput}{'*' if cell.suspect else ''}"


def build_table(
    runs: Sequence[Run], ideals: Mapping[float, Ideal], arms: Sequence[str], tiers: Sequence[str]
) -> tuple[list[str], list[list[str]]]:
    """Headings and rows, the ideal first."""
    headings = [f"{' / '.join(tiers)} attainment, goodput/s", *(format_load(load) for load in ideals)]
    rows = [[IDEAL, *(format_cell(Cell(one.attainment, one.goodput_rps, None, False)) for one in ideals.values())]]
    for arm in arms:
        cells = [build_cell(runs, arm, load, tiers) for load in ideals]
        if any(cell is not None for cell in cells):
            rows.append([ARMS[arm].title, *(format_cell(cell) for cell in cells)])
    return headings, rows


def build_refusal_rows(runs: Sequence[Run], arms: Sequence[str], load: float, tier: str) -> list[list[str]]:
    """How each arm refuses one tier at one load: how many, how fast, with which hint."""
    rows = []
    for arm in arms:
        mine = [run.result for run in runs if run.arm == arm and run.load == load]
        if not mine:
            continue

        def figure(*path: str, results: Sequence[Mapping[str, object]] = mine) -> float | None:
            return compute_median([read_figure(result, "tiers", tier, *path) for result in results])

        offered, refused = figure("offered"), figure("verdicts", "refused") or 0.0
        low, high = figure("retry_after_s", "min"), figure("retry_after_s", "max")
        rows.append(
            [
                ARMS[arm].title,
                DASH if not offered else f"{100 * refused / offered:.0f} %",
                *(DASH if (v := figure("refusal_ms", name)) is None else f"{v:,.0f}" for name in ("p50", "p99")),
                DASH if low is None else f"{low:.0f} to {high:.0f} s",
                *(DASH if (v := figure("ttft_ms", name)) is None else f"{v:,.0f}" for name in ("p50", "p99")),
            ]
        )
    return rows


REFUSAL_HEADINGS = ("arm", "refused", "after p50 ms", "p99 ms", "Retry-After", "TTFT p50 ms", "p99 ms")


def build_doubts(runs: Sequence[Run]) -> list[str]:
    """Runs whose client was late, and how late."""
    return [
        f"{run.arm}, {format_load(run.load)}, pass {run.number}: the client was up to {run.lag_ms:.0f} ms late (p99)"
        + (", also when repeated" if run.repeated else "")
        for run in runs
        if run.is_suspect
    ]


def format_lag(runs: Sequence[Run]) -> str:
    """The client's own lateness over all runs, in one line."""
    if not runs:
        return "no runs"
    lags = [run.lag_ms for run in runs]
    most = max(read_figure(run.result, "client", "send_lag_ms", "max") or 0.0 for run in runs)
    busy = max(read_figure(run.result, "client", "busy_ratio") or 0.0 for run in runs)
    return (
        f"client lag p99 per run: median {compute_median(lags) or 0.0:.1f} ms, worst {max(lags):.1f} ms; latest send "
        f"{most:.0f} ms; at most {busy:.2f} of a core"
    )


def format_page(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    about: Sequence[str],
    refusals: Mapping[str, Sequence[Sequence[str]]],
    notes: Mapping[str, Sequence[str]],
) -> str:
    """The Markdown page."""
    parts = ["# What overload does", "", *about, "", format_markdown(headings, rows)]
    for title, lines in refusals.items():
        parts += ["", f"## {title}", "", format_markdown(REFUSAL_HEADINGS, lines)]
    for title, texts in notes.items():
        if texts:
            parts += ["", f"## {title}", "", *(f"* {text}" for text in texts)]
    return "\n".join(parts) + "\n"


def draw_picture(
    runs: Sequence[Run], ideals: Mapping[float, Ideal], arms: Sequence[str], tiers: Sequence[str], path: Path
) -> None:
    """Attainment of each tier and goodput over the load, one line per arm, the ideal dashed."""
    import matplotlib as mpl  # an optional dependency, wanted only here

    mpl.use("Agg")
    from matplotlib import pyplot

    loads = list(ideals)
    figure, axes = pyplot.subplots(1, len(tiers) + 1, figsize=(5 * (len(tiers) + 1), 4.6))
    for index, axis in enumerate(axes):
        tier = tiers[index] if index < len(tiers) else None
        bound = [100 * one.attainment[tier] if tier else one.goodput_rps for one in ideals.values()]
        axis.plot(loads, bound, "--", color="black", label=IDEAL)
        for arm in arms:
            cells = [build_cell(runs, arm, load, tiers) for load in loads]
            values = [None if cell is None else (cell.attainment[tier] if tier else cell.goodput_rps) for cell in cells]
            known = [
                (load, value * (100 if tier else 1))
                for load, value in zip(loads, values, strict=True)
                if value is not None
            ]
            if known:
                style = {"color": "#c2410c", "linewidth": 2.6} if arm == SLUICE else {"linewidth": 1.3}
                axis.plot(*zip(*known, strict=True), marker="o", markersize=3, label=ARMS[arm].title, **style)
        axis.set_title(f"attainment of {tier} (%)" if tier else "goodput (good requests per second)", fontsize=10)
        axis.set_xlabel("offered load (1x = 76 % of the engine's peak)")
        axis.set_ylim(bottom=0)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(fontsize=7, loc="lower left")
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
