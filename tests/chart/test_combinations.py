"""Forty drawn combinations of values: both Helms render them alike, and every Kubernetes accepts every object.

Each combination is rendered for a Kubernetes of its own in turn; each distinct object is then held to the schemas of
all. Equal objects are judged once.
"""

import json
from typing import Any

import pytest

from tests.support.chart import CHART, HELM_3, HELM_4, KUBERNETES, Rendered, find_faults, need_crds, render, run_helm
from tests.support.chart_combinations import COUNT, SWITCHES, draw, pairs
from tests.support.chart_golden import normalise

DRAWN = draw()


def rendering(index: int, helm: str = HELM_4) -> Rendered:
    return render(DRAWN[index], helm=helm, kube=KUBERNETES[index % len(KUBERNETES)])


@pytest.fixture(scope="module")
def objects() -> dict[str, dict[str, Any]]:
    """Every distinct object of all combinations."""
    return {json.dumps(each, sort_keys=True): each for index in range(COUNT) for each in rendering(index).objects}


@pytest.mark.parametrize("index", range(COUNT))
def test_both_helms_render_the_same(index):
    assert normalise(rendering(index, HELM_3).text) == normalise(rendering(index).text)


@pytest.mark.parametrize("helm", [HELM_3, HELM_4])
@pytest.mark.parametrize("index", range(COUNT))
def test_lint_is_content(index, helm, tmp_path):
    values = tmp_path / "values.json"
    values.write_text(json.dumps(DRAWN[index]))
    done = run_helm(helm, "lint", "--strict", str(CHART), "--values", str(values))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout
    assert "[ERROR]" not in done.stdout


@pytest.mark.parametrize("kubernetes", KUBERNETES)
def test_every_object_is_accepted(objects, kubernetes):
    assert len(objects) > 200
    faults = [
        (each["kind"], each["metadata"]["name"], found)
        for each in objects.values()
        if (found := find_faults(each, (kubernetes,)))
    ]
    assert faults == []


def test_custom_resources_are_among_them(objects):
    need_crds()
    kinds = {each["kind"] for each in objects.values()}
    assert kinds >= {"ScaledObject", "LeaderWorkerSet", "ServiceMonitor", "PodMonitor"}


def test_every_choice_of_every_switch_is_drawn_and_most_pairs_meet():
    met = set()
    chosen: dict[str, set[int]] = {name: set() for name in SWITCHES}
    for values in DRAWN:
        found = {
            name: index
            for name, choices in SWITCHES.items()
            for index, choice in enumerate(choices)
            if choice and includes(values, choice)
        }
        for name, index in found.items():
            chosen[name].add(index)
        met |= pairs(found)
    assert {name: len(indices) for name, indices in chosen.items()} == {
        name: sum(bool(choice) for choice in choices) for name, choices in SWITCHES.items()
    }
    total = sum(
        sum(map(bool, a)) * sum(map(bool, b))
        for n, a in enumerate(SWITCHES.values())
        for b in list(SWITCHES.values())[n + 1 :]
    )
    assert len(met) / total > 0.9


def includes(values: dict[str, Any], part: dict[str, Any]) -> bool:
    """Whether ``values`` say all that ``part`` says."""
    return all(
        key in values and (includes(values[key], value) if isinstance(value, dict) else values[key] == value)
        for key, value in part.items()
    )
