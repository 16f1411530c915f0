"""The gateway accepts the file that the chart makes for it."""

import pytest
import yaml
from typer.testing import CliRunner

from service.cli.commands import build_app
from service.settings.schema import Settings
from tests.support.chart import CHART, RefusedError, render
from tests.support.chart_files import SCHEMA, list_copies, render_schema

app = build_app()

TENANT = {"id": "acme", "tier": "default", "keys": [{"hash": "sha256:" + "a" * 64, "prefix": "sk-sluice-abcd"}]}
CASES = {
    "defaults": {},
    "dev": "values-dev.yaml",
    "prod": "values-prod.yaml",
    "large numbers": {"settings": {"limits": {"bodies_max_bytes": 1 << 36, "queued_tokens_max": 123_456_789}}},
    "small numbers": {"settings": {"limits": {"retry": {"budget_ratio": 0.000025}}}},
    "lists": {
        "settings": {"tenants": [TENANT, {**TENANT, "id": "b.c-d", "keys": []}], "cors_origins": ["https://a.b"]}
    },
    "credits": {
        "settings": {
            "credits": {"gold": {"0.9995": 0.1, "0.99": 1.0}},
            "tenants": [{**TENANT, "credits": "gold", "contract": {"requests_per_minute": 60, "concurrency": 4}}],
        }
    },
    "redis": {"settings": {"state": "redis://redis:6379/1"}, "gateway": {"replicas": 5}},
    "a tier less": {"settings": {"tiers": {"flex": None}}},
}


def settings_of(case) -> str:
    files = [case] if isinstance(case, str) else []
    values = {} if files else case
    return render(values, files=files).one("ConfigMap", "-gateway")["data"]["sluice.yaml"]


@pytest.mark.parametrize("case", CASES)
def test_sluice_check_is_content(case, tmp_path):
    file = tmp_path / "sluice.yaml"
    file.write_text(settings_of(CASES[case]))
    in_a_pod = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    done = CliRunner().invoke(build_app("check"), ["check", "-c", str(file)], env=in_a_pod)
    assert done.exit_code == 0, done.output


def test_numbers_stay_what_they_were():
    written = yaml.safe_load(settings_of(CASES["large numbers"]))
    assert written["limits"]["bodies_max_bytes"] == 1 << 36
    assert isinstance(written["limits"]["bodies_max_bytes"], int)
    edges = list(written["tiers"]["priority"]["ttft"])
    assert edges == [4096, 32768, 131072, 1048576]


def test_a_gateway_that_cannot_ask_takes_its_part_of_the_workers():
    def assumed(values):
        return yaml.safe_load(settings_of(values))["limits"].get("replicas_assumed")

    redis = {"state": "redis://redis:6379/1"}
    assert assumed({}) is None
    assert assumed(CASES["redis"]) == 5
    scaled = {"autoscaling": {"enabled": True, "maxReplicas": 12}}
    assert assumed({"settings": redis, "gateway": scaled}) == 12
    assert assumed({"settings": {**redis, "limits": {"replicas_assumed": 3}}}) == 3


def test_a_tier_can_be_taken_out():
    assert set(yaml.safe_load(settings_of(CASES["a tier less"]))["tiers"]) == {"priority", "default"}


def test_what_is_written_beside_the_computed_parts_is_kept():
    values = {"settings": {"pool": {"keep_alive_s": 3}, "limits": {"queue_ttl_s": 12}}}
    written = yaml.safe_load(settings_of(values))
    assert written["pool"]["keep_alive_s"] == 3
    assert written["pool"]["service"] == "sluice-workers"
    assert written["limits"]["queue_ttl_s"] == 12
    assert written["limits"]["whole_s"] == 1800


def test_an_own_config_map_replaces_it():
    rendered = render({"existingConfigMap": "mine"})
    assert rendered.find("ConfigMap", "-gateway") == []
    volumes = rendered.one("Deployment", "-gateway")["spec"]["template"]["spec"]["volumes"]
    assert {"name": "config", "configMap": {"name": "mine"}} in volumes


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"settings": {"limits": {"queue_ttl": 3}}}, "queue_ttl"),
        ({"settings": {"limits": {"grace_s": 30}}}, "grace_s"),
        ({"settings": {"tiers": {"gold": {"rang": 0}}}}, "rang"),
        ({"settings": {"tenants": [{**TENANT, "keys": [{"hash": "sk-sluice-secret", "prefix": "x"}]}]}}, "hash"),
        ({"settings": {"listen": {"port": 80}}}, "port"),
        ({"settings": {"modle": "x"}}, "modle"),
    ],
)
def test_a_typo_in_the_settings_is_refused_by_helm(values, said):
    for helm in ("3.17.3", "4.3.1"):
        with pytest.raises(RefusedError, match=said):
            render(values, helm=helm)


def test_the_schema_knows_the_settings_there_are():
    assert SCHEMA.read_text() == render_schema(), "python -m tests.support.chart_files writes it anew"
    assert set(Settings.model_fields) >= {"model", "tiers", "tenants"}


def test_copied_files_are_current():
    there = {path for path in (CHART / "files").rglob("*") if path.is_file()}
    wanted = list_copies()
    assert there == set(wanted)
    assert {path: path.read_text() for path in there} == wanted
