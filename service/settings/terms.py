"""What entries of the ledger refer to: the promises in force, by a hash, and the fingerprints of the contracts."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from service.domain.tier import Tier
from service.domain.units import TenantId, TierName
from service.ledger.entry import Terms
from service.settings.schema import Settings
from service.settings.sold import TenantSettings
from service.slo.credit import NO_CREDIT, STANDARD, Ladder, Step

STANDARD_LADDER, NO_LADDER = "standard", "none"
_NO_LADDERS: Mapping[TenantId, str] = {}


def build_ladder(settings: Settings, name: str) -> Ladder:
    """The ladder with this name: one of the file's own, ``standard`` or ``none``."""
    own = settings.credits.get(name)
    if own is None:
        return NO_CREDIT if name == NO_LADDER else STANDARD
    return Ladder(tuple(Step(below, credit) for below, credit in sorted(own.items(), reverse=True)))


def build_terms(
    settings: Settings, tiers: Mapping[TierName, Tier], ladders: Mapping[TenantId, str] = _NO_LADDERS
) -> tuple[Terms, str]:
    """The terms, and the document that is kept under their hash: tiers, tenants, announced maintenance; no keys.

    Tenants of the shared store are not in it, since there may be very many: what goes for them is the standard ladder,
    but for those that ``ladders`` names.
    """
    contracts = {TenantId(tenant.id): _fingerprint(tenant) for tenant in settings.tenants}
    document = json.dumps(
        {
            "model": settings.model,
            "tiers": {name: tier.model_dump(mode="json") for name, tier in settings.tiers.items()},
            "tenants": {tenant.id: _describe(settings, tenant) for tenant in settings.tenants},
            "ladders": {name: _list_steps(settings, name) for name in (STANDARD_LADDER, NO_LADDER, *settings.credits)},
            "stored": dict(ladders),
            "maintenance": [
                [window.start.timestamp(), window.end.timestamp(), window.reason] for window in settings.maintenance
            ],
        },
        sort_keys=True,
    )
    config_hash = hashlib.sha256(document.encode()).hexdigest()[:16]
    return Terms(settings.model, config_hash, tiers, contracts), document


def _describe(settings: Settings, tenant: TenantSettings) -> dict[str, Any]:
    return {
        "tier": tenant.tier,
        "contract": _fingerprint(tenant),
        "credits": _list_steps(settings, tenant.credits),
    }


def _list_steps(settings: Settings, name: str) -> list[list[float]]:
    return [[step.below, step.credit] for step in build_ladder(settings, name).steps]


def _fingerprint(tenant: TenantSettings) -> str:
    terms = tenant.model_dump_json(exclude={"keys", "suspended"})
    return hashlib.sha256(terms.encode()).hexdigest()[:12]
