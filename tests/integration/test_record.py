"""The record of a real gateway against its client's own log: reconciled, through deaths, without its database."""

import asyncio
import datetime
import json
import sqlite3
import subprocess
import sys
import time

import httpx
import pytest
import yaml

from loadtests.live.record_check import die_often, go_without, lock_sqlite, reconcile
from loadtests.live.record_client import CALLERS, Kind, LoggingClient
from loadtests.live.record_rig import open_rig

pytestmark = pytest.mark.integration
FIRST_PORT = 26500


def quiet(line):
    """Progress is for people."""


def test_client_counters_and_ledger_agree_on_every_count(tmp_path):
    with open_rig(tmp_path, FIRST_PORT) as rig:
        finding = asyncio.run(reconcile(rig, 600, 1, quiet))
    assert finding.faults == []
    assert finding.figures["requests"] >= 600
    assert finding.figures["missing"] == finding.figures["double"] == finding.figures["unknown"] == 0
    outcomes = finding.figures["outcomes"]
    assert {"completed", "client_gone", "malformed", "unauthenticated", "forbidden", "too_large"} <= outcomes.keys()
    assert outcomes.keys() & {"worker_failed", "stream_broken", "worker_unreachable"}


def test_kill_9_loses_nothing_that_was_settled_and_forgives_nothing_that_was_not(tmp_path):
    with open_rig(tmp_path, FIRST_PORT + 40) as rig:
        finding = asyncio.run(die_often(rig, 4, quiet))
    assert finding.faults == []
    assert finding.figures["settled_before"] > 20
    assert finding.figures["under_way"] > 4
    assert finding.figures["died_entries"] >= finding.figures["under_way"]


def test_a_database_that_is_away_costs_no_request_and_no_entry(tmp_path):
    with open_rig(tmp_path, FIRST_PORT + 80) as rig:
        finding = asyncio.run(go_without(rig, 8.0, *lock_sqlite(tmp_path / "ledger.db"), quiet))
    assert finding.faults == []
    assert finding.figures["waiting_at_the_end"] > 20


def test_a_report_of_what_a_gateway_did_and_what_happens_to_a_forged_one(tmp_path):
    with open_rig(tmp_path, FIRST_PORT + 120, workers=1) as rig:
        client = LoggingClient(rig.port, CALLERS, 3)
        asyncio.run(client.run(40, 4, {Kind.STREAM: 3, Kind.MALFORMED: 1}))
        rig.await_drained()
        rig.ask_gateway_to_leave()
        rig.await_end()
    month = datetime.datetime.now(datetime.UTC).strftime("%Y-%m")
    command = [sys.executable, "-m", "service", "report", "--month", month, "--ledger", rig.url]
    told = json.loads(subprocess.run([*command, "--format", "json"], capture_output=True, check=True).stdout)
    assert sum(account["requests"] for account in told["accounts"]) == 40
    text = subprocess.run([*command, "--verify", "--tenant", "acme"], capture_output=True, text=True, check=True)
    assert "verified: 40 entries of 1 chains, 0 faults" in text.stderr
    assert "umbra" not in text.stdout
    out = tmp_path / "acme.csv"
    subprocess.run([*command, "--format", "csv", "-o", str(out)], capture_output=True, check=True)
    assert out.read_text().startswith("month,tenant,tier,requests,")
    with sqlite3.connect(tmp_path / "ledger.db") as database:
        database.execute(f"update entries_{month.replace('-', '_')} set standing = 'met' where standing = 'excluded'")
    forged = subprocess.run([*command, "--verify"], capture_output=True, text=True, check=False)
    assert forged.returncode == 1
    assert "is not what was recorded" in forged.stderr


def test_a_tenant_sees_its_own_contract_and_attainment(tmp_path):
    with open_rig(tmp_path, FIRST_PORT + 140, workers=1) as rig:
        client = LoggingClient(rig.port, CALLERS[:2], 3)
        asyncio.run(client.run(30, 4, {Kind.STREAM: 2, Kind.MALFORMED: 1}))
        mine = [seen for seen in client.sightings if seen.tenant == "acme"]
        url = f"http://127.0.0.1:{rig.port}/v1/sla"
        headers = {"authorization": f"Bearer {CALLERS[0].key}"}
        told = {"tiers": {}}
        for _ in range(40):  # the clerk writes once a second, an answer is five seconds old at most
            answer = httpx.get(url, headers=headers, trust_env=False, timeout=10)
            told = answer.json()
            if answer.status_code == 200 and told["tiers"].get("priority", {}).get("requests") == len(mine):
                break
            time.sleep(0.5)
        assert httpx.get(url, trust_env=False).status_code == 401
    assert told["tenant"] == "acme"
    assert told["contract"]["tier"] == "priority"
    assert told["contract"]["availability"] == 0.999
    assert told["contract"]["credits"][0] == {"below": 0.999, "credit": 0.1}
    tier = told["tiers"]["priority"]
    assert tier["requests"] == len(mine)
    assert tier["excluded"] == {"malformed": sum(seen.kind is Kind.MALFORMED for seen in mine)}
    good = sum(seen.complete for seen in mine)
    assert tier["availability"] == {"good": good, "bad": 0, "attained": 1.0, "objective": 0.999, "budget_left": 1.0}
    assert "umbra" not in answer.text


def test_a_second_gateway_on_the_same_spool_is_refused_with_a_word(tmp_path):
    with open_rig(tmp_path, FIRST_PORT + 160, workers=1) as rig:
        settings = yaml.safe_load((tmp_path / "sluice.yaml").read_text())
        other = tmp_path / "other.yaml"
        spool = tmp_path / "spool" / str(rig.port)
        settings["record"]["spool"] = str(tmp_path / "elsewhere")
        settings["listen"] = {"port": rig.port + 10, "admin_port": rig.port + 11}
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / str(rig.port + 10)).symlink_to(spool)
        other.write_text(yaml.safe_dump(settings))
        command = [sys.executable, "-m", "service", "serve", "-c", str(other)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "give this one a spool of its own" in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--month", "2026-13"], "not a month such as 2026-11"),
        (["--month", "2026-11", "--ledger", "oracle://x"], "no database that is known"),
        (["--month", "2026-11", "--ledger", "sqlite:////nowhere/ledger.db"], "there is no ledger at"),
        (["--month", "2026-11", "-c", "/nowhere/sluice.yaml"], "there is no such file"),
    ],
)
def test_a_report_of_nothing_says_what_is_wrong(options, words):
    done = subprocess.run(
        [sys.executable, "-m", "service", "report", *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert words in " ".join(done.stderr.split())
