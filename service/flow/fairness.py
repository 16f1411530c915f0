"""Orders the requests of one band: earliest deadline first within a tenant, and between tenants by deadline or by
what each has been served.

While a band can keep all its deadlines, earliest deadline first across tenants is optimal (Liu & Layland 1973) and
each is served anyway. When it cannot, deadline order lets the largest flood win; then virtual token counters
(Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024) give each tenant an equal share of the work.
"""

import heapq
from dataclasses import dataclass, field

from service.domain.units import TenantId
from service.flow.waiting import Waiting


def _bucket(entry: Waiting) -> int:
    """Deadlines are told apart to half a second: a band's deadlines rarely span more than some tens of seconds, so
    there are some tens of buckets however many wait."""
    return int(entry.order[0] * 2.0)


@dataclass(slots=True)
class _Tenant:
    tenant_id: TenantId
    counter: float = 0.0
    heap: list[tuple[tuple[float, int], Waiting]] = field(default_factory=list)
    waiting: int = 0
    hold_s: float = 0.0


class BandQueue:
    """The waiting requests of one band; add, remove and the next are O(log n).

    ``served`` raises a tenant's counter by the work it was given. A tenant that comes back after a pause is lifted to
    the least counter of those that wait, so that silence earns no credit.

    Trade-offs: counters are work as estimated at dispatch, so a tenant whose answers are longer than foreseen gets
    somewhat more than its share.
    """

    __slots__ = (
        "_by_counter",
        "_by_deadline",
        "_floor",
        "_hold_by_deadline",
        "_tenants",
        "active",
        "hold_s",
        "size",
        "tokens",
    )

    def __init__(self) -> None:
        self._tenants: dict[TenantId, _Tenant] = {}
        self._by_deadline: list[tuple[tuple[float, int], Waiting]] = []
        self._by_counter: list[tuple[float, int, TenantId]] = []
        self._floor = 0.0
        self._hold_by_deadline: dict[int, float] = {}
        self.active = 0
        """Tenants of which something waits."""
        self.size = 0
        self.tokens = 0
        self.hold_s = 0.0

    def add(self, entry: Waiting) -> None:
        """Let ``entry`` wait."""
        tenant = self._tenants.get(entry.request.tenant_id)
        if tenant is None:
            tenant = self._tenants[entry.request.tenant_id] = _Tenant(entry.request.tenant_id, self._floor)
        if not tenant.waiting:
            tenant.counter = max(tenant.counter, self._floor)
            heapq.heappush(self._by_counter, (tenant.counter, entry.sequence, tenant.tenant_id))
        tenant.waiting += 1
        heapq.heappush(tenant.heap, (entry.order, entry))
        heapq.heappush(self._by_deadline, (entry.order, entry))
        self.size += 1
        self.tokens += entry.estimate.prompt_tokens
        self.hold_s += entry.hold_s
        tenant.hold_s += entry.hold_s
        bucket = _bucket(entry)
        self._hold_by_deadline[bucket] = self._hold_by_deadline.get(bucket, 0.0) + entry.hold_s
        self.active += tenant.waiting == 1

    def remove(self, entry: Waiting) -> None:
        """``entry`` waits no longer; it is left in the heaps until it comes up there."""
        entry.gone = True
        tenant = self._tenants[entry.request.tenant_id]
        tenant.waiting -= 1
        self.size -= 1
        self.tokens -= entry.estimate.prompt_tokens
        self.hold_s -= entry.hold_s
        tenant.hold_s -= entry.hold_s
        self.active -= not tenant.waiting
        bucket = _bucket(entry)
        left_s = self._hold_by_deadline[bucket] - entry.hold_s
        if left_s > 1e-9:
            self._hold_by_deadline[bucket] = left_s
        else:
            del self._hold_by_deadline[bucket]
        if not self.size:
            self._reset()
        elif len(self._by_deadline) > 2 * self.size + 64:
            self._sweep()

    def hold_ahead_s(self, entry: Waiting) -> float:
        """Permit-seconds that will be served before ``entry``: what is due earlier, but no more than all active
        tenants' equal share while its own tenant's requests are served."""
        bucket = _bucket(entry)
        earlier_s = sum([hold_s for key, hold_s in self._hold_by_deadline.items() if key <= bucket])
        tenant = self._tenants.get(entry.request.tenant_id)
        own_s = tenant.hold_s if tenant is not None else 0.0
        others = self.active - (1 if tenant is not None and tenant.waiting else 0)
        return min(earlier_s, own_s + others * (own_s + entry.hold_s))

    def next(self, fair: bool) -> Waiting | None:
        """Who is served next: by deadline, or with ``fair`` the tenant that was served least."""
        if fair:
            return self._next_fair()
        heap = self._by_deadline
        while heap and heap[0][1].gone:
            heapq.heappop(heap)
        return heap[0][1] if heap else None

    def charge(self, entry: Waiting) -> None:
        """The tenant of ``entry`` was given its work."""
        tenant = self._tenants.get(entry.request.tenant_id)
        if tenant is not None:
            tenant.counter = max(tenant.counter, self._floor) + entry.work_s
            if tenant.waiting:
                heapq.heappush(self._by_counter, (tenant.counter, entry.sequence, tenant.tenant_id))

    def _next_fair(self) -> Waiting | None:
        heap = self._by_counter
        while heap:
            counter, _, tenant_id = heap[0]
            tenant = self._tenants.get(tenant_id)
            if tenant is None or not tenant.waiting or counter != tenant.counter:
                heapq.heappop(heap)  # an older counter, or nobody of that tenant waits
                continue
            while tenant.heap[0][1].gone:
                heapq.heappop(tenant.heap)
            self._floor = counter
            return tenant.heap[0][1]
        return None

    def _reset(self) -> None:
        """Nobody waits: forget who was served what, beyond the common floor."""
        self._floor = max((tenant.counter for tenant in self._tenants.values()), default=self._floor)
        self._tenants.clear()
        self._by_deadline.clear()
        self._by_counter.clear()
        self._hold_by_deadline.clear()
        self.active = 0
        self.tokens = 0
        self.hold_s = 0.0

    def _sweep(self) -> None:
        """Drop what has left from the heaps; amortised O(1) per removal."""
        self._by_deadline = [item for item in self._by_deadline if not item[1].gone]
        heapq.heapify(self._by_deadline)
        for tenant_id, tenant in list(self._tenants.items()):
            if not tenant.waiting:
                del self._tenants[tenant_id]
                continue
            tenant.heap = [item for item in tenant.heap if not item[1].gone]
            heapq.heapify(tenant.heap)
