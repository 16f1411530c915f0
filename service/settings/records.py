"""Translates what the shared store keeps of tenants and keys into what the rooms know, and back.

What is written was checked against the schema of the file; what is read is checked for names and kinds alone, since a
gateway that starts reads a hundred thousand of them.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from pydantic import Field

from service.domain.contract import Allowance, Contract, Excess, Ramp
from service.domain.mark import UNMARKED, Mark
from service.domain.record import KEY, TENANT
from service.domain.tenant import Tenant
from service.domain.units import TenantId, TierName
from service.settings.parts import Part
from service.settings.sold import TenantSettings
from service.settings.terms import STANDARD_LADDER


class KeyRecord(Part):
    """One key as it is stored, under its hash. ``id`` is by what people name it where prefixes do not suffice; moments
    are seconds since 1970 UTC."""

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{8}$")]
    tenant: str
    prefix: str
    created_at: float
    expires_at: float | None = None


class _StoredRamp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    growth: float = 2.0
    window_s: float = 300.0
    floor: float = 0.1


class _StoredContract(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    tokens_per_month: int | None = None
    worker_seconds_rate: float | None = None
    worker_seconds_burst: float | None = None
    ramp: _StoredRamp | None = None
    stream_continuation: bool = True


class _StoredTenant(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    tier: str
    suspended: bool = False
    models: list[str] = []
    synthetic: bool = False
    credits: str = "standard"
    contract: _StoredContract | None = None
    excess: str = "refuse"


class _StoredKey(msgspec.Struct):
    tenant: str
    expires_at: float | None = None


_TENANT = msgspec.json.Decoder(_StoredTenant)
_KEY = msgspec.json.Decoder(_StoredKey)
_Sold = dict[tuple[_StoredContract, str, str], Contract]


@dataclass(slots=True)
class Records:
    """What is told; ``None`` for what is gone. ``refused`` could not be read, by name and reason."""

    keys: dict[bytes, tuple[TenantId, float | None] | None] = field(default_factory=dict)
    tenants: dict[TenantId, Tenant | None] = field(default_factory=dict)
    refused: list[tuple[str, str]] = field(default_factory=list)


def read_records(texts: Iterable[tuple[str, bytes | None]], tiers: Collection[str]) -> Records:
    """Translate texts by name. A tenant of a tier that is not configured is refused, and with it its keys mean nothing;
    equal contracts are one object, since many tenants buy the same."""
    found = Records()
    sold: _Sold = {}
    names: dict[str, TenantId] = {}
    offered = {name: TierName(name) for name in tiers}
    for name, text in texts:
        kind, rest = name[: len(KEY)], name[len(KEY) :]
        try:
            if kind == TENANT:
                tenant_id = names.setdefault(rest, TenantId(rest))
                found.tenants[tenant_id] = None if text is None else _read_tenant(tenant_id, text, offered, sold)
            elif kind == KEY:
                found.keys[bytes.fromhex(rest)] = None if text is None else _read_key(text, names)
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            found.refused.append((rest[:64] if kind == TENANT else "a key", str(error)))
            if kind == TENANT:
                found.tenants[TenantId(rest)] = None
    return found


def find_ladders(tenants: Mapping[TenantId, Tenant | None]) -> dict[TenantId, str]:
    """Those with another ladder of credits than the standard one."""
    return {
        tenant_id: tenant.contract.credits
        for tenant_id, tenant in tenants.items()
        if tenant is not None and tenant.contract is not None and tenant.contract.credits not in (None, STANDARD_LADDER)
    }


def write_tenant(tenant: TenantSettings) -> tuple[str, str]:
    """Name and text of a tenant; keys have records of their own."""
    text = tenant.model_dump_json(exclude={"keys"}, exclude_defaults=True)
    return TENANT + tenant.id, text


def write_key(digest: bytes, key: KeyRecord) -> tuple[str, str]:
    """Name and text of a key."""
    return KEY + digest.hex(), json.dumps(key.model_dump(exclude_none=True))


def _read_tenant(tenant_id: TenantId, text: bytes, offered: Mapping[str, TierName], sold: _Sold) -> Tenant:
    written = _TENANT.decode(text)
    tier = offered.get(written.tier)
    if written.id != tenant_id:
        raise ValueError("its name is another tenant's")
    if tier is None:
        raise ValueError(f"there is no tier {written.tier!r}")
    contract: Contract | None = None
    if written.contract is not None or written.credits != STANDARD_LADDER:
        terms = (written.contract or _StoredContract(), written.excess, written.credits)
        contract = sold.get(terms)
        if contract is None:
            contract = sold[terms] = _build_contract(*terms)
    marks = frozenset((Mark.SYNTHETIC,)) if written.synthetic else UNMARKED
    return Tenant(tenant_id, tier, written.suspended, frozenset(written.models), contract, marks)


def _build_contract(written: _StoredContract, excess: str, ladder: str) -> Contract:
    rate, burst = written.worker_seconds_rate, written.worker_seconds_burst
    ramp = None if written.ramp is None else Ramp(written.ramp.growth, written.ramp.window_s, written.ramp.floor)
    return Contract(
        written.requests_per_minute, written.tokens_per_minute, written.concurrency, written.tokens_per_month,
        None if rate is None or burst is None else Allowance(rate, burst, ramp=ramp),
        Excess(excess), ladder, written.stream_continuation,
        hashlib.sha256(msgspec.json.encode((written, excess, ladder))).hexdigest()[:12],
    )  # fmt: skip


def _read_key(text: bytes, names: dict[str, TenantId]) -> tuple[TenantId, float | None]:
    key = _KEY.decode(text)
    return names.setdefault(key.tenant, TenantId(key.tenant)), key.expires_at
