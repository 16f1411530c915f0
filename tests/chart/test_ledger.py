"""Where the record is kept, and the job that brings its tables forward before an upgrade."""

import yaml

from tests.support.chart import render

URL = "postgresql://sluice@db.databases.svc/sluice"
STORED = {"settings": {"ledger": URL}, "secrets": {"postgres": {"existingSecret": "db", "key": "pw"}}}


def settings(values=None):
    return yaml.safe_load(render(values).one("ConfigMap", "-gateway")["data"]["sluice.yaml"])


def test_the_migration_is_a_hook_before_everything_else():
    rendered = render(STORED)
    job, policy = rendered.one("Job"), rendered.one("NetworkPolicy", "-migrate")
    for each in (job, policy):
        assert each["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    weights = [int(each["metadata"]["annotations"]["helm.sh/hook-weight"]) for each in (policy, job)]
    assert weights == sorted(weights)
    spec = job["spec"]["template"]["spec"]
    assert spec["containers"][0]["args"] == ["migrate", f"--ledger={URL}"]
    assert spec["containers"][0]["env"][0]["valueFrom"]["secretKeyRef"] == {"name": "db", "key": "pw"}
    # What the release makes is not there yet when a hook runs.
    assert "serviceAccountName" not in spec
    assert "volumes" not in spec


def test_the_job_may_reach_what_gateways_may():
    rule = {"ports": [{"port": 5432, "protocol": "TCP"}]}
    policy = render({**STORED, "networkPolicy": {"gatewayEgress": [rule]}}).one("NetworkPolicy", "-migrate")["spec"]
    assert policy["egress"][1:] == [rule]
    assert policy["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "migrate"


def test_there_is_no_job_where_there_is_nothing_to_migrate():
    assert render().find("Job") == []
    assert render({**STORED, "migrations": {"enabled": False}}).find("Job") == []


def test_where_the_ledger_is_kept():
    assert settings(STORED)["ledger"] == URL
    assert "ledger" not in settings()
    none = settings({"keepLedger": False})
    assert "ledger" in none
    assert none["ledger"] is None
