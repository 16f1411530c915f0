"""Draws the answer of ``sluice plan`` as SVG: what is met over how many workers there are."""

from service.slo.planning import Answer

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 640, 320, 64, 40, 24, 16


def draw(found: Answer) -> str:
    """One picture, by itself."""
    first, last = found.curve[0][0], found.curve[-1][0]
    lowest = min(0.95, min(met for _, met in found.curve if met > 0.5) if found.curve[-1][1] > 0.5 else 0.0)

    def place(workers: float, met: float) -> tuple[float, float]:
        x = _LEFT + (workers - first) / max(last - first, 1) * (_WIDTH - _LEFT - _RIGHT)
        y = _HEIGHT - _BOTTOM - max(met - lowest, 0.0) / (1.0 - lowest) * (_HEIGHT - _BOTTOM - _TOP)
        return round(x, 1), round(y, 1)

    path = " ".join(f"{x},{y}" for x, y in (place(workers, met) for workers, met in found.curve))
    wanted = found.wanted
    x, y = place(wanted.workers, wanted.attainment)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="16">met within contracts over workers that are always there</text>',
        *(_level(level, place(first, level)[1]) for level in (0.95, 0.99, 0.995, 0.999) if level >= lowest),
        f'<polyline points="{path}" fill="none" stroke="#2563a8" stroke-width="2"/>',
        f'<circle cx="{x}" cy="{y}" r="5" fill="#c8403a"><title>{wanted.workers} workers</title></circle>',
        f'<text x="{x + 8}" y="{y + 16}">{wanted.workers} workers: {wanted.attainment:.2%}</text>',
        f'<text x="{_LEFT}" y="{_HEIGHT - 12}">{first} workers</text>',
        f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 12}" text-anchor="end">{last} workers</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _level(level: float, y: float) -> str:
    line = f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}" stroke="#dddddd"/>'
    return f'{line}<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{level:.1%}</text>'
