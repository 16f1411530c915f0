"""``sluice contracts check``, and what serve and a reload do with contracts that cannot be kept."""

import json
import subprocess
import sys

import pytest
import yaml

from tests.support.service_process import build_settings, find_ports, hash_of, run_gateway, run_worker

pytestmark = pytest.mark.integration
KEY = "sk-sluice-GoodGoodGoodGoodGoodGoodGoodGood"
TIERS = {"gold": {"rank": 0, "availability": 0.9}}


def sell(rate, **capacity):
    contract = {"worker_seconds_rate": rate, "worker_seconds_burst": 10}
    tenants = [{"id": "acme", "tier": "gold", "contract": contract, "keys": [hash_of(KEY)]}]
    return {"tiers": TIERS, "tenants": tenants, "capacity": {"workers": 3, **capacity}}


def run(*words):
    done = subprocess.run(
        [sys.executable, "-m", "service", *words], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_the_command_proves_or_says_by_how_much(tmp_path):
    path = tmp_path / "sluice.yaml"
    path.write_text(yaml.safe_dump(build_settings([9], *find_ports(2), **sell(1.5))))
    code, out, _ = run("contracts", "check", "-c", str(path))
    assert (code, "everything that is sold can be kept" in out) == (0, True)
    path.write_text(yaml.safe_dump(build_settings([9], *find_ports(2), **sell(2.0))))
    code, out, _ = run("contracts", "check", "-c", str(path), "--json")
    told = json.loads(out)
    assert (code, told["kept"], told["oversold"], told["backed"]) == (1, False, 0.5, 1.5)
    assert "oversold by 0.50 workers" in run("contracts", "check", "-c", str(path))[1]


def test_a_reload_is_warned_of_or_refused(tmp_path):
    with run_worker(tmp_path) as worker, run_gateway(tmp_path, [worker], **sell(2.0)) as gateway:
        assert "oversold by 0.50 workers" in gateway.text()
        measured = run("contracts", "check", "-c", str(gateway.config), "--json")
        assert json.loads(measured[1])["oversold"] == 0.5
        written = yaml.safe_load(gateway.config.read_text())
        gateway.config.write_text(yaml.safe_dump({**written, **sell(2.0, oversold="refuse")}))
        answer = gateway.admin("POST", "/admin/v1/config/reload")
        assert answer.status_code == 422
        assert "oversold by 0.50 workers" in answer.json()["error"]["faults"][0]
        gateway.config.write_text(yaml.safe_dump({**written, **sell(1.5, oversold="refuse")}))
        assert gateway.admin("POST", "/admin/v1/config/reload").status_code == 200


def test_a_gateway_is_not_started_with_what_it_cannot_keep(tmp_path):
    path = tmp_path / "sluice.yaml"
    path.write_text(yaml.safe_dump(build_settings([9], *find_ports(2), **sell(2.0, oversold="refuse"))))
    code, _, err = run("serve", "-c", str(path))
    assert (code, "oversold by 0.50 workers" in err) == (2, True)
