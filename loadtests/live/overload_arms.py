"""Knows the arms of the overload test: each a way to stand before the same workers, at the best settings found.

What a peer needs to know of the engine (places, peak, time of an answer) it is *told*, from the measurement that goes
before: an operator who had measured would do the same. How it learns a request's tier is its own documented mechanism:

* SMG: header ``x-smg-priority`` (interactive and bulk); its priority scheduler with the workers' places as label, queue
  time limits at the tiers' targets and queues as long as can be served within them. Its preemption stays on: without
  it goodput fell from 8.2 to 7.0 a second at 2x and from 7.9 to 7.4 at 3x;
* the engine's priority: ``priority`` in the body and ``--scheduling-policy priority`` on the worker;
* vllm-router, nginx and Envoy know no tiers. nginx stands before workers with their own valve a little above their
  places and tries the next worker on 503; Envoy runs adaptive concurrency with the measured time as its minimum and
  the same valve as its upper bound (with twice the places as bound hi got 32 % at 3x in place of 43 %).

Sluice is told nothing: two keys, two tiers, defaults.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from loadtests.live import peer_configs
from loadtests.live.backend import MODEL
from loadtests.live.peer_configs import Site
from loadtests.live.peers import PEERS, SLUICE, Peer, register_smg_workers
from loadtests.live.traffic import Mix

DIRECT_ARM = "direct"
QUEUE_MARGIN = 0.75
"""Share of a tier's target that SMG's queue may take: the rest is for chance. A guess; one 3x run with it was ideal."""
_HOST = "127.0.0.1"
_SMG_CLASSES = ("interactive", "bulk")
_NOTHING_HELD: dict[str, object] = {"reserved_floor": 0, "reserved_per_slot": 0.0}
_UNUSED_CLASS: dict[str, object] = {  # SMG wants every class whole
    **_NOTHING_HELD,
    "queue_size": 1,
    "queue_timeout_secs": 1,
    "starvation_threshold_secs": 3600,
    "can_preempt": False,
}
_ENVOY_ADAPTIVE = "type.googleapis.com/envoy.extensions.filters.http.adaptive_concurrency.v3.AdaptiveConcurrency"


@dataclass(frozen=True)
class EngineFacts:
    """What was measured of one worker: places, peak per second by tier alone, time of an answer when it is full."""

    slots: int
    peak_rps: Mapping[str, float]
    answer_s: float


@dataclass(frozen=True)
class Setting:
    """What an arm may be built from."""

    mix: Mix
    facts: EngineFacts


Extra = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True)
class Arm:
    """One way to stand before the workers; without ``build_peer`` the client asks them itself, in turn."""

    name: str
    title: str
    build_peer: Callable[[Setting], Peer] | None = None
    build_headers: Callable[[Mix], Mapping[str, Mapping[str, str]]] = lambda mix: {}
    build_bodies: Callable[[Mix], Extra] = lambda mix: {}
    build_worker_options: Callable[[Setting], list[str]] = lambda setting: []
    install: str | None = None


# ---------------------------------------------------------------------------------------------------------- Sluice


def build_key(tier: str) -> str:
    """The key of the tenant in this tier."""
    return f"sk-sluice-{tier:x<4.4}-" + hashlib.sha256(f"overload {tier}".encode()).hexdigest()


def build_sluice_overload_config(mix: Mix, site: Site) -> str:
    """Sluice with one tenant per tier and nothing said of capacity; YAML."""
    config = {
        "model": MODEL,
        "pool": {"discovery": "static", "workers": site.worker_urls},
        "tiers": {
            targets.tier: {
                "rank": rank,
                "availability": 0.99,
                "attainment": 0.99,
                "ttft": dict(targets.ttft_s),
                "tpot_s": targets.tpot_s,
            }
            for rank, targets in enumerate(mix.tiers)
        },
        "tenants": [
            {
                "id": f"tenant-{targets.tier}",
                "tier": targets.tier,
                "keys": [
                    {
                        "hash": "sha256:" + hashlib.sha256(build_key(targets.tier).encode()).hexdigest(),
                        "prefix": build_key(targets.tier)[: len("sk-sluice-") + 4],
                    }
                ],
            }
            for targets in mix.tiers
        ],
        "listen": {"host": _HOST, "port": site.port, "admin_port": site.admin_port},
        "state": "memory",
    }
    return yaml.safe_dump(config, sort_keys=False)


def _build_sluice(setting: Setting) -> Peer:
    return Peer(
        SLUICE,
        PEERS[SLUICE].install,
        lambda program, site: peer_configs.build_sluice_command(str(program), site),
        lambda site: {"sluice.yaml": build_sluice_overload_config(setting.mix, site)},
        ready_path="/readyz",
    )


# ---------------------------------------------------------------------------------------------------------- SMG


def build_smg_scheduler(setting: Setting) -> str:
    """SMG's scheduler: strict order, nobody waits longer than his tier's target, queues that can be served; YAML."""
    classes: dict[str, dict[str, object]] = {"system": dict(_UNUSED_CLASS), "default": dict(_UNUSED_CLASS)}
    for name, targets in zip(_SMG_CLASSES, setting.mix.tiers, strict=True):
        ttft_s = targets.ttft_s[0][1]
        peak = setting.facts.peak_rps[targets.tier] * setting.mix.workers
        classes[name] = {
            **_NOTHING_HELD,
            "queue_size": max(1, int(QUEUE_MARGIN * peak * ttft_s)),
            "queue_timeout_secs": max(1, int(ttft_s)),
            "starvation_threshold_secs": 3600,
            "can_preempt": name == _SMG_CLASSES[0],
        }
    return yaml.safe_dump({"classes": classes}, sort_keys=False)


def build_smg_overload_command(program: Path, site: Site) -> list[str]:
    """SMG with the scheduler's file; clients may ask for the class of the upper tier."""
    return [
        *peer_configs.build_smg_command(program, site),
        *("--priority-scheduler-config", str(site.folder / "scheduler.yaml")),
        *("--priority-scheduler-default-max-class", _SMG_CLASSES[0]),
    ]


def _build_smg(setting: Setting, *, labelled: bool) -> Peer:
    slots = setting.facts.slots if labelled else None
    return Peer(
        "smg",
        PEERS["smg"].install,
        build_smg_overload_command,
        lambda site: {"scheduler.yaml": build_smg_scheduler(setting)},
        register=lambda site: register_smg_workers(site, slots),
    )


def _build_smg_headers(mix: Mix) -> dict[str, dict[str, str]]:
    return {targets.tier: {"x-smg-priority": name} for targets, name in zip(mix.tiers, _SMG_CLASSES, strict=True)}


# ---------------------------------------------------------------------------------------------------------- others


def build_envoy_overload_bootstrap(setting: Setting, site: Site) -> str:
    """Envoy with adaptive concurrency; a good time is what an answer takes when the engine is full; YAML."""
    bootstrap = yaml.safe_load(peer_configs.build_envoy_bootstrap(site))
    manager = bootstrap["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    manager["http_filters"].insert(
        0,
        {
            "name": "envoy.filters.http.adaptive_concurrency",
            "typed_config": {
                "@type": _ENVOY_ADAPTIVE,
                "gradient_controller_config": {
                    "sample_aggregate_percentile": {"value": 50},
                    "concurrency_limit_params": {
                        "max_concurrency_limit": compute_valve(setting) * setting.mix.workers,
                        "concurrency_update_interval": "0.5s",
                    },
                    "min_rtt_calc_params": {
                        "fixed_value": f"{setting.facts.answer_s:.3f}s",
                        "min_concurrency": setting.facts.slots * setting.mix.workers,
                        "buffer": {"value": 0},
                    },
                },
            },
        },
    )
    return str(yaml.safe_dump(bootstrap, sort_keys=False))


def build_nginx_overload_config(site: Site, *, as_root: bool) -> str:
    """nginx: least connections, and the next worker where one says that it is busy."""
    plain = peer_configs.build_nginx_config(site, as_root=as_root)
    return plain.replace("        keepalive 512;\n", "        least_conn;\n        keepalive 512;\n").replace(
        "            proxy_http_version 1.1;\n",
        "            proxy_http_version 1.1;\n            proxy_next_upstream error http_503 non_idempotent;\n",
    )


def compute_valve(setting: Setting) -> int:
    """Requests one worker may hold, waiting ones included: a fifth above its places."""
    return setting.facts.slots + max(1, setting.facts.slots // 5)


def build_valve_options(setting: Setting) -> list[str]:
    """The worker's own valve."""
    return ["--max-num-queued-reqs", str(compute_valve(setting))]


ARMS: dict[str, Arm] = {
    arm.name: arm
    for arm in (
        Arm(DIRECT_ARM, "no gateway"),
        Arm(
            "direct-priority",
            "no gateway, engine priority",
            build_bodies=lambda mix: {t.tier: {"priority": 10 * rank} for rank, t in enumerate(mix.tiers)},
            build_worker_options=lambda setting: ["--scheduling-policy", "priority"],
        ),
        Arm("vllm-router", "vllm-router", lambda setting: PEERS["vllm-router"], install="vllm-router"),
        Arm(
            "nginx",
            "nginx, engine's valve",
            lambda setting: Peer(
                "nginx",
                PEERS["nginx"].install,
                peer_configs.build_nginx_command,
                lambda site: {"nginx.conf": build_nginx_overload_config(site, as_root=os.geteuid() == 0)},
            ),
            build_worker_options=build_valve_options,
            install="nginx",
        ),
        Arm(
            "envoy",
            "Envoy, adaptive concurrency",
            lambda setting: Peer(
                "envoy",
                PEERS["envoy"].install,
                peer_configs.build_envoy_command,
                lambda site: {"envoy.yaml": build_envoy_overload_bootstrap(setting, site)},
            ),
            install="envoy",
        ),
        Arm(
            "smg-unlabelled",
            "SMG, priority, no label",
            lambda setting: _build_smg(setting, labelled=False),
            build_headers=_build_smg_headers,
            install="smg",
        ),
        Arm(
            "smg",
            "SMG, priority, label",
            lambda setting: _build_smg(setting, labelled=True),
            build_headers=_build_smg_headers,
            install="smg",
        ),
        Arm(
            SLUICE,
            "Sluice",
            _build_sluice,
            build_headers=lambda mix: {t.tier: {"authorization": f"Bearer {build_key(t.tier)}"} for t in mix.tiers},
            install=SLUICE,
        ),
    )
}


def describe_settings(setting: Setting) -> str:
    """What the peers were told, for the report; JSON."""
    return json.dumps(
        {
            "slots_per_worker": setting.facts.slots,
            "valve": build_valve_options(setting),
            "smg_scheduler": yaml.safe_load(build_smg_scheduler(setting)),
            "envoy_fixed_min_rtt_s": round(setting.facts.answer_s, 3),
        }
    )
