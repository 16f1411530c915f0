"""Small arithmetic on measured figures: percentiles, medians and ratios that may be missing, a text table."""

import math
from collections.abc import Sequence
from statistics import median

DASH = "-"


def compute_percentile(ordered: Sequence[float], share: float) -> float | None:
    """The nearest-rank percentile: the smallest value with at least ``share`` (0..1) of all values at or below it.

    None for an empty sequence. ``ordered`` must ascend.
    """
    if not ordered:
        return None
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def compute_spread_ms(values_s: Sequence[float]) -> dict[str, float | None]:
    """Percentiles of lengths given in seconds, in milliseconds, as reports show them."""
    ordered = sorted(values_s)
    spread = {}
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0)):
        value = compute_percentile(ordered, share)
        spread[name] = None if value is None else round(value * 1e3, 3)
    return spread


def compute_median(values: Sequence[float | None]) -> float | None:
    """Median of those values that were measured; None if none was."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def compute_ratio(value: float | None, reference: float | None) -> float | None:
    """How many times the reference; None where either is missing or the reference is zero."""
    return value / reference if value is not None and reference else None


def compute_difference(value: float | None, reference: float | None) -> float | None:
    """Value minus reference; None where either is missing."""
    return value - reference if value is not None and reference is not None else None


def format_figure(value: float | None, digits: int = 1, unit: str = "") -> str:
    """A figure with thousands separated, or a dash where it is missing."""
    return DASH if value is None else f"{value:,.{digits}f}{unit}"


def format_markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose source is aligned as well: first column left, the others right."""
    cells = [list(headings), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]

    def line(row: Sequence[str]) -> str:
        padded = [
            text.ljust(width) if column == 0 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "| " + " | ".join(padded) + " |"

    rule = "|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|"
    return "\n".join([line(cells[0]), rule, *(line(row) for row in cells[1:])])
