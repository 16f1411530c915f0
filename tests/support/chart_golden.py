"""Keeps what the example values render to: ``python -m tests.support.chart_golden`` writes it."""

import re

from tests.support.chart import CHART, render

FOLDER = CHART.parents[1] / "tests" / "chart" / "golden"
COPIED = ("# Source: sluice/templates/slo/", "# Source: sluice/templates/prober/configmap.yaml")
GOLDEN = {name: FOLDER / f"{name}.yaml" for name in ("dev", "prod")}


def normalise(text: str) -> str:
    """Without what differs by chance (generated secrets) or by Helm's version (blank lines), and without rules and
    dashboards, which are files of the chart as they stand."""
    text = re.sub(r'^(  (?:admin-token|cache-salt)): "[A-Za-z0-9+/=]{64}"$', r'\1: "CHANCE"', text, flags=re.MULTILINE)
    text = re.sub(r"\n{2,}", "\n", text)
    return "".join(part for part in re.split(r"(?m)^(?=---\n)", text) if "templates/slo/" not in part[:80])


def render_golden(name: str) -> str:
    """The chart with the example values, in a cluster that has all operators; without what is copied from slo/."""
    objects = re.split(r"^---\n", normalise(render(files=[f"values-{name}.yaml"]).text), flags=re.MULTILINE)
    return "---\n".join(each for each in objects if not each.startswith(COPIED))


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each, path in GOLDEN.items():
        path.write_text(render_golden(each))
