"""Figures, rules and dashboards: made where the Prometheus operator is, found by its labels, named as the rules ask."""

import json
import re

import yaml

from tests.support.chart import CHART, KEDA, MONITORING, render

KINDS = ("ServiceMonitor", "PodMonitor", "PrometheusRule")
RULES = sorted((CHART / "files" / "rules").glob("*.yaml"))
DASHBOARDS = sorted((CHART / "files" / "dashboards").glob("*.json"))


def test_without_the_operator_nothing_of_its_kinds():
    assert [each for kind in KINDS for each in render(apis=()).find(kind)] == []
    assert [each for kind in KINDS for each in render(apis=(KEDA,)).find(kind)] == []
    assert render(apis=(MONITORING,)).find("ServiceMonitor") != []


def test_each_can_be_left_out():
    off = {"serviceMonitor": {"enabled": False}, "podMonitor": {"enabled": False}, "rules": {"enabled": False}}
    assert [each for kind in KINDS for each in render({"monitoring": off}).find(kind)] == []


def test_the_operator_finds_them_by_its_labels():
    rendered = render({"monitoring": {"labels": {"release": "prom"}}})
    for kind in KINDS:
        for each in rendered.find(kind):
            assert each["metadata"]["labels"]["release"] == "prom"


def test_gateways_are_asked_at_the_admin_port():
    rendered = render()
    monitor = rendered.one("ServiceMonitor", "-gateway")["spec"]
    (endpoint,) = monitor["endpoints"]
    assert (endpoint["port"], endpoint["path"], endpoint["interval"]) == ("admin", "/metrics", "15s")
    matching = [
        each["metadata"]["name"]
        for each in rendered.find("Service")
        if monitor["selector"]["matchLabels"].items() <= each["metadata"]["labels"].items()
    ]
    assert matching == ["sluice-admin"]


def test_workers_are_asked_pod_by_pod():
    rendered = render()
    monitor = rendered.one("PodMonitor", "-worker")["spec"]
    template = rendered.one("Deployment", "-worker")["spec"]["template"]
    assert monitor["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert endpoint["port"] == template["spec"]["containers"][0]["ports"][0]["name"]


def test_jobs_are_called_what_the_rules_call_them():
    rendered = render()
    jobs = {
        relabeling["replacement"]
        for kind, key in (("ServiceMonitor", "endpoints"), ("PodMonitor", "podMetricsEndpoints"))
        for each in rendered.find(kind)
        for endpoint in each["spec"][key]
        for relabeling in endpoint.get("relabelings", ())
        if relabeling["targetLabel"] == "job"
    }
    asked = {job for path in RULES for job in re.findall(r'job="([^"]+)"', path.read_text())}
    assert jobs == {"sluice-gateway", "sluice-worker"}
    assert asked <= jobs


def test_every_file_of_rules_is_one_object():
    rendered = render({"prober": {"enabled": True, "keysSecret": "probes"}})
    made = {each["metadata"]["name"]: each["spec"] for each in rendered.find("PrometheusRule")}
    assert made == {f"sluice-{path.stem}": yaml.safe_load(path.read_text()) for path in RULES}


def test_every_dashboard_is_one_config_map():
    found = [each for each in render().find("ConfigMap") if "dashboard" in each["metadata"]["name"]]
    assert [each["metadata"]["labels"]["grafana_dashboard"] for each in found] == ["1"] * len(DASHBOARDS)
    assert [json.loads(text) for each in found for text in each["data"].values()] == [
        json.loads(path.read_text()) for path in DASHBOARDS
    ]
    assert len(render({"monitoring": {"dashboards": {"enabled": False}}}).find("ConfigMap")) == 1
