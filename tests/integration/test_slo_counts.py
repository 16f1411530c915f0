"""A real gateway's events, budgets and exclusions."""

import time

import httpx
import pytest
import yaml

from tests.support.service_process import KEY, MODEL, hash_of, request_body, run_gateway, run_worker
from tests.support.telemetry import read_samples, value_of

pytestmark = pytest.mark.integration
PROBE_KEY = "sk-sluice-ProbeProbeProbeProbeProbeProbePr"
GOLD = {"rank": 0, "availability": 0.999, "attainment": 0.99, "ttft": {4096: 30.0}, "tpot_s": 30.0}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slo")
    tenants = [
        {"id": "acme", "tier": "gold", "keys": [hash_of(KEY)]},
        {"id": "prober", "tier": "gold", "synthetic": True, "keys": [hash_of(PROBE_KEY)]},
    ]
    with (
        run_worker(folder, "instant") as worker,
        run_gateway(folder, [worker], tiers={"gold": GOLD}, tenants=tenants) as gateway,
    ):
        yield gateway


def send(gateway, key=KEY, body=None):
    headers = {"authorization": f"Bearer {key}"}
    url = f"{gateway.url}/v1/chat/completions"
    return httpx.post(url, json=body or request_body(4), headers=headers, trust_env=False, timeout=20)


def read_events(gateway):
    samples = read_samples(httpx.get(f"{gateway.admin_url}/metrics", trust_env=False, timeout=10).content)
    return {
        (slo, result): value_of(samples, "sluice_slo_events_total", tier="gold", model=MODEL, slo=slo, result=result)
        for slo in ("availability", "ttft", "tpot", "all")
        for result in ("good", "bad", "excluded")
    }


def grown(gateway, before):
    return {key: value - before[key] for key, value in read_events(gateway).items() if value != before[key]}


def test_a_stream_that_meets_everything_is_good_four_times(gateway):
    before = read_events(gateway)
    assert send(gateway).status_code == 200
    assert grown(gateway, before) == {(slo, "good"): 1 for slo in ("availability", "ttft", "tpot", "all")}


def test_a_bad_body_is_the_clients_own(gateway):
    before = read_events(gateway)
    assert send(gateway, body={"model": "other"}).status_code == 404
    assert grown(gateway, before) == {(slo, "excluded"): 1 for slo in ("availability", "ttft", "tpot", "all")}


def test_a_probe_is_served_and_counted_as_excluded(gateway):
    before = read_events(gateway)
    assert send(gateway, PROBE_KEY).status_code == 200
    assert grown(gateway, before) == {(slo, "excluded"): 1 for slo in ("availability", "ttft", "tpot", "all")}


def test_announced_maintenance_excludes_from_the_reload_on(gateway):
    settings = yaml.safe_load(gateway.config.read_text())
    window = {"start": "2020-01-01T00:00:00Z", "end": "2100-01-01T00:00:00Z", "reason": "a test"}
    text = yaml.safe_dump(settings)
    try:
        lines = "".join(f"    {name}: {value}\n" for name, value in window.items()).replace("    ", "  - ", 1)
        gateway.config.write_text(f"{text}maintenance:\n{lines}")
        answer = gateway.admin("POST", "/admin/v1/config/reload")
        assert answer.json() == {"status": "applied", "needs_restart": []}
        before = read_events(gateway)
        assert send(gateway).status_code == 200
        assert grown(gateway, before) == {(slo, "excluded"): 1 for slo in ("availability", "ttft", "tpot", "all")}
        assert "sluice_maintenance 1.0" in httpx.get(f"{gateway.admin_url}/metrics", trust_env=False).text
        shown = gateway.admin("GET", "/admin/v1/config").json()["settings"]["maintenance"]
        assert [one["reason"] for one in shown] == ["a test"]
    finally:
        gateway.config.write_text(text)
        gateway.admin("POST", "/admin/v1/config/reload")
    before = read_events(gateway)
    send(gateway)
    assert grown(gateway, before)["all", "good"] == 1


def test_operators_see_what_is_left_of_each_budget(gateway):
    send(gateway)
    until = time.monotonic() + 10
    while True:
        budgets = gateway.admin("GET", "/admin/v1/state").json()["budgets"]
        if budgets[0]["burn_rates"]["5m"] is not None:
            break
        assert time.monotonic() < until, budgets
        time.sleep(0.2)
    assert [one["slo"] for one in budgets] == ["availability", "ttft", "tpot", "all"]
    assert budgets[0]["budget_left_ratio"] == 1.0
    assert budgets[0]["burning"] == []
    text = httpx.get(f"{gateway.admin_url}/metrics", trust_env=False).text
    assert 'sluice_slo_burn_rate{slo="availability",tier="gold",window="1h"} 0.0' in text
