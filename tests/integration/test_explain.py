"""A running gateway says why: served, expired, refused; brownout by an operator; its journal is played again."""

import concurrent.futures
import contextlib
import json
import os
import subprocess
import sys

import httpx
import pytest
import yaml

from tests.support.service_process import (
    KEY,
    MODEL,
    SUSPENDED_KEY,
    TOKEN,
    hash_of,
    request_body,
    run_gateway,
    run_worker,
)

pytestmark = pytest.mark.integration

FLEX_KEY = "sk-sluice-FlexFlexFlexFlexFlexFlexFlexFlex"
PROMPT = "CANARY-PROMPT-91bc"
TIERS = {
    "priority": {"rank": 0, "availability": 0.99, "attainment": 0.9, "ttft": {100000: 30.0}, "queue_ttl_s": 0.3},
    "flex": {"rank": 1, "best_effort": True},
}
TENANTS = [
    {"id": "acme", "tier": "priority", "keys": [hash_of(KEY)]},
    {"id": "spare", "tier": "flex", "keys": [hash_of(FLEX_KEY)]},
]


def sluice(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "service", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SLUICE_ADMIN_TOKEN": TOKEN},
    )


def ask(gateway, key=KEY, tokens=4, **headers):
    body = {**request_body(tokens), "messages": [{"role": "user", "content": PROMPT}]}
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(
        f"{gateway.url}/v1/chat/completions",
        json=body,
        headers={"authorization": f"Bearer {key}", **names},
        trust_env=False,
        timeout=30,
    )


def explain(gateway, request_id, *more):
    return sluice("explain", request_id, "--admin", gateway.admin_url, *more)


@contextlib.contextmanager
def run_both(folder):
    limits = {"requests_per_worker": 1, "drain_delay_s": 0.0, "grace_s": 10.0}
    logs = {"level": "debug", "requests": "all", "journal": str(folder / "journal.jsonl")}
    with (
        run_worker(folder) as worker,
        run_gateway(folder, [worker], tiers=TIERS, tenants=TENANTS, limits=limits, logs=logs) as gateway,
    ):
        yield gateway


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    with run_both(tmp_path_factory.mktemp("explain")) as gateway:
        yield gateway


def test_served_by_the_clients_id_and_by_ours(gateway):
    assert ask(gateway, x_request_id="my-id.7").headers["x-request-id"] == "my-id.7"
    told = explain(gateway, "my-id.7")
    assert told.returncode == 0, told.stderr
    for words in ("(the client calls it my-id.7)", "tenant acme, tier priority", "guaranteed, of tier rank 0",
                  "promise: first token by +30.000 s", "sent to worker 127.0.0.1:", "ended: served",
                  "4 tokens of answer", "outcome: completed, HTTP status 200"):  # fmt: skip
        assert words in told.stdout
    ours = json.loads(explain(gateway, "my-id.7", "--json").stdout)["request_id"]
    assert ours in told.stdout
    assert explain(gateway, ours).returncode == 0
    line = next(json.loads(one) for one in gateway.text().splitlines() if f'"request_id": "{ours}"' in one)
    assert line["client_request_id"] == "my-id.7"


def test_queued_and_expired(gateway):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        long = pool.submit(ask, gateway, tokens=300)
        while not gateway.admin("GET", "/admin/v1/queues").json()["in_flight_requests"]:
            pass
        late = ask(gateway)
        long.result()
    assert late.status_code == 503
    told = explain(gateway, late.headers["x-request-id"])
    assert "queued: 1 wait, itself included" in told.stdout
    assert "refused (expired): its time in the queue was up" in told.stdout
    assert "advice: try again after" in told.stdout
    assert "outcome: expired, HTTP status 503, for want of capacity" in told.stdout


def test_brownout_refuses_best_effort_and_outlives_a_reload(gateway):
    def force(body, token=TOKEN):
        headers = {"authorization": f"Bearer {token}"}
        return httpx.post(f"{gateway.admin_url}/admin/v1/brownout", content=body, headers=headers, trust_env=False)

    for body in (b"", b"x", b"[]", b"{}", b'{"level": 4}', b'{"level": -1}', b'{"level": true}', b'{"level": 1.0}',
                 b'{"level": 1, "x": 2}'):  # fmt: skip
        assert force(body).status_code == 422, body
    assert force(b'{"level": 1}', KEY).status_code == 401
    assert ask(gateway, FLEX_KEY).status_code == 200
    assert force(b'{"level": 1}').json() == {"brownout_level": 1}
    settings = yaml.safe_load(gateway.config.read_text())
    settings["limits"]["queued_requests_max"] = 77
    gateway.config.write_text(yaml.safe_dump(settings))
    assert gateway.admin("POST", "/admin/v1/config/reload").status_code == 200
    assert gateway.admin("GET", "/admin/v1/state").json()["brownout_level"] == 1
    assert "\nsluice_brownout_level 1.0\n" in gateway.admin("GET", "/metrics").text
    refused = ask(gateway, FLEX_KEY)
    assert refused.status_code == 503
    assert ask(gateway).status_code == 200
    told = explain(gateway, refused.headers["x-request-id"])
    assert "judged: best effort" in told.stdout
    assert "refused (shed): it is not guaranteed" in told.stdout
    assert force(b'{"level": 0}').status_code == 200
    assert ask(gateway, FLEX_KEY).status_code == 200


def test_refused_at_the_edge(gateway):
    answer = httpx.post(f"{gateway.url}/v1/chat/completions", content=b"{", headers={"authorization": f"Bearer {KEY}"},
                        trust_env=False)  # fmt: skip
    told = explain(gateway, answer.headers["x-request-id"])
    assert "outcome: malformed, HTTP status 400, the client's doing" in told.stdout


def test_unknown(gateway):
    told = explain(gateway, "nobody")
    assert (told.returncode, told.stdout) == (1, "")
    assert "Nothing is remembered of 'nobody'" in told.stderr
    told = sluice("explain", "x", "--admin", "http://127.0.0.1:1")
    assert told.returncode == 1
    assert "does not answer" in told.stderr


def test_the_route(gateway):
    path = "/admin/v1/decisions"
    for token in (None, "wrong", KEY):
        assert gateway.admin("GET", path, token).status_code == 401
    ask(gateway)
    shown = gateway.admin("GET", f"{path}?limit=2").json()
    assert len(shown["decisions"]) == 2
    assert shown["decisions"][0]["at"] >= shown["decisions"][1]["at"]
    for limit in ("0", "x", "-1", "1001", "12345678"):
        assert gateway.admin("GET", f"{path}?limit={limit}").status_code == 422
    assert gateway.admin("GET", f"{path}?request_id=nobody").status_code == 404


def test_the_journal_plays_again_and_holds_no_secret(tmp_path):
    with run_both(tmp_path) as gateway:
        check_journal(gateway, tmp_path / "journal.jsonl")


def check_journal(gateway, journal):
    with httpx.Client(trust_env=False) as client:
        for key in (KEY, SUSPENDED_KEY):
            headers = {"authorization": f"Bearer {key}", "x-request-id": key, "x-sluice-session": key}
            client.post(f"{gateway.url}/v1/chat/completions", json={"model": MODEL}, headers=headers)
            ask(gateway, KEY, x_request_id=key, x_sluice_session=key)
    shown = gateway.admin("GET", "/admin/v1/decisions?limit=1000").text
    ours = {one["event"][1]["request"]["request_id"] for one in json.loads(shown)["decisions"]
            if one["event"][0] == "RequestArrived"}  # fmt: skip
    assert len(ours) >= 3
    shown += "".join(gateway.admin("GET", f"/admin/v1/decisions?request_id={one}").text for one in ours)
    shown += explain(gateway, KEY).stderr.replace(repr(KEY), "")
    gateway.signal(15)
    gateway.process.wait(20)
    assert "dispatch" in shown.lower()
    played = sluice("replay", str(journal), "--json")
    assert played.returncode == 0, played.stdout
    assert json.loads(played.stdout)["equal"] is True
    for secret in (KEY, SUSPENDED_KEY, FLEX_KEY, PROMPT, TOKEN):
        assert secret not in shown
        assert secret not in journal.read_text()
        assert secret not in gateway.text()
