"""The guides' commands are real: Helm's are run or rendered, kubectl's name what there is, tables say what happens."""

import json
import re
import shlex
import shutil
import subprocess
from typing import Any

import pytest

from tests.chart.test_commands import parse
from tests.support.chart import CHART, FULLNAME, HELM_3, HELM_4, Rendered, render, run_helm
from tests.support.chart_combinations import merge

ROOT = CHART.parents[1]
GUIDE = (CHART / "README.md").read_text()
DEPLOYING = (ROOT / "deploy" / "README.md").read_text()
COMMANDS = [
    line
    for text in (GUIDE, DEPLOYING)
    for block in re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]
HELM = [line for line in COMMANDS if line.startswith("helm ")]
KUBECTL = [line for line in COMMANDS if line.startswith("kubectl ")]


def test_the_guides_have_commands_of_each_kind():
    programs = {line.split()[0] for line in COMMANDS}
    assert programs == {"helm", "kubectl", "docker", "for", "deploy/build-image.sh"}


@pytest.mark.parametrize("helm", [HELM_3, HELM_4])
@pytest.mark.parametrize("line", sorted(set(HELM)))
def test_helms_commands(helm, line, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = shlex.split(line)[1:]
    match words[0]:
        case "template" | "upgrade":
            # Without a cluster: rendered with the same options; it cannot be asked whether it has KEDA.
            rest = [word for word in words[1:] if word != "--install"]
            done = run_helm(helm, "template", *rest, "--api-versions", "keda.sh/v1alpha1")
            assert "kind: Deployment" in done.stdout
        case _:
            done = run_helm(helm, *words, "--help")
            assert all(f"{word} " in done.stdout for word in words if word.startswith("--"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("line", [line for line in KUBECTL if " create " in line])
def test_kubectls_secrets(line):
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl here")
    done = subprocess.run(("bash", "-c", line), capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    if " secret " in line:
        name = re.search(r"generic (\S+)", line)[1]
        text = render(files=["values-prod.yaml"]).text
        assert re.search(rf"\b{name}\b", text), f"values-prod.yaml does not use {name}"


def test_what_kubectl_is_told_of_is_there():
    kinds = {"deployment": "Deployment", "service": "Service", "scaledobject": "ScaledObject", "job": "Job"}
    made = {(each["kind"], each["metadata"]["name"]) for each in render(files=["values-prod.yaml"]).objects}
    named = re.findall(r"\b(deployment|service|scaledobject|job)/([a-z-]+)", GUIDE)
    named += [("service", name) for name in re.findall(r"Service `([a-z-]+)`", GUIDE)]
    assert len(named) >= 8
    assert [each for each in named if (kinds[each[0]], each[1]) not in made] == []
    for line in KUBECTL:
        if " exec " in line:
            parse(shlex.split(line.partition(" -- ")[2])[1:])


def test_composes_commands():
    (line,) = (line for line in COMMANDS if " exec gateway sluice " in line)
    parse(shlex.split(line.partition(" exec gateway sluice ")[2]))
    assert all("--file deploy/compose.yaml" in line for line in COMMANDS if line.startswith("docker"))
    (loop,) = (line for line in COMMANDS if line.startswith("for "))
    written = set(re.match(r"for name in (.*?);", loop)[1].split())
    assert written == set(re.findall(r"(?<!\$)\$\{(\w+)", (ROOT / "deploy" / "compose.yaml").read_text()))


def test_what_is_linked_and_named_exists():
    for text, folder in ((GUIDE, CHART), (DEPLOYING, ROOT / "deploy")):
        for link in re.findall(r"\]\(([^)#]+)\)", text):
            assert (folder / link).exists(), link
        for path in re.findall(r"`(deploy/[\w./-]+)`", text):
            assert (ROOT / path).exists(), path


def test_the_grace_is_as_said():
    said = re.search(r"With the defaults that is (\d+) s", GUIDE)[1]
    spec = render().one("Deployment", "-gateway")["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] == int(said)


# ------------------------------------------------------------------------------------------------ what restarts

BASE: dict[str, Any] = {
    "scaler": {"enabled": True},
    "prober": {"enabled": True, "keysSecret": "probes"},
    "worker": {"autoscaling": {"mode": "keda"}},
}
TENANT = {"id": "acme", "tier": "default"}
CHANGES: dict[str, Any] = {
    "settings.limits.queue_ttl_s": 3,
    "settings.tenants": [TENANT],
    "settings.tiers.default.tpot_s": 0.04,
    "gateway.replicas": 4,
    "gateway.resources.requests.cpu": "2",
    "image.tag": "0.2.0",
    "worker.image.tag": "0.2.0",
    "worker.runningRequests": 128,
    "worker.kvCacheDtype": "fp8",
    "worker.autoscaling.maxReplicas": 9,
    "drain.seconds": 900,
    "networkPolicy.enabled": False,
    "monitoring.interval": "30s",
}
PARTS = ("gateway", "worker", "scaler", "prober")
ROWS = re.findall(r"^\| (`[\w.]+`|the chart's version alone) \|((?: (?:yes|no) \|){4})$", GUIDE, re.MULTILINE)


def templates(values: dict[str, Any]) -> dict[str, str]:
    rendered = render(values)
    return {
        part: json.dumps(rendered.one("Deployment", f"{FULLNAME}-{part}")["spec"]["template"], sort_keys=True)
        for part in PARTS
    }


def test_the_table_has_every_change_that_is_tried():
    assert {name.strip("`") for name, _ in ROWS} == {*CHANGES, "the chart's version alone"}


@pytest.mark.parametrize(("name", "cells"), ROWS)
def test_what_restarts_on_a_change(name, cells, tmp_path):
    said = dict(zip(PARTS, (cell.strip() == "yes" for cell in cells.strip("| ").split("|")), strict=True))
    before = templates(BASE)
    if name.startswith("`"):
        change: Any = CHANGES[name.strip("`")]
        for key in reversed(name.strip("`").split(".")):
            change = {key: change}
        after = templates(merge(BASE, change))
    else:
        copy = tmp_path / "sluice"
        shutil.copytree(CHART, copy)
        meta = copy / "Chart.yaml"
        meta.write_text(re.sub(r"^version: .*$", "version: 9.9.9", meta.read_text(), flags=re.MULTILINE))
        values = tmp_path / "values.json"
        values.write_text(json.dumps(BASE))
        apis = ("--api-versions", "keda.sh/v1alpha1")
        done = run_helm(HELM_4, "template", FULLNAME, str(copy), "-n", "serving", *apis, "--values", str(values))
        assert "9.9.9" in done.stdout
        again = Rendered(done.stdout)
        after = {
            part: json.dumps(again.one("Deployment", f"{FULLNAME}-{part}")["spec"]["template"], sort_keys=True)
            for part in PARTS
        }
    assert {part: before[part] != after[part] for part in PARTS} == said
