"""Who pays, and in which tier their requests run."""

from dataclasses import dataclass

from service.domain.contract import Contract
from service.domain.mark import UNMARKED, Mark
from service.domain.units import TenantId, TierName


@dataclass(frozen=True, slots=True)
class Tenant:
    """One paying party as the edge sees it after authentication.

    ``models`` empty means every model of the pool. ``suspended`` tenants are known and refused. Without a ``contract``
    nothing it sends is counted or limited. ``marks`` are those of each of its requests: what the prober sends is
    synthetic.
    """

    tenant_id: TenantId
    tier: TierName
    suspended: bool = False
    models: frozenset[str] = frozenset()
    contract: Contract | None = None
    marks: frozenset[Mark] = UNMARKED
