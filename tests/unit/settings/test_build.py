"""A valid configuration becomes the configs of the rooms, value by value."""

import dataclasses
import re
from datetime import UTC, datetime

import pytest
import yaml

from service.domain.contract import Allowance, Contract, Excess, Ramp
from service.domain.mark import Mark
from service.settings.build import build_deviation_finder, build_plan, load_settings, profile_permits
from service.settings.changes import describe_settings, describe_tenants, find_waiting_changes
from service.settings.fault import SettingsRefusedError
from service.settings.schema import KubernetesSettings, PoolSettings, Settings
from service.settings.source import build_deletion_cost
from service.workers.cluster import ACCOUNT_DIR, ClusterAccess
from service.workers.deletion_cost import DeletionCostConfig
from service.workers.discovery import DnsConfig
from service.workers.kubernetes import KubernetesConfig
from service.workers.slices import PortChoice
from tests.unit.settings.test_load import GOOD, HASH


def plan_of(environment: dict[str, str] | None = None, **more: object):
    settings = load_settings(yaml.safe_dump({**GOOD, **more}), environment or {})
    return build_plan(settings, environment or {}, b"salt")


def test_every_setting_reaches_its_room():
    plan = plan_of(
        {"WORKER_KEY": "secret"},
        pool={
            "discovery": "static", "workers": ["http://10.0.0.1:8000", "https://w:443"], "api_key_env": "WORKER_KEY",
            "keep_alive_s": 3.0, "idle_max": 5,
        },
        tiers={
            "priority": {"rank": 0, "availability": 0.999, "ttft": {4096: 1.0, 8192: 2}, "tpot_s": 0.02,
                         "attainment": 0.9},
            "flex": {"rank": 2, "best_effort": True, "queue_ttl_s": 600},
        },
        tenants=[
            {"id": "acme", "tier": "priority", "suspended": True, "models": ["m"],
             "keys": [{"hash": HASH, "prefix": "sk-sluice-abcd"}]},
            {"id": "keyless", "tier": "flex"},
        ],
        limits={"requests_per_worker": 3, "first_token_s": 77.0, "body_max_bytes": 4096, "retry": {"attempts_max": 4},
                "breaker": {"open_s": 2.0}, "queue_ttl_s": 9.0},
        health={"stall_after_s": 4.0, "read_timeout_s": 5.0, "interval_s": 2.0},
        cors_origins=["https://app.example.com", "*"],
    )  # fmt: skip
    assert plan.flow.requests_per_worker == 3
    assert plan.flow.retry.attempts_max == 4
    assert plan.flow.breaker.open_s == 2.0
    assert plan.relay.first_token_s == 77.0
    assert plan.edge.body_max_bytes == 4096
    assert (plan.pool.keep_alive_s, plan.pool.idle_max) == (3.0, 5)
    assert plan.monitor.health.required_model == "m"
    assert plan.monitor.health.stall_after_s == 4.0
    assert plan.monitor.interval_s == 2.0
    assert (plan.monitor.probe.read_timeout_s, plan.monitor.probe.total_timeout_s) == (5.0, 6.0)
    assert plan.monitor.probe.api_key == "secret"
    assert plan.corridor.worker_key == b"secret"
    assert plan.corridor.queue_ttl_s == 9.0
    assert plan.corridor.tiers["priority"].ttft_targets_s == ((4096, 1.0), (8192, 2.0))
    assert plan.corridor.tiers["flex"].best_effort
    assert plan.corridor.tiers["flex"].queue_ttl_s == 600
    assert [address.base_url for address in plan.workers] == ["http://10.0.0.1:8000", "https://w:443"]
    assert plan.source is None
    ((digest, tenant, _),) = plan.keys
    assert digest == bytes.fromhex("ab" * 32)
    assert tenant.suspended
    assert tenant.models == {"m"}
    assert plan.cors.origins == {b"https://app.example.com", b"*"}


def test_dns():
    plan = plan_of(pool={"discovery": "dns", "name": "workers", "port": 8000, "tls": True, "profile": "cpu-small"})
    assert isinstance(plan.source, DnsConfig)
    assert (plan.source.name, plan.source.port, plan.source.tls) == ("workers", 8000, True)
    assert plan.workers == ()


POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def build_source_of(pool, monkeypatch, namespace="inference"):
    for room in ("service.settings.checks", "service.settings.source"):
        monkeypatch.setattr(f"{room}.find_namespace", lambda: namespace)
    settings = load_settings(yaml.safe_dump({**GOOD, "pool": {"discovery": "kubernetes", **pool}}), POD)
    return build_plan(settings, POD, b"").source


def test_kubernetes_in_a_pod(monkeypatch):
    source = build_source_of({"service": "workers"}, monkeypatch)
    assert isinstance(source, KubernetesConfig)
    assert source.access == ClusterAccess(
        "https://10.96.0.1:443", "inference", ACCOUNT_DIR / "token", ACCOUNT_DIR / "ca.crt"
    )
    assert (source.service, source.port, source.relist_s) == ("workers", PortChoice(), 25.0)


def test_kubernetes_from_outside_sends_no_token_that_is_not_named(monkeypatch, tmp_path):
    pool = {"service": "w", "namespace": "n", "port_name": "http", "tls": True}
    api = {"api_server": "https://api:6443/", "relist_s": 5.0}
    source = build_source_of({**pool, "kubernetes": api}, monkeypatch, None)
    assert source.access == ClusterAccess("https://api:6443", "n")
    assert (source.port, source.relist_s) == (PortChoice("http", None, "w.n.svc"), 5.0)
    assert build_deletion_cost(PoolSettings(discovery="kubernetes"), source) is None
    wanted = PoolSettings(discovery="kubernetes", kubernetes=KubernetesSettings(deletion_cost=True))
    assert build_deletion_cost(wanted, source) == DeletionCostConfig(source.access)
    assert build_deletion_cost(wanted, None) is None
    token = tmp_path / "token"
    token.write_text("t")
    source = build_source_of({**pool, "kubernetes": {**api, "token_file": str(token)}}, monkeypatch, None)
    assert source.access.token_file == token


PAGE = (
    b'vllm:cache_config_info{block_size="128",cache_dtype="%b",kv_cache_size_tokens="6000000"} 1.0\n'
    b"vllm:spec_decode_num_drafts_total 0.0\n"
)


def test_a_profile_is_confirmed_on_kubernetes_and_where_it_is_asked_for(monkeypatch):
    monkeypatch.setattr("service.settings.source.find_namespace", lambda: "n")
    pod = {"discovery": "kubernetes", "service": "w", "profile": "m3.1-flash"}
    monitor = build_plan(Settings.model_validate({**GOOD, "pool": pod}), POD, b"").monitor
    assert (monitor.health.confirms_profile, monitor.health.proves_first) == (True, True)
    assert monitor.find_deviations(PAGE % b"nvfp4") == ()
    (deviation,) = monitor.find_deviations(PAGE % b"fp8")
    assert deviation.startswith("kv_cache.dtype: asked nvfp4, the engine runs fp8")
    assert plan_of(pool={**GOOD["pool"], "confirm_profile": True}).monitor.health.confirms_profile
    monitor = plan_of().monitor
    assert (monitor.find_deviations, monitor.health.confirms_profile) == (None, False)
    off = {**pod, "confirm_profile": False}
    settings = Settings.model_validate({**GOOD, "pool": off, "health": {"prove_first": False}})
    monitor = build_plan(settings, POD, b"").monitor
    assert (monitor.health.confirms_profile, monitor.health.proves_first) == (False, False)
    assert build_deviation_finder("other") is None


def test_a_profile_gives_the_permits_unless_they_are_set():
    assert plan_of().flow.requests_per_worker == 256
    assert plan_of(limits={"requests_per_worker": 8}).flow.requests_per_worker == 8
    assert profile_permits("cpu-small") == 16
    assert profile_permits("other") is None


def test_defaults_of_the_file_are_the_defaults_of_the_rooms():
    plan = plan_of()
    for config in (plan.relay, plan.edge, plan.pool, plan.flow.retry, plan.flow.breaker):
        assert config == type(config)()
    assert plan.monitor.health == dataclasses.replace(type(plan.monitor.health)(), required_model="m")
    limits = {
        "requests_per_worker": plan.flow.requests_per_worker,
        "queued_requests_max": plan.flow.queued_requests_max,
    }
    assert plan.flow == dataclasses.replace(type(plan.flow)(), tiers=plan.flow.tiers, **limits)
    assert plan.flow.tiers


@pytest.mark.parametrize(
    ("more", "waiting"),
    [
        ({"tenants": []}, []),
        ({"limits": {"queue_ttl_s": 5.0, "breaker": {"open_s": 2.0}}}, []),
        ({"tiers": {**GOOD["tiers"], "new": {"rank": 4, "best_effort": True}}}, []),
        ({"pool": {**GOOD["pool"], "workers": ["http://a:1"]}}, []),
        ({"model": "other"}, ["model"]),
        ({"limits": {"keep_alive_s": 5.0}}, ["limits.keep_alive_s"]),
        ({"health": {"interval_s": 2.0}}, ["health.interval_s"]),
        ({"listen": {"port": 9}}, ["listen.port"]),
    ],
)  # fmt: skip
def test_what_waits_for_a_restart(more, waiting):
    assert find_waiting_changes(plan_of().settings, plan_of(**more).settings) == waiting


def test_what_operators_see_has_no_hash():
    settings = plan_of().settings
    assert HASH not in str(describe_settings(settings))
    assert describe_settings(settings)["tenants"][0]["keys"] == [{"prefix": "sk-sluice-abcd", "expires": None}]
    assert describe_tenants(settings) == [
        {"id": "acme", "tier": "flex", "suspended": False, "models": [], "key_prefixes": ["sk-sluice-abcd"]}
    ]


def test_maintenance_and_the_prober_reach_the_gateway():
    plan = plan_of(
        maintenance=[
            {
                "start": datetime(2026, 12, 5, 2, tzinfo=UTC),
                "end": datetime(2026, 12, 5, 3, tzinfo=UTC),
                "reason": "kernel",
            }
        ],
        tenants=[
            {"id": "prober", "tier": "flex", "synthetic": True, "keys": [{"hash": HASH, "prefix": "sk-sluice-abcd"}]}
        ],
        tiers={"flex": {"rank": 2, "best_effort": True}},
    )
    (window,) = plan.maintenance
    assert (window.ends_at - window.starts_at, window.reason) == (3600.0, "kernel")
    assert datetime.fromtimestamp(window.starts_at, UTC).isoformat() == "2026-12-05T02:00:00+00:00"
    assert window.covers(window.starts_at)
    assert not window.covers(window.ends_at)
    assert plan.keys[0][1].marks == {Mark.SYNTHETIC}


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        ("{start: 2026-12-05T03:00:00Z, end: 2026-12-05T03:00:00Z, reason: x}", "ends before it has begun"),
        ("{start: 2026-12-05T02:00:00, end: 2026-12-05T03:00:00Z, reason: x}", "maintenance[0].start"),
        ("{start: 2026-12-05T02:00:00Z, end: 2026-12-05T03:00:00Z}", "maintenance[0].reason"),
    ],
)
def test_a_window_without_end_zone_or_reason_is_refused(written, fault):
    text = yaml.safe_dump(GOOD) + f"maintenance:\n  - {written}\n"
    with pytest.raises(SettingsRefusedError, match=re.escape(fault)):
        load_settings(text, {})


def test_a_contract_reaches_its_tenant_and_its_worker_seconds_the_core():
    contract = {"requests_per_minute": 600, "tokens_per_minute": 400_000, "concurrency": 64, "tokens_per_month": 10**12,
                "worker_seconds_rate": 1.5, "worker_seconds_burst": 30, "stream_continuation": False}  # fmt: skip
    plan = plan_of(
        tenants=[
            {"id": "acme", "tier": "flex", "keys": [{"hash": HASH, "prefix": "sk-sluice-abcd"}],
             "contract": contract, "excess": "run", "credits": "standard"},
            {"id": "free", "tier": "flex"},
        ]
    )  # fmt: skip
    ((_, tenant, _),) = plan.keys
    assert tenant.contract == Contract(
        600, 400_000, 64, 10**12, Allowance(1.5, 30), Excess.RUN, "standard", continuation=False
    )
    assert plan.flow.contracts == {"acme": Allowance(1.5, 30)}


def test_a_ramp_clause_belongs_to_guaranteed_work():
    contract = {"worker_seconds_rate": 1.5, "worker_seconds_burst": 30, "ramp": {"growth": 3}}
    plan = plan_of(tenants=[{"id": "acme", "tier": "flex", "contract": contract}])
    assert plan.flow.contracts == {"acme": Allowance(1.5, 30, ramp=Ramp(3.0, 300.0, 0.1))}
    with pytest.raises(SettingsRefusedError, match="set that, or remove ramp"):
        plan_of(tenants=[{"id": "acme", "tier": "flex", "contract": {"ramp": {}}}])


def test_rate_and_burst_of_worker_seconds_go_together():
    with pytest.raises(SettingsRefusedError, match="go together"):
        plan_of(tenants=[{"id": "acme", "tier": "flex", "contract": {"worker_seconds_rate": 1.0}}])
