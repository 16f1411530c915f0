"""Finds what is wrong between parts of a configuration that are each valid by themselves."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

from service.launch.profiles import PROFILE_NAMES
from service.settings.fault import SettingsFault
from service.settings.load import Lines, locate
from service.settings.schema import KubernetesSettings, LimitSettings, ListenSettings, PoolSettings
from service.settings.terms import NO_LADDER, STANDARD_LADDER
from service.settings.tls import build_tls_context
from service.telemetry.labels import NO_TIER
from service.workers.addresses import parse_address
from service.workers.cluster import find_api_server, find_namespace

Found = tuple[str, str, str]
"""Path, message, cure."""


def find_cross_faults(
    parts: Mapping[str, Any], tree: Mapping[str, Any], lines: Lines, environment: Mapping[str, str] | None
) -> list[SettingsFault]:
    """Every fault between parts, and between them and the gateway's ``environment`` unless that is another process's.
    ``parts`` holds those that are valid by themselves, ``None`` for others; tiers and tenants are read from ``tree``:
    a fault in one of them does not hide what is wrong with its neighbours."""
    found: list[Found] = []
    pool, limits, listen = parts["pool"], parts["limits"], parts["listen"]
    tiers, tenants = tree.get("tiers"), tree.get("tenants")
    if isinstance(tiers, dict):
        found += _check_ranks(tiers)
    if isinstance(tenants, list):
        found += _check_tenants(tenants, tiers if isinstance(tiers, dict) else None)
        found += _check_credits(tenants, parts["credits"])
    if pool is not None:
        found += _check_pool(pool, environment)
    if limits is not None:
        found += _check_limits(limits)
    if listen is not None:
        found += _check_listen(listen)
    return [SettingsFault(path, message, cure, locate(path, lines)) for path, message, cure in found]


_OWN = {"static": ("workers",), "dns": ("name", "port"), "kubernetes": ("service", "port_name", "namespace", "port")}
"""Settings of the pool that belong to one way of finding workers (``port`` to two)."""
_NEEDED = {"static": ("workers",), "dns": ("name", "port"), "kubernetes": ("service",)}


def _check_pool(pool: PoolSettings, environment: Mapping[str, str] | None) -> Iterator[Found]:
    for name in _NEEDED[pool.discovery]:
        if not getattr(pool, name):
            cure = "list them, as http://127.0.0.1:9001" if name == "workers" else "add it"
            yield f"pool.{name}", f"is missing: discovery: {pool.discovery} needs it", cure
    for name in sorted({name for names in _OWN.values() for name in names} - set(_OWN[pool.discovery])):
        if getattr(pool, name) is not None:
            ways = " or ".join(way for way, names in _OWN.items() if name in names)
            yield f"pool.{name}", f"belongs to discovery: {ways}", "remove it"
    if pool.discovery == "kubernetes":
        if environment is not None:
            yield from _check_cluster(pool, environment)
    elif pool.kubernetes != KubernetesSettings():
        yield "pool.kubernetes", "belongs to discovery: kubernetes", "remove it"
    yield from _check_addresses(pool.workers or [])
    if pool.profile is not None and pool.profile not in PROFILE_NAMES:
        yield "pool.profile", f"{pool.profile!r} does not exist", f"use {' or '.join(PROFILE_NAMES)}"
    if pool.confirm_profile and pool.profile is None:
        yield (
            "pool.confirm_profile",
            "has nothing to confirm: pool.profile is missing",
            "name the profile, or remove it",
        )
    if environment is not None and pool.api_key_env is not None and not environment.get(pool.api_key_env):
        yield "pool.api_key_env", f"the environment has no {pool.api_key_env}", "set it to the workers' key"


def _check_cluster(pool: PoolSettings, environment: Mapping[str, str]) -> Iterator[Found]:
    given = pool.kubernetes
    if given.api_server is None and find_api_server(environment) is None:
        cure = "run it in a pod, or name the URL of the API server"
        yield "pool.kubernetes.api_server", "is missing: this process is not in a cluster", cure
    if pool.namespace is None and find_namespace() is None:
        cure = "run it in a pod with a service account token, or name the namespace"
        yield "pool.namespace", "is missing: this process is in no namespace", cure
    for name in ("token_file", "ca_file"):
        path = getattr(given, name)
        if path is not None and not os.access(path, os.R_OK):
            yield f"pool.kubernetes.{name}", f"{path} cannot be read", "mount it, or name another file"
    if pool.port is not None and pool.port_name is not None:
        yield "pool.port", "is a port as pool.port_name is", "keep one of them"


def _check_addresses(workers: list[str]) -> Iterator[Found]:
    seen: dict[str, int] = {}
    for index, url in enumerate(workers):
        worker_id = parse_address(url).worker_id
        if worker_id in seen:
            yield f"pool.workers[{index}]", f"is the same worker as pool.workers[{seen[worker_id]}]", "keep one"
        seen.setdefault(worker_id, index)


def _check_ranks(tiers: Mapping[str, Any]) -> Iterator[Found]:
    taken: dict[int, str] = {}
    for name, tier in tiers.items():
        if name == NO_TIER:
            yield f"tiers.{name}", "is what figures call requests of no tier", "name it otherwise"
        rank = tier.get("rank") if isinstance(tier, dict) else None
        if not isinstance(rank, int):
            continue
        if rank in taken:
            yield f"tiers.{name}.rank", f"is the rank of {taken[rank]!r} too", "give each tier its own"
        taken.setdefault(rank, name)


def _check_tenants(tenants: list[Any], tiers: Mapping[str, Any] | None) -> Iterator[Found]:
    ids: dict[str, int] = {}
    hashes: dict[str, str] = {}
    for index, tenant in enumerate(tenants):
        if not isinstance(tenant, dict):
            continue
        tier, name = tenant.get("tier"), tenant.get("id")
        if tiers is not None and isinstance(tier, str) and tier not in tiers:
            cure = f"use {' or '.join(str(known) for known in tiers)}" if tiers else "add the tier"
            yield f"tenants[{index}].tier", f"there is no tier {tier!r}", cure
        if isinstance(name, str) and name in ids:
            yield f"tenants[{index}].id", f"{name!r} is tenants[{ids[name]}] already", "name it otherwise"
        if isinstance(name, str):
            ids.setdefault(name, index)
        yield from _check_keys(f"tenants[{index}].keys", tenant.get("keys"), hashes)


def _check_credits(tenants: list[Any], ladders: Mapping[str, Any] | None) -> Iterator[Found]:
    known = {STANDARD_LADDER, NO_LADDER, *(ladders or {})}
    for index, tenant in enumerate(tenants):
        name = tenant.get("credits", STANDARD_LADDER) if isinstance(tenant, dict) else STANDARD_LADDER
        if isinstance(name, str) and name not in known and ladders is not None:
            yield f"tenants[{index}].credits", f"there is no ladder {name!r}", f"use {' or '.join(sorted(known))}"


def _check_keys(path: str, keys: object, hashes: dict[str, str]) -> Iterator[Found]:
    for number, key in enumerate(keys if isinstance(keys, list) else ()):
        digest = key.get("hash") if isinstance(key, dict) else None
        if not isinstance(digest, str):
            continue
        if digest in hashes:
            yield f"{path}[{number}].hash", f"is the key of {hashes[digest]} too", "make another with 'sluice keys new'"
        hashes.setdefault(digest, f"{path}[{number}]")


def _check_limits(limits: LimitSettings) -> Iterator[Found]:
    for low, high in (
        ("drain_delay_s", "grace_s"),
        ("body_max_bytes", "bodies_max_bytes"),
        ("heartbeat_after_s", "first_token_s"),
    ):
        if getattr(limits, low) > getattr(limits, high):
            message = f"is {getattr(limits, low)}, above {high} ({getattr(limits, high)})"
            yield f"limits.{low}", message, f"lower it, or raise {high}"
    if limits.breaker.open_s > limits.breaker.open_max_s:
        yield "limits.breaker.open_s", f"is above open_max_s ({limits.breaker.open_max_s})", "lower it"
    if limits.queued_requests_max > limits.connections_max:
        message = f"is {limits.queued_requests_max}, above connections_max ({limits.connections_max})"
        yield "limits.queued_requests_max", message, "each waiting request holds a connection: lower it"


def _check_listen(listen: ListenSettings) -> Iterator[Found]:
    if listen.port == listen.admin_port:
        yield "listen.admin_port", f"is the public port too ({listen.port})", "give each its own"
    if listen.tls is not None:
        try:
            build_tls_context(listen.tls.cert, listen.tls.key)
        except OSError as error:
            yield "listen.tls", f"cannot be used: {error}", "name a certificate chain and its key, both PEM files"
