"""Every values file lints and renders with both Helms, to objects that every supported Kubernetes accepts."""

import pytest

from tests.support.chart import CHART, FULLNAME, HELM_3, HELM_4, NAMESPACE, find_faults, need_crds, render, run_helm
from tests.support.chart_golden import GOLDEN, normalise, render_golden

FILES = sorted(path.name for path in CHART.glob("values*.yaml"))
HELMS = (HELM_3, HELM_4)


@pytest.mark.parametrize("helm", HELMS)
@pytest.mark.parametrize("name", FILES)
def test_lint_is_content(helm, name):
    done = run_helm(helm, "lint", "--strict", str(CHART), "--values", str(CHART / name), "--namespace", NAMESPACE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout
    assert "[ERROR]" not in done.stdout


@pytest.mark.parametrize("name", FILES)
def test_both_helms_render_the_same(name):
    first, second = (normalise(render(files=[name], helm=helm).text) for helm in HELMS)
    assert first == second


@pytest.mark.parametrize("name", FILES)
def test_every_object_is_valid_in_every_kubernetes(name):
    faults = {
        f"{each['kind']}/{each['metadata']['name']}": found
        for each in render(files=[name]).objects
        if (found := find_faults(each))
    }
    assert faults == {}


def test_custom_resources_are_judged():
    need_crds()
    broken = render(files=["values-prod.yaml"]).one("ScaledObject") | {"spec": {"triggers": [{"type": "x"}], "typo": 1}}
    assert len(find_faults(broken)) >= 3


def test_a_typo_in_a_core_object_is_a_fault():
    service = render().find("Service", f"{FULLNAME}-admin")[0]
    assert find_faults(service) == []
    assert len(find_faults({**service, "spec": {**service["spec"], "clusterip": "None"}})) == 7


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_golden_output(name):
    assert GOLDEN[name].read_text() == render_golden(name), "python -m tests.support.chart_golden writes it anew"
