"""Figures held against bounds: what a measurement found, what was allowed, whether it holds."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from loadtests.live.figures import DASH


@dataclass(frozen=True)
class Check:
    """One figure; ``holds`` is None where there is nothing to hold it against."""

    name: str
    figure: str
    bound: str = DASH
    holds: bool | None = None


def check_at_most(name: str, value: float | None, bound: float, unit: str = "", digits: int = 0) -> Check:
    """A figure with an upper bound; one that could not be measured does not hold."""
    figure = DASH if value is None else f"{value:,.{digits}f}{unit}"
    return Check(name, figure, f"<= {bound:,.{digits}f}{unit}", value is not None and value <= bound)


def all_hold(checks: Sequence[Check]) -> bool:
    """Whether no bound is broken."""
    return all(check.holds is not False for check in checks)


def print_checks(title: str, checks: Sequence[Check], console: Console) -> None:
    """The short table."""
    table = Table(title=title)
    table.add_column("figure")
    table.add_column("measured", justify="right")
    table.add_column("bound", justify="right")
    table.add_column("")
    for check in checks:
        verdict = {True: "[green]holds[/]", False: "[red]BROKEN[/]", None: ""}[check.holds]
        table.add_row(check.name, check.figure, check.bound, verdict)
    console.print(table)


def write_checks(path: Path, checks: Sequence[Check], figures: Mapping[str, object]) -> None:
    """The same as JSON, beside the raw figures."""
    path.parent.mkdir(parents=True, exist_ok=True)
    report = {"holds": all_hold(checks), "checks": [asdict(check) for check in checks], "figures": dict(figures)}
    path.write_text(json.dumps(report, indent=1) + "\n")
