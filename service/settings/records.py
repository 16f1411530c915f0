"""Translates what the shared store keeps of tenants and keys into what the rooms know, and back."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field, ValidationError

from service.domain.contract import Contract
from service.domain.record import KEY, TENANT
from service.domain.tenant import Tenant
from service.domain.units import TenantId
from service.settings.build import build_tenant
from service.settings.parts import Part
from service.settings.sold import TenantSettings


class KeyRecord(Part):
    """One key as it is stored, under its hash. ``id`` is by what people name it where prefixes do not suffice; moments
    are seconds since 1970 UTC."""

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{8}$")]
    tenant: str
    prefix: str
    created_at: float
    expires_at: float | None = None


@dataclass(slots=True)
class Records:
    """What is told; ``None`` for what is gone. ``refused`` could not be read, by name and reason."""

    keys: dict[bytes, tuple[TenantId, float | None] | None] = field(default_factory=dict)
    tenants: dict[TenantId, Tenant | None] = field(default_factory=dict)
    refused: list[tuple[str, str]] = field(default_factory=list)


def read_records(texts: Mapping[str, bytes | None], tiers: Collection[str]) -> Records:
    """Translate texts by name. A tenant of a tier that is not configured is refused, and with it its keys mean nothing;
    equal contracts are one object, since many tenants buy the same."""
    found = Records()
    contracts: dict[Contract, Contract] = {}
    names: dict[str, TenantId] = {}
    for name, text in texts.items():
        kind, rest = name[: len(KEY)], name[len(KEY) :]
        try:
            if kind == TENANT:
                found.tenants[TenantId(rest)] = None if text is None else _read_tenant(rest, text, tiers, contracts)
            elif kind == KEY:
                found.keys[bytes.fromhex(rest)] = None if text is None else _read_key(text, names)
        except (ValidationError, ValueError) as error:
            found.refused.append((rest[:64] if kind == TENANT else "a key", str(error).splitlines()[0]))
            if kind == TENANT:
                found.tenants[TenantId(rest)] = None
    return found


def write_tenant(tenant: TenantSettings) -> tuple[str, str]:
    """Name and text of a tenant; keys have records of their own."""
    text = tenant.model_dump_json(exclude={"keys"}, exclude_defaults=True)
    return TENANT + tenant.id, text


def write_key(digest: bytes, key: KeyRecord) -> tuple[str, str]:
    """Name and text of a key."""
    return KEY + digest.hex(), json.dumps(key.model_dump(exclude_none=True))


def _read_tenant(name: str, text: bytes, tiers: Collection[str], contracts: dict[Contract, Contract]) -> Tenant:
    written = TenantSettings.model_validate_json(text)
    if written.id != name:
        raise ValueError("its name is another tenant's")
    if written.tier not in tiers:
        raise ValueError(f"there is no tier {written.tier!r}")
    return build_tenant(written, contracts)


def _read_key(text: bytes, names: dict[str, TenantId]) -> tuple[TenantId, float | None]:
    key = KeyRecord.model_validate_json(text)
    return names.setdefault(key.tenant, TenantId(key.tenant)), key.expires_at
