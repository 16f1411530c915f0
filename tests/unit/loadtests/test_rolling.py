"""What counts as noticed in a rolling restart."""

import yaml

from loadtests.live.fake_cluster import FakeCluster
from loadtests.live.peer_configs import Site
from loadtests.live.rolling import ROLLING, Rollout, build_load, find_broken_promises, format_steps, format_tiers
from loadtests.live.rolling_site import Shape, Step, build_gateway_config, build_proxy_bootstrap
from service.settings.build import load_settings

STEP = Step("gateway-0", 0.0, 1.0, "said", 3.0, 0, 5.0)


def result_of(attainment=1.0, failures=None, **verdicts):
    figures = {
        "offered": 100,
        "attainment": attainment,
        "verdicts": verdicts,
        "failures": failures or {},
        "ttft_ms": {"p99": 40.0},
        "tpot_ms": {"p99": 7.0},
    }
    return {"tiers": {"hi": figures}}


def rollout_of(steps=1, took_s=50.0, **more):
    return Rollout([STEP] * steps, result_of(**more), 100.0, took_s)


def test_a_rollout_that_nobody_noticed():
    assert find_broken_promises(rollout_of(good=100), 1) == []
    assert find_broken_promises(rollout_of(attainment=0.99, good=99, late=1), 1) == []


def test_what_is_noticed():
    assert find_broken_promises(rollout_of(failed=2, failures={"connection lost": 2}), 1) == [
        "hi: 2 failed {'connection lost': 2}"
    ]
    for verdict in ("refused", "short", "unfinished"):
        assert find_broken_promises(rollout_of(**{verdict: 1}), 1) == [f"hi: 1 {verdict}"]
    assert find_broken_promises(rollout_of(attainment=0.98), 1) == ["hi: attainment 0.98, promised 0.99"]
    assert find_broken_promises(rollout_of(attainment=None), 1) == ["hi: attainment None, promised 0.99"]


def test_a_rollout_that_was_not_under_load_proves_nothing():
    assert find_broken_promises(rollout_of(took_s=99.0), 1) == ["the load was over after 100 s, the rollout after 99 s"]
    assert find_broken_promises(rollout_of(steps=1), 5) == ["only 1 of 5 were restarted"]


def test_the_tables():
    rollout = rollout_of(good=97, short=2, unfinished=1)
    assert "| hi   |      100 |      0 |       0 |   3 | 100.00 % |" in format_tiers(rollout)
    assert "| gateway-0 |     1.0 |           3.0 |                  5.0 |          said |" in format_steps(rollout)


def test_configurations_are_valid(tmp_path):
    cluster = FakeCluster()
    cluster.port = 25001
    site = Site(25002, 25003, (25004, 25005), tmp_path)
    settings = load_settings(build_gateway_config(ROLLING, Shape(), site, cluster), {})
    assert settings.pool.kubernetes.api_server == "http://127.0.0.1:25001"
    assert settings.limits.drain_delay_s == 3.0
    careless = Shape().without_hooks()
    assert load_settings(build_gateway_config(ROLLING, careless, site, cluster), {}).limits.drain_delay_s == 0.0
    (proxied,) = yaml.safe_load(build_proxy_bootstrap(site))["static_resources"]["clusters"]
    assert proxied["health_checks"][0]["http_health_check"] == {"path": "/readyz"}
    assert len(proxied["load_assignment"]["endpoints"][0]["lb_endpoints"]) == 2
    plan = build_load(ROLLING, 25002, 6.0, 10.0)
    assert set(plan.headers) == {"hi", "lo"}
