"""Draws the plots of a report as SVG that stands in the page: no scripts, no fonts, nothing fetched."""

from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 720, 180
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 14, 24
COLOURS = {"met": "#2a9d6f", "missed": "#c8403a", "excluded": "#b9bfc7", "line": "#2563a8", "objective": "#c8403a"}

Point = tuple[float, float]


def draw_stacks(title: str, days: int, stacks: Sequence[tuple[int, Sequence[tuple[str, int]]]]) -> str:
    """Bars by day, each a stack of named counts (``met``, ``missed``, ``excluded``)."""
    top = max((sum(count for _, count in stack) for _, stack in stacks), default=0) or 1
    width = (WIDTH - _LEFT - _RIGHT) / days
    parts = [_frame(title, days, f"{top:,}", "0")]
    for day, stack in stacks:
        at = float(HEIGHT - _BOTTOM)
        for name, count in stack:
            height = count / top * (HEIGHT - _TOP - _BOTTOM)
            at -= height
            if count:
                told = f"day {day}: {count:,} {escape(name)}"
                parts.append(
                    f'<rect x="{_LEFT + (day - 1) * width + 1:.1f}" y="{at:.1f}" width="{max(width - 2, 1):.1f}" '
                    f'height="{height:.1f}" fill="{COLOURS[name]}"><title>{told}</title></rect>'
                )
    return _close(parts)


def draw_line(
    title: str, days: int, points: Sequence[Point], objective: float | None, lowest: float, highest: float, unit: str
) -> str:
    """One value by day, and the line that it must not cross. Axis from ``lowest`` to ``highest``."""
    span = (highest - lowest) or 1.0

    def place(day: float, value: float) -> str:
        x = _LEFT + (day - 0.5) * (WIDTH - _LEFT - _RIGHT) / days
        share = min(max((value - lowest) / span, 0.0), 1.0)
        return f"{x:.1f},{HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM):.1f}"

    parts = [_frame(title, days, f"{highest:.4g}{unit}", f"{lowest:.4g}{unit}")]
    if objective is not None:
        start, end = place(0.5, objective), place(days + 0.5, objective)
        parts.append(
            f'<polyline points="{start} {end}" stroke="{COLOURS["objective"]}" stroke-dasharray="5 4" fill="none">'
            f"<title>promised: {objective:.4g}{escape(unit)}</title></polyline>"
        )
    path = " ".join(place(day, value) for day, value in points)
    parts.append(f'<polyline points="{path}" stroke="{COLOURS["line"]}" stroke-width="2" fill="none"/>')
    for day, value in points:
        x, _, y = place(day, value).partition(",")
        parts.append(
            f'<circle cx="{x}" cy="{y}" r="2.5" fill="{COLOURS["line"]}">'
            f"<title>day {day:.0f}: {value:.6g}{escape(unit)}</title></circle>"
        )
    return _close(parts)


def _frame(title: str, days: int, top: str, bottom: str) -> str:
    width = (WIDTH - _LEFT - _RIGHT) / days
    ticks = "".join(
        f'<text x="{_LEFT + (day - 0.5) * width:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{day}</text>'
        for day in range(1, days + 1)
        if day == 1 or day % 5 == 0
    )
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}"><path d="M{_LEFT} {_TOP}V{HEIGHT - _BOTTOM}H{WIDTH - _RIGHT}" class="axis"/>'
        f'<text x="{_LEFT - 6}" y="{_TOP + 8}" text-anchor="end">{escape(top)}</text>'
        f'<text x="{_LEFT - 6}" y="{HEIGHT - _BOTTOM}" text-anchor="end">{escape(bottom)}</text>{ticks}'
    )


def _close(parts: Sequence[str]) -> str:
    return "".join(parts) + "</svg></figure>"
