"""What a configuration file may not say, and how its author hears of it: everything at once."""

from pathlib import Path

import pytest
import yaml

from service.settings import load
from service.settings.build import load_plan, load_settings
from service.settings.fault import SettingsFault, SettingsRefusedError
from service.settings.load import parse_tree

HASH = "sha256:" + "ab" * 32
GOOD = {
    "model": "m",
    "pool": {"discovery": "static", "workers": ["http://127.0.0.1:9001"], "profile": "m3.1-flash"},
    "tiers": {"flex": {"rank": 0, "best_effort": True}},
    "tenants": [{"id": "acme", "tier": "flex", "keys": [{"hash": HASH, "prefix": "sk-sluice-abcd"}]}],
}

API = {"api_server": "https://api:6443"}
CLUSTER = {"discovery": "kubernetes", "service": "w", "port_name": "http", "namespace": "n", "kubernetes": API}
PROMISE = {"rank": 0, "availability": 0.9, "attainment": 0.9}


def find_faults(text: str, environment: dict[str, str] | None = None) -> dict[str, SettingsFault]:
    with pytest.raises(SettingsRefusedError) as caught:
        load_settings(text, environment or {})
    return {fault.path: fault for fault in caught.value.faults}


def faults_of(**more: object) -> dict[str, SettingsFault]:
    return find_faults(yaml.safe_dump({**GOOD, **more}, sort_keys=False))


def test_the_smallest_file_is_enough():
    settings = load_settings(yaml.safe_dump(GOOD), {})
    assert settings.listen.port == 8080
    assert settings.state == "memory"


def test_all_faults_come_at_once_with_lines_and_cures():
    text = """
modle: x
pool: {discovery: static, workers: ["127.0.0.1:9001"], profil: m3}
tiers:
  a: {rank: 0, availability: 2}
  b: {rank: 1, best_effort: true}
  c: {rank: 1, best_effort: true, availability: 0.9}
tenants:
  - {id: x, tier: nope, trusted_proxies: []}
  - {id: x, tier: b, suspended: "no"}
limits: {drain_delay_s: 700, queue_ttl_s: "8", retry: {attempt_max: 3}}
state: redis://:secret@x
"""
    faults = find_faults(text)
    assert set(faults) == {
        "model", "modle", "pool.profil", "pool.workers[0]", "tiers.a.availability", "tiers.c", "tiers.c.rank",
        "tenants[0].tier", "tenants[0].trusted_proxies", "tenants[1].id", "tenants[1].suspended", "limits.queue_ttl_s",
        "limits.retry.attempt_max", "state",
    }  # fmt: skip
    assert faults["modle"].cure == "did you mean 'model'?"
    assert faults["limits.retry.attempt_max"].cure == "did you mean 'attempts_max'?"
    assert faults["tenants[0].tier"].line == 9
    assert faults["tenants[0].tier"].cure == "use a or b or c"
    assert "not read by this version" in faults["tenants[0].trusted_proxies"].message
    assert "SLUICE_REDIS_PASSWORD" in faults["state"].message
    assert "secret" not in str(faults["state"])
    assert str(faults["modle"]) == "modle (line 2): is not known (did you mean 'model'?)"


@pytest.mark.parametrize("loader", {yaml.SafeLoader, load._LOADER}, ids=lambda loader: loader.__name__)
def test_whatever_reads_the_file_lines_and_faults_are_the_same(monkeypatch, loader):
    monkeypatch.setattr(load, "_LOADER", loader)
    tree, lines, faults = parse_tree("a: 1\nb:\n  - c: 2\n    d: 3\n    c: 4\na: 5\n")
    assert tree == {"a": 5, "b": [{"c": 4, "d": 3}]}
    assert (lines["b[0].d"], lines["a"]) == (4, 1)
    assert [(fault.path, fault.line) for fault in faults] == [("b[0].c", 5), ("a", 6)]
    for text, line in (("a: [1\nb: 2\n", 2), ("[" * 5000, None), ("a: \x07", None)):
        with pytest.raises(SettingsRefusedError) as refused:
            parse_tree(text)
        (fault,) = refused.value.faults
        assert "is not valid YAML" in fault.message
        assert line is None or fault.line == line


def test_the_fast_reader_is_used_where_there_is_one():
    assert load._LOADER is (yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader)


def test_no_tier_has_the_name_of_none():
    assert set(faults_of(tiers={"none": {"rank": 0, "best_effort": True}}, tenants=[])) == {"tiers.none"}


def test_a_key_that_stands_twice_is_a_fault_where_it_stands():
    text = yaml.safe_dump(GOOD) + "logs:\n  level: info\n  level: debug\nmodel: other\n"
    faults = find_faults(text)
    assert set(faults) == {"logs.level", "model"}
    assert "stands twice (first on line" in faults["model"].message


@pytest.mark.parametrize(
    ("part", "path"),
    [
        ({"listen": {"port": 0}}, "listen.port"),
        ({"listen": {"port": 8081}}, "listen.admin_port"),
        ({"listen": {"port": True}}, "listen.port"),
        ({"listen": {"tls": {"cert": "/none", "key": "/none"}}}, "listen.tls"),
        ({"limits": {"grace_s": 1.0, "drain_delay_s": 2.0}}, "limits.drain_delay_s"),
        ({"limits": {"grace_s": float("inf")}}, "limits.grace_s"),
        ({"limits": {"body_max_bytes": 4096, "bodies_max_bytes": 2048}}, "limits.body_max_bytes"),
        ({"limits": {"first_token_s": 1.0}}, "limits.heartbeat_after_s"),
        ({"limits": {"breaker": {"open_s": 40.0}}}, "limits.breaker.open_s"),
        ({"limits": {"connections_max": 10}}, "limits.queued_requests_max"),
        ({"pool": {"discovery": "static"}}, "pool.workers"),
        ({"pool": {"discovery": "dns", "port": 1, "profile": "m3.1-flash"}}, "pool.name"),
        ({"pool": {**GOOD["pool"], "discovery": "dns", "name": "w", "port": 1}}, "pool.workers"),
        ({"pool": {**GOOD["pool"], "name": "w"}}, "pool.name"),
        ({"pool": {**GOOD["pool"], "service": "w"}}, "pool.service"),
        ({"pool": {**GOOD["pool"], "kubernetes": {"relist_s": 3.0}}}, "pool.kubernetes"),
        ({"pool": {**CLUSTER, "service": None}}, "pool.service"),
        ({"pool": {**CLUSTER, "confirm_profile": True}}, "pool.confirm_profile"),
        ({"pool": {**CLUSTER, "service": "Not_A_Name"}}, "pool.service"),
        ({"pool": {**CLUSTER, "workers": ["http://a:1"]}}, "pool.workers"),
        ({"pool": {**CLUSTER, "name": "w"}}, "pool.name"),
        ({"pool": {**CLUSTER, "port": 8000}}, "pool.port"),
        ({"pool": {**CLUSTER, "namespace": None}}, "pool.namespace"),
        ({"pool": {**CLUSTER, "kubernetes": {}}}, "pool.kubernetes.api_server"),
        ({"pool": {**CLUSTER, "kubernetes": {"api_server": "api:6443"}}}, "pool.kubernetes.api_server"),
        ({"pool": {**CLUSTER, "kubernetes": {**API, "token_file": "/none"}}}, "pool.kubernetes.token_file"),
        ({"pool": {**CLUSTER, "kubernetes": {**API, "ca_file": "/none"}}}, "pool.kubernetes.ca_file"),
        ({"pool": {**CLUSTER, "kubernetes": {**API, "relist_s": 31.0}}}, "pool.kubernetes.relist_s"),
        ({"pool": {**GOOD["pool"], "workers": ["http://a:1", "http://a:1/"]}}, "pool.workers[1]"),
        ({"pool": {**GOOD["pool"], "profile": "big"}}, "pool.profile"),
        ({"pool": {**GOOD["pool"], "api_key_env": "NOT_SET"}}, "pool.api_key_env"),
        ({"tiers": {}}, "tiers"),
        ({"tiers": {"flex": {"rank": 0}}}, "tiers.flex"),
        ({"tiers": {"flex": {"rank": 0, "availability": 0.9, "tpot_s": 1.0}}}, "tiers.flex"),
        ({"tiers": {"flex": {**PROMISE, "ttft": {9: 3.0, 8: 2.0}}}}, "tiers.flex"),
        ({"tiers": {"flex": {**PROMISE, "ttft": {8: 2.0, 9: 1.0}}}}, "tiers.flex"),
        ({"tenants": [{**GOOD["tenants"][0]}, {**GOOD["tenants"][0], "id": "b"}]}, "tenants[1].keys[0].hash"),
        ({"tenants": {"acme": {}}}, "tenants"),
        ({"tenants": ["acme"]}, "tenants[0]"),
        ({"cors_origins": ["app.example.com"]}, "cors_origins[0]"),
        ({"logs": {"level": "loud"}}, "logs.level"),
    ],
)  # fmt: skip
def test_each_fault_is_found_at_its_path(part, path):
    assert path in faults_of(**part)


def test_what_was_given_in_the_place_of_a_hash_is_not_repeated():
    key = "sk-sluice-CANARY"
    faults = faults_of(tenants=[{"id": "a", "tier": "flex", "keys": [{"hash": key, "prefix": key}, key]}])
    assert len(faults) == 3
    assert all("CANARY" not in str(fault) for fault in faults.values())
    assert "sluice keys new" in faults["tenants[0].keys[0].hash"].cure


@pytest.mark.parametrize(
    "text", ["a: [", "- a\n- b\n", "a: &x [*x]\n", "? {a: 1}\n: 2\n", "just words", "a: 2001-99-99"]
)
def test_what_is_no_mapping_of_settings_is_said_so(text):
    assert find_faults(text)


def test_an_empty_file_lacks_everything_that_is_required():
    assert set(find_faults("")) == {"model", "pool", "tiers", "tenants"}


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(SettingsRefusedError, match="there is no such file"):
        load_plan(tmp_path / "none.yaml", {}, b"")
    with pytest.raises(SettingsRefusedError, match="cannot be read"):
        load_plan(Path(tmp_path), {}, b"")


def test_a_long_file_is_read_in_pieces_so_that_other_threads_get_their_turn(monkeypatch):
    asked = []
    read = load._Pieces.read

    def note(pieces, size):
        asked.append(size)
        return read(pieces, size)

    monkeypatch.setattr(load._Pieces, "read", note)
    tree, _, _ = parse_tree("\n".join(f"key{index}: value" for index in range(20_000)))
    assert len(tree) == 20_000
    assert len(asked) > 10
