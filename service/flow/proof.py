"""Decides whether everything that is sold can be kept with one worker lost.

A contract's demand is the least that any of its limits allows, in workers::

    sold_i = min( worker_seconds_rate , tokens_per_minute / T , requests_per_minute / R , concurrency / P )

with T and R tokens and requests per minute that one worker does within the targets, and P the requests it computes at
once; what is not limited or not known does not count. Tiers that promise nothing sell nothing. What is sold is kept if
(algorithms 4.2)::

    sum sold_i  <=  rho * (N - lost)

rho (``usable_ratio``) leaves room for the queue: at rho of its capacity a worker still meets first tokens.

*Trade-offs*: every tenant is taken to use all it bought at the same moment, which few do, so what is oversold here may
never be missed; and T is a mean over kinds of traffic, so a tenant of long prompts alone costs more than it says.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from service.domain.contract import Measure
from service.domain.tenant import Tenant
from service.domain.tier import Tier
from service.domain.units import TenantId, TierName


@dataclass(frozen=True, slots=True)
class Capacity:
    """What there is: so many workers, and what one of them does within the targets; ``None`` for what nobody knows."""

    workers: int
    tokens_per_minute: float | None = None
    requests_per_minute: float | None = None
    concurrency: float | None = None
    usable_ratio: float = 0.75
    lost: int = 1


@dataclass(frozen=True, slots=True)
class TierProof:
    """One tier, in workers: what is ``sold`` in it, and how much of that is left uncovered after the dearer ones."""

    tier: TierName
    tenants: int
    sold: float
    missing: float


@dataclass(frozen=True, slots=True)
class Proof:
    """``backed`` is what can be relied on, in workers. ``unbounded`` are tenants that were promised whatever they send:
    nothing can be proven for them."""

    backed: float
    sold: float
    tiers: tuple[TierProof, ...]
    unbounded: tuple[TenantId, ...]

    @property
    def oversold(self) -> float:
        """Workers that are missing to keep everything; 0 if none are."""
        return max(self.sold - self.backed, 0.0)

    @property
    def kept(self) -> bool:
        """Whether everything that is sold can be kept."""
        return not self.unbounded and self.oversold <= 1e-9


def prove(tenants: Iterable[Tenant], tiers: Mapping[TierName, Tier], capacity: Capacity) -> Proof:
    """Hold what is sold against what there is. Suspended tenants and those of unknown tiers are sold nothing."""
    sold: dict[TierName, list[float]] = {tier.name: [] for tier in tiers.values() if not tier.best_effort}
    unbounded: list[TenantId] = []
    for tenant in tenants:
        if tenant.suspended or tenant.tier not in sold:
            continue
        demand = find_demand(tenant, capacity)
        if demand is None:
            unbounded.append(tenant.tenant_id)
        else:
            sold[tenant.tier].append(demand)
    backed = capacity.usable_ratio * max(capacity.workers - capacity.lost, 0)
    left, proofs = backed, []
    for tier in sorted((tier for tier in tiers.values() if not tier.best_effort), key=lambda tier: tier.rank):
        amount = sum(sold[tier.name])
        missing = max(amount - left, 0.0)
        left = max(left - amount, 0.0)
        proofs.append(TierProof(tier.name, len(sold[tier.name]), amount, missing))
    return Proof(backed, sum(proof.sold for proof in proofs), tuple(proofs), tuple(unbounded))


def find_demand(tenant: Tenant, capacity: Capacity) -> float | None:
    """Workers that ``tenant`` may claim; ``None`` if nothing that is known bounds it."""
    contract = tenant.contract
    if contract is None:
        return None
    bounds = [
        limit / each
        for limit, each in (
            (contract.tokens_per_minute, capacity.tokens_per_minute),
            (contract.requests_per_minute, capacity.requests_per_minute),
            (contract.concurrency, capacity.concurrency),
        )
        if limit is not None and each is not None
    ]
    if contract.work is not None and contract.work.measure is Measure.WORK:
        bounds.append(contract.work.per_second)
    return min(bounds, default=None)
