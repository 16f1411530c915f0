"""Looks at a configuration in force: what of it may be shown, and what only a restart can change."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from service.gateway.promises import CorridorConfig
from service.settings.schema import Settings

APPLIED_AT_RELOAD = (
    "tiers", "tenants", "credits", "maintenance", "capacity", "cors_origins", "logs.level", "logs.requests",
    "pool.workers", "pool.profile",
    "limits.requests_per_worker", "limits.requests_per_new_worker", "limits.queued_requests_max",
    "limits.replicas_assumed", "limits.queued_tokens_max", "limits.queue_ttl_s",
    "limits.retry_after_max_s", "limits.retry", "limits.breaker", "limits.first_token_s", "limits.inter_token_s",
    "limits.whole_s", "limits.client_stall_s", "limits.heartbeat_after_s", "limits.heartbeat_every_s",
    "limits.drain_delay_s", "limits.grace_s",
)  # fmt: skip
"""Everything else is built into sockets, connections or watches when the gateway starts."""


_PASSWORD = re.compile(r"(?<!/):[^/@]*@")
_PASSWORD_OF_QUERY = re.compile(r"(?i)([?&][^=&]*(?:pass|secret|token)[^=&]*=)[^&]*")


def find_waiting_changes(started: Settings, wanted: Settings) -> list[str]:
    """Paths in ``wanted`` that differ from what the gateway was ``started`` with and need another start."""
    before, after = dict(_flatten(started.model_dump())), dict(_flatten(wanted.model_dump()))
    changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    return [path for path in changed if not _is_applied(path)]


def keep_started(wanted: CorridorConfig, running: CorridorConfig) -> CorridorConfig:
    """What of the corridor's config may change while it runs."""
    return replace(wanted, model=running.model, worker_key=running.worker_key, salt=running.salt)


def describe_settings(settings: Settings) -> dict[str, Any]:
    """The settings as operators may see them: without hashes of keys and passwords."""
    hidden = {"tenants": {"__all__": {"keys": {"__all__": {"hash"}}}}}
    told = settings.model_dump(mode="json", exclude=hidden)
    if told["ledger"] is not None:
        told["ledger"] = _PASSWORD_OF_QUERY.sub(r"\1***", _PASSWORD.sub(":***@", told["ledger"]))
    return told


def describe_tenants(settings: Settings) -> list[dict[str, Any]]:
    """Tenants and the beginnings of their keys."""
    return [
        {
            "id": tenant.id,
            "tier": tenant.tier,
            "suspended": tenant.suspended,
            "models": list(tenant.models),
            "key_prefixes": [key.prefix for key in tenant.keys],
        }
        for tenant in settings.tenants
    ]


def _is_applied(path: str) -> bool:
    return any(path == known or path.startswith((f"{known}.", f"{known}[")) for known in APPLIED_AT_RELOAD)


def _flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - a dumped tree
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flatten(item, f"{path}.{key}" if path else str(key))
    else:
        yield path, value
