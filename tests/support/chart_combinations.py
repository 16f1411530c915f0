"""Draws combinations of values, so that each value of each switch meets others it was not written for."""

import copy
import random
from typing import Any

COUNT = 40
SEED = 11

SWITCHES: dict[str, list[dict[str, Any]]] = {
    "names": [{}, {"fullnameOverride": "front-door"}, {"nameOverride": "gate", "commonLabels": {"team": "a"}}],
    "image": [{}, {"image": {"repository": "r.example.com:5000/a/b", "digest": "sha256:" + "a" * 64}}],
    "pull": [{}, {"imagePullSecrets": [{"name": "registry"}]}],
    "drain": [{}, {"drain": {"delaySeconds": 1, "seconds": 10, "marginSeconds": 15}}, {"drain": {"seconds": 7200}}],
    "config": [{}, {"existingConfigMap": "mine"}, {"settings": {"limits": {"bodies_max_bytes": 1 << 33}}}],
    "secret": [{}, {"secrets": {"existingSecret": "mine"}}],
    "discovery": [{}, {"gateway": {"discovery": "dns"}}],
    "gateway scaling": [{}, {"gateway": {"autoscaling": {"enabled": True}}}],
    "service": [{}, {"gateway": {"service": {"type": "LoadBalancer", "annotations": {"x": "y"}}}}],
    "ingress": [{}, {"gateway": {"ingress": {"enabled": True, "host": "a.example.com", "tlsSecret": "t"}}}],
    "gateway extras": [
        {},
        {
            "gateway": {
                "extraEnv": [{"name": "A", "value": "1"}],
                "extraVolumes": [{"name": "v", "emptyDir": {}}],
                "extraVolumeMounts": [{"name": "v", "mountPath": "/v"}],
                "podAnnotations": {"a": "b"},
                "tolerations": [{"key": "k", "operator": "Exists"}],
                "nodeSelector": {"a": "b"},
            }
        },
    ],
    "budgets": [{}, {"gateway": {"pdb": {"maxUnavailable": "30%"}}, "worker": {"pdb": {"enabled": False}}}],
    "workers": [
        {},
        {"worker": {"emulated": True}},
        {"worker": {"enabled": False}},
        {"worker": {"kind": "LeaderWorkerSet", "nodes": 2, "tensorParallel": 8}},
        {"worker": {"kvCacheDtype": "fp8", "speculation": "none", "contextTokens": 131072}},
    ],
    "cache": [{}, {"worker": {"cache": {"existingClaim": "w"}}}, {"worker": {"cache": {"enabled": False}}}],
    "worker scaling": [{}, {"worker": {"autoscaling": {"mode": "keda"}}}, {"worker": {"autoscaling": {"mode": "hpa"}}}],
    "scaler": [{}, {"scaler": {"enabled": True}}, {"scaler": {"enabled": True, "pdb": {"enabled": False}}}],
    "prober": [{}, {"prober": {"enabled": True, "keysSecret": "probes"}}],
    "ledger": [{}, {"keepLedger": False}, {"settings": {"ledger": "postgresql://s@db/s"}, "keepLedger": True}],
    "stores": [{}, {"secrets": {"redis": {"existingSecret": "r"}, "postgres": {"existingSecret": "p"}}}],
    "worker rollout": [{}, {"worker": {"strategy": {"maxSurge": "25%", "maxUnavailable": 0}}}],
    "classes": [{}, {"priorityClasses": {"create": True}}, {"worker": {"priorityClassName": "gpu"}}],
    "network": [{}, {"networkPolicy": {"enabled": False}}, {"networkPolicy": {"clients": [{"podSelector": {}}]}}],
    "monitoring": [{}, {"monitoring": {"rules": {"enabled": False}, "labels": {"release": "p"}}}],
    "tests": [{}, {"tests": {"enabled": False}}],
    "more": [
        {},
        {"extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-x"}}]},
    ],
}


def merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """As Helm lays one set of values over another."""
    merged = copy.deepcopy(below)
    for key, value in above.items():
        inner = merged.get(key)
        merged[key] = merge(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged


def draw() -> list[dict[str, Any]]:
    """``COUNT`` combinations, the same each time, in which each two choices of two switches meet as often as can be:
    each time the one of 30 draws is taken that brings most pairs not seen before."""
    chance = random.Random(SEED)
    seen: set[tuple[str, int, str, int]] = set()
    drawn = []
    for _ in range(COUNT):
        candidates = [{name: chance.randrange(len(choices)) for name, choices in SWITCHES.items()} for _ in range(30)]
        best = max(candidates, key=lambda chosen: len(pairs(chosen) - seen))
        seen |= pairs(best)
        values: dict[str, Any] = {}
        for name, index in best.items():
            values = merge(values, SWITCHES[name][index])
        drawn.append(values)
    return drawn


def pairs(chosen: dict[str, int]) -> set[tuple[str, int, str, int]]:
    """The choices that meet."""
    items = sorted(chosen.items())
    return {(a, i, b, j) for n, (a, i) in enumerate(items) for b, j in items[n + 1 :]}
