"""Tenants and keys in a real Redis: made by the command line, followed by every gateway, known when it is away."""

import contextlib
import json
import subprocess
import sys
import time

import httpx
import pytest
import yaml

from tests.support.redis_process import run_redis
from tests.support.service_process import KEY, request_body, run_gateway, run_worker

pytestmark = pytest.mark.integration
TIERS = {"default": {"rank": 0, "availability": 0.9}, "flex": {"rank": 1, "best_effort": True}}


def run(config, *words):
    """Exit code and output of one command."""
    argv = [sys.executable, "-m", "service", *words, "-c", str(config)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def ask(gateway, key):
    with contextlib.suppress(httpx.HTTPError):
        return httpx.post(
            f"{gateway.url}/v1/chat/completions", json=request_body(1, stream=False), timeout=10, trust_env=False,
            headers={"authorization": f"Bearer {key}"},
        ).status_code  # fmt: skip
    return None


def becomes(gateways, key, status, within_s=2.0):
    """Every gateway answers ``status`` within the time; how long it took."""
    began_at = time.monotonic()
    waiting = list(gateways)
    while waiting:
        waiting = [one for one in waiting if ask(one, key) != status]
        length_s = time.monotonic() - began_at
        assert length_s < within_s or not waiting, [ask(one, key) for one in waiting]
    return length_s


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("directory")
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(run_redis(folder, password="right"))
        worker = stack.enter_context(run_worker(folder))
        secrets = {"SLUICE_REDIS_PASSWORD": "right"}
        gateways = [
            stack.enter_context(run_gateway(folder, [worker], secrets, state=redis.url, tiers=TIERS)) for _ in range(2)
        ]
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("SLUICE_REDIS_PASSWORD", "right")
        tenants = folder / "tenants.yaml"
        yield redis, gateways, gateways[0].config, tenants


def put(config, path, **tenant):
    path.write_text(yaml.safe_dump({"tenants": [{"id": "beta", "tier": "default", **tenant}]}))
    code, out, err = run(config, "tenants", "put", str(path))
    assert (code, err) == (0, "")
    return out


def make_key(config, *words):
    code, out, err = run(config, "keys", "new", "--tenant", "beta", "--json", *words)
    assert (code, err) == (0, ""), err
    return json.loads(out)


def test_a_keys_life(service):
    redis, gateways, config, tenants = service
    put(config, tenants)
    made = make_key(config)
    assert becomes(gateways, made["key"], 200) < 2.0
    other = make_key(config)  # several keys for one tenant
    assert becomes(gateways, other["key"], 200) < 2.0

    _, listed, _ = run(config, "keys", "list", "--json")
    rows = json.loads(listed)["keys"]
    assert {row["prefix"] for row in rows if row["tenant"] == "beta"} >= {made["prefix"], other["prefix"]}
    assert made["key"] not in listed
    assert {row["source"] for row in rows} == {"file", "store"}
    assert made["id"] in run(config, "keys", "list")[1]

    code, out, _ = run(config, "keys", "revoke", made["id"])
    assert (code, made["prefix"] in out) == (0, True)
    assert becomes(gateways, made["key"], 401) < 2.0
    assert ask(gateways[0], other["key"]) == 200

    code, out, _ = run(config, "keys", "rotate", other["id"], "--grace", "0", "--json")
    rotated = json.loads(out)
    assert becomes(gateways, rotated["key"], 200) < 2.0
    assert becomes(gateways, other["key"], 401) < 2.0
    stored = redis.say("HGETALL", "sluice:{directory}:records")
    assert rotated["key"] not in stored
    assert rotated["key"][14:] not in stored
    assert all(int(redis.say("PTTL", key)) > 0 for key in redis.say("KEYS", "*").split())


RUBBISH = """
redis.call('HSET', KEYS[1], 'key:\\255', '{}')
redis.call('ZADD', KEYS[2], redis.call('HINCRBY', KEYS[3], 'version', 1), 'key:\\255')
"""


def test_a_record_of_rubbish_keeps_no_other_from_being_followed(service):
    redis, gateways, config, tenants = service
    put(config, tenants)
    redis.say("EVAL", RUBBISH, "3", *[f"sluice:{{directory}}:{name}" for name in ("records", "changes", "head")])
    made = make_key(config)
    assert becomes(gateways, made["key"], 200) < 2.0
    run(config, "keys", "revoke", made["id"])
    assert becomes(gateways, made["key"], 401) < 2.0
    redis.say("EVAL", "redis.call('HDEL', KEYS[1], 'key:\\255')", "1", "sluice:{directory}:records")


def test_a_key_ends_when_it_was_said_to(service):
    _, gateways, config, tenants = service
    put(config, tenants)
    made = make_key(config, "--expires", "3s")
    becomes(gateways, made["key"], 200)
    assert becomes(gateways, made["key"], 401, 6.0) < 6.0
    assert '"state": "expired"' in run(config, "keys", "list", "--json")[1]


def test_a_tenant_is_suspended_and_has_models(service):
    _, gateways, config, tenants = service
    put(config, tenants)
    key = make_key(config)["key"]
    becomes(gateways, key, 200)
    put(config, tenants, suspended=True)
    becomes(gateways, key, 403)
    put(config, tenants, models=["another"])
    becomes(gateways, key, 403)
    put(config, tenants, contract={"requests_per_minute": 1})
    becomes(gateways, key, 429)
    assert "requests_per_minute 1" in run(config, "tenants", "list")[1]
    code, _, _ = run(config, "tenants", "remove", "beta")
    assert code == 0
    becomes(gateways, key, 401)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["keys", "new", "--tenant", "nobody"], "no tenant 'nobody'"),
        (["keys", "new", "--tenant", "acme", "--expires", "soon"], "neither a length"),
        (["keys", "new", "--tenant", "acme", "--expires", "2001-01-01"], "has passed"),
        (["keys", "revoke", "sk-sluice-none"], "there is no key"),
        (["keys", "revoke", KEY[:14]], "stands in the file"),
        (["keys", "revoke", KEY], "never by itself"),
        (["tenants", "remove", "nobody"], "no tenant 'nobody'"),
    ],
)
def test_what_cannot_be_done_is_said_with_its_cure(service, words, said):
    code, _, err = run(service[2], *words)
    assert code == 2
    assert said in err
    assert KEY not in err


def test_faults_in_a_file_of_tenants(service, tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump({"tenants": [
        {"id": "a", "tier": "gold"}, {"id": "acme", "tier": "flex"}, {"id": "b", "tier": "flex", "contrat": {}},
        {"id": "c", "tier": "flex", "keys": [{"hash": "sha256:" + "0" * 64, "prefix": "sk-sluice-none"}]},
    ]}))  # fmt: skip
    code, _, err = run(service[2], "tenants", "put", str(path))
    assert code == 2
    for said in ("no tier 'gold'", "stands in the configuration", "contrat", "keys new --tenant c"):
        assert said in err
    path.write_text("tenants: []")
    assert run(service[2], "tenants", "put", str(path))[0] == 2


def test_what_is_known_stays_known_whatever_becomes_of_the_store(service):
    redis, gateways, config, tenants = service
    put(config, tenants)
    key = make_key(config)["key"]
    becomes(gateways, key, 200)
    redis.say("FLUSHALL")
    time.sleep(1.2)  # two rounds of following
    assert [ask(one, key) for one in gateways] == [200, 200]
    put(config, tenants)  # begun anew
    again = make_key(config)["key"]
    becomes(gateways, again, 200)
    assert [ask(one, key) for one in gateways] == [200, 200]
    redis.kill()
    time.sleep(1.2)
    for known in (key, again, KEY):
        assert [ask(one, known) for one in gateways] == [200, 200]
    assert [ask(one, "sk-sluice-unknown") for one in gateways] == [401, 401]
    code, _, err = run(config, "keys", "new", "--tenant", "beta")
    assert (code, "away" in err) == (1, True)
    redis.start()
    put(config, tenants, suspended=True)
    becomes(gateways, again, 403)
    logs = "".join(one.text() for one in gateways)
    assert "tenants and keys stay as they are known" in logs
    assert key not in logs
