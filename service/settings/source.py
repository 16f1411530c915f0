"""Translates how the pool finds its workers; a list of addresses is no source, it stands in the plan itself."""

from collections.abc import Mapping
from pathlib import Path

from service.settings.schema import PoolSettings
from service.workers.cluster import ACCOUNT_DIR, ClusterAccess, find_api_server, find_namespace
from service.workers.deletion_cost import DeletionCostConfig
from service.workers.discovery import DnsConfig
from service.workers.kubernetes import KubernetesConfig
from service.workers.slices import PortChoice


def build_source(pool: PoolSettings, environment: Mapping[str, str]) -> DnsConfig | KubernetesConfig | None:
    """The source that ``pool`` asks for; ``None`` for a list. ``pool`` has passed the checks between settings."""
    match pool.discovery:
        case "static":
            return None
        case "dns":
            return None if pool.name is None or pool.port is None else DnsConfig(pool.name, pool.port, pool.tls)
        case "kubernetes":
            return None if pool.service is None else _build_kubernetes(pool, pool.service, environment)


def build_deletion_cost(pool: PoolSettings, source: DnsConfig | KubernetesConfig | None) -> DeletionCostConfig | None:
    """Whether costs are written to the cluster of ``source``, and how."""
    if not pool.kubernetes.deletion_cost or not isinstance(source, KubernetesConfig):
        return None
    return DeletionCostConfig(source.access)


def _build_kubernetes(pool: PoolSettings, service: str, environment: Mapping[str, str]) -> KubernetesConfig:
    """An API server named in the file is not this pod's own, so neither its token nor its authorities go there."""
    given = pool.kubernetes
    own = given.api_server is None
    access = ClusterAccess(
        given.api_server or find_api_server(environment) or "",
        pool.namespace or find_namespace() or "",
        _choose_file(given.token_file, own, "token"),
        _choose_file(given.ca_file, own, "ca.crt"),
    )
    server_name = f"{service}.{access.namespace}.svc" if pool.tls else None
    return KubernetesConfig(access, service, PortChoice(pool.port_name, pool.port, server_name), given.relist_s)


def _choose_file(given: str | None, own: bool, name: str) -> Path | None:
    if given is not None:
        return Path(given)
    return ACCOUNT_DIR / name if own else None
