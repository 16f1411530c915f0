"""Keeps what the example values render to: ``python -m tests.support.chart_golden`` writes it."""

import re

from tests.support.chart import CHART, render

FOLDER = CHART.parents[1] / "tests" / "chart" / "golden"
GOLDEN = {name: FOLDER / f"{name}.yaml" for name in ("dev", "prod")}


def normalise(text: str) -> str:
    """Without what differs by chance (generated secrets) or by Helm's version (blank lines)."""
    text = re.sub(r'^(  (?:admin-token|cache-salt)): "[A-Za-z0-9+/=]{64}"$', r'\1: "CHANCE"', text, flags=re.MULTILINE)
    return re.sub(r"\n{2,}", "\n", text)


def render_golden(name: str) -> str:
    """The chart with the example values, in a cluster that has all operators."""
    return normalise(render(files=[f"values-{name}.yaml"]).text)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each, path in GOLDEN.items():
        path.write_text(render_golden(each))
