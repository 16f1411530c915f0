"""Configurations and command lines of the gateways that are measured."""

import json
from pathlib import Path

import pytest
import yaml

from loadtests.live import peer_configs
from loadtests.live.peer_configs import Site
from loadtests.live.peer_install import build_cache_root
from loadtests.live.peers import parse_version
from service.gateway.auth import hash_key
from service.settings.sold import KeySettings

SITE = Site(port=23101, admin_port=23102, worker_ports=(23100, 23103), folder=Path("/somewhere"))
KEY = "sk-sluice-Wq7_" + "a" * 39


def test_worker_urls():
    assert SITE.worker_urls == ["http://127.0.0.1:23100", "http://127.0.0.1:23103"]


@pytest.mark.parametrize(
    "build", [peer_configs.build_vllm_router_command, peer_configs.build_smg_command], ids=["vllm-router", "smg"]
)
def test_routers_do_not_retry_and_listen_on_loopback(build):
    command = build(Path("/bin/router"), SITE)
    assert "--disable-retries" in command
    assert command[command.index("--port") + 1] == "23101"
    assert command[command.index("--host") + 1] == "127.0.0.1"


def test_smg_runs_its_scheduler_and_lifts_its_slots():
    assert "--priority-scheduler-enabled" in peer_configs.build_smg_command(Path("smg"), SITE)
    worker = json.loads(peer_configs.build_smg_worker("http://127.0.0.1:23100", 4096))
    assert worker["labels"] == {"max_running_requests": "4096"}


def test_envoy_has_one_thread_all_workers_and_no_time_limit():
    bootstrap = yaml.safe_load(peer_configs.build_envoy_bootstrap(SITE))
    cluster = bootstrap["static_resources"]["clusters"][0]
    endpoints = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    ports = [e["endpoint"]["address"]["socket_address"]["port_value"] for e in endpoints]
    assert ports == [23100, 23103]
    assert '"0s"' in json.dumps(bootstrap)
    command = peer_configs.build_envoy_command(Path("envoy"), SITE)
    assert command[command.index("--concurrency") + 1] == "1"


def test_nginx_writes_only_in_its_own_folder():
    config = peer_configs.build_nginx_config(SITE, as_root=False)
    assert config.count("/somewhere/") == 7
    assert "proxy_buffering off;" in config
    assert "worker_processes 1;" in config
    assert "server 127.0.0.1:23103;" in config
    assert "user root;" not in config
    assert peer_configs.build_nginx_config(SITE, as_root=True).startswith("user root;")


def test_haproxy_does_not_hold_chunks_back():
    config = peer_configs.build_haproxy_config(SITE)
    assert "option http-no-delay" in config
    assert "nbthread 1" in config
    assert "server worker23103 127.0.0.1:23103" in config


def test_sluice_config_has_the_workers_the_key_and_three_tiers():
    text = peer_configs.build_sluice_config(SITE, key=KEY)
    config = yaml.safe_load(text)
    assert config["pool"]["workers"] == SITE.worker_urls
    assert sorted(config["tiers"]) == ["default", "flex", "priority"]
    assert KEY not in text
    (tenant,) = config["tenants"]
    (key,) = tenant["keys"]
    assert key == {"hash": f"sha256:{hash_key(KEY.encode()).hex()}", "prefix": "sk-sluice-Wq7_"}


def test_sluice_config_knows_the_key_that_load_tools_send():
    (tenant,) = yaml.safe_load(peer_configs.build_sluice_config(SITE))["tenants"]
    (key,) = [KeySettings.model_validate(key) for key in tenant["keys"]]  # a key the gateway would refuse raises
    assert bytes.fromhex(key.hash.removeprefix("sha256:")) == hash_key(peer_configs.BENCH_KEY.encode())


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("nginx version: nginx/1.22.1", "1.22.1"),
        ("HAProxy version 2.6.12-1+deb12u4 2025/04/23 - https://haproxy.org/", "2.6.12"),
        ("", "unknown"),
    ],
)
def test_version_in_a_programs_own_words(said, version):
    assert parse_version(said) == version


def test_cache_root_follows_xdg():
    assert build_cache_root({"XDG_CACHE_HOME": "/c", "HOME": "/h"}) == Path("/c/sluice/peers")
    assert build_cache_root({"HOME": "/h"}) == Path("/h/.cache/sluice/peers")
