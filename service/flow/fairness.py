"""Orders the requests of one band: earliest deadline first within a tenant, and between tenants by deadline or by
what each has been served.

While a band can keep all its deadlines, earliest deadline first across tenants is optimal (Liu & Layland 1973) and
each is served anyway. When it cannot, deadline order lets the largest flood win; then virtual token counters
(Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024) give each tenant an equal share of the work.
"""

import heapq
from dataclasses import dataclass, field

from service.domain.units import RequestId, TenantId, WorkerId
from service.flow.backlog import DueWork
from service.flow.homes import HomeLines
from service.flow.waiting import Waiting

_STALE = 64
"""What has left may pile up in the heaps to as many as wait and so many more, before it is swept out. A guess: large
enough that a short queue is not swept at every step."""


_Heap = list[tuple[tuple[float, int], int, Waiting]]
"""By order, and for one entry that was put in again by when that was."""


@dataclass(slots=True)
class _Tenant:
    tenant_id: TenantId
    counter: float = 0.0
    heap: _Heap = field(default_factory=list)
    waiting: int = 0
    ready: int = 0
    hold_s: float = 0.0


class BandQueue:
    """The waiting requests of one band; add, remove and the next are O(log n) amortised.

    Those that are ``ready`` would go to any worker; the others stand aside and wait for one (``homes``), and count
    as waiting in everything but who is next.

    ``charge`` raises a tenant's counter by the work it was given. A tenant that comes back after a pause is lifted to
    the least counter of those that wait, so that silence earns no credit. Until ``congested_until``, and only then,
    tenants are served by their counters.

    Trade-offs: counters are work as estimated at dispatch, so a tenant whose answers are longer than foreseen gets
    somewhat more than its share. A tenant's debt is remembered while anybody waits in the band, so there is one small
    record for each that is ahead of the rest.
    """

    __slots__ = (
        "_by_counter",
        "_by_deadline",
        "_due",
        "_entries",
        "_floor",
        "_left",
        "_tenants",
        "_turn",
        "active",
        "congested_until",
        "hold_s",
        "homes",
        "ready",
        "size",
        "tokens",
    )

    def __init__(self) -> None:
        self._tenants: dict[TenantId, _Tenant] = {}
        self._by_deadline: _Heap = []
        self._by_counter: list[tuple[float, int, TenantId]] = []
        self._floor = 0.0
        self._due = DueWork()
        self._entries: dict[RequestId, Waiting] = {}
        self._left = 0
        self._turn = 0
        self.homes = HomeLines(self._count_served)
        self.ready = 0
        self.congested_until = 0.0
        """Somebody of this band was turned away for want of capacity a short while ago."""
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
            tenant.counter = max(tenant.counter, self._find_least())
        tenant.waiting += 1
        self._put(tenant, entry)
        self.size += 1
        self.tokens += entry.estimate.prompt_tokens
        self.hold_s += entry.hold_s
        tenant.hold_s += entry.hold_s
        self._entries[entry.request.request_id] = entry
        self._due.add(entry.order[0], entry.hold_s)
        self.active += tenant.waiting == 1

    def remove(self, entry: Waiting) -> None:
        """``entry`` waits no longer; it is left in the heaps until it comes up there."""
        entry.gone = True
        tenant = self._tenants[entry.request.tenant_id]
        tenant.waiting -= 1
        if entry.home is None:
            tenant.ready -= 1
            self.ready -= 1
        else:
            self.homes.drop(entry.home)
        self.size -= 1
        self.tokens -= entry.estimate.prompt_tokens
        self.hold_s -= entry.hold_s
        tenant.hold_s -= entry.hold_s
        self.active -= not tenant.waiting
        del self._entries[entry.request.request_id]
        self._due.take(entry.order[0], entry.hold_s)
        self._left += 1
        if not self.size:
            self._reset()
        elif self._left > self.size + _STALE:
            self._sweep()

    def stand_aside(self, entry: Waiting, home: WorkerId) -> None:
        """``entry``, which is ready, waits for ``home`` alone and holds up nobody; it is left in the heaps until it
        comes up there."""
        self.homes.add(entry, home)
        self._tenants[entry.request.tenant_id].ready -= 1
        self.ready -= 1
        self._left += 1
        if self._left > self.size + _STALE:
            self._sweep()

    def step_back(self, entry: Waiting) -> None:
        """``entry``, which stood aside, would go to any worker again."""
        if entry.home is not None:
            self.homes.drop(entry.home)
            entry.home = None
            self._put(self._tenants[entry.request.tenant_id], entry)

    def first_at(self, home: WorkerId, now: float) -> Waiting | None:
        """Who of those that wait for ``home`` alone is next there."""
        return self.homes.first(home, now < self.congested_until)

    def goes_before(self, one: Waiting, other: Waiting, now: float) -> bool:
        """Whether ``one`` comes before ``other``: by deadline, or in a congested band if its tenant was served less."""
        if now < self.congested_until:
            mine, its = (self._count_served(entry.request.tenant_id) for entry in (one, other))
            if mine != its:
                return mine < its
        return one.order < other.order

    def _count_served(self, tenant_id: TenantId) -> float:
        return self._tenants[tenant_id].counter

    def _put(self, tenant: _Tenant, entry: Waiting) -> None:
        if not tenant.ready:
            heapq.heappush(self._by_counter, (tenant.counter, entry.sequence, tenant.tenant_id))
        tenant.ready += 1
        self.ready += 1
        self._turn += 1
        heapq.heappush(tenant.heap, (entry.order, self._turn, entry))
        heapq.heappush(self._by_deadline, (entry.order, self._turn, entry))

    def hold_ahead_s(self, entry: Waiting) -> float:
        """Permit-seconds that will be served before ``entry``: what is due earlier, but no more than all active
        tenants' equal share while its own tenant's requests are served."""
        earlier_s = self._due.sum_until(entry.order[0])
        tenant = self._tenants.get(entry.request.tenant_id)
        own_s = tenant.hold_s if tenant is not None else 0.0
        others = self.active - (1 if tenant is not None and tenant.waiting else 0)
        return min(earlier_s, own_s + others * (own_s + entry.hold_s))

    def next(self, now: float) -> Waiting:
        """Who of those that are ready is next: by deadline, or in a congested band of the tenant served least."""
        if now < self.congested_until:
            self._find_least()
            heap = self._tenants[self._by_counter[0][2]].heap
        else:
            heap = self._by_deadline
        while heap[0][2].gone or heap[0][2].home is not None:
            heapq.heappop(heap)
        return heap[0][2]

    def last(self) -> Waiting:
        """Who of those that wait came last."""
        return next(reversed(self._entries.values()))

    def charge(self, entry: Waiting) -> None:
        """The tenant of ``entry`` was given its work."""
        tenant = self._tenants.get(entry.request.tenant_id)
        if tenant is not None:
            tenant.counter = max(tenant.counter, self._floor) + entry.work_s
            if tenant.ready:
                heapq.heappush(self._by_counter, (tenant.counter, entry.sequence, tenant.tenant_id))

    def _find_least(self) -> float:
        """The least counter of those that are ready, whose tenant then stands first; never less than it was before."""
        heap = self._by_counter
        while heap:
            counter, _, tenant_id = heap[0]
            tenant = self._tenants.get(tenant_id)
            if tenant is not None and tenant.ready and counter == tenant.counter:
                self._floor = counter
                break
            heapq.heappop(heap)  # an older counter, or nobody of that tenant is ready
        return self._floor

    def _reset(self) -> None:
        """Nobody waits: forget who was served what, beyond the common floor."""
        self._floor = max((tenant.counter for tenant in self._tenants.values()), default=self._floor)
        self._tenants.clear()
        self._by_deadline.clear()
        self._by_counter.clear()
        self._due.clear()
        self.homes.clear()
        self._left = 0
        self.active = 0
        self.tokens = 0
        self.hold_s = 0.0

    def _sweep(self) -> None:
        """Drop what has left from the heaps, and tenants that would come back as strangers do."""
        self._left = 0
        self._by_deadline = [item for item in self._by_deadline if _stands(item[2])]
        heapq.heapify(self._by_deadline)
        floor = self._find_least()
        for tenant_id, tenant in list(self._tenants.items()):
            if tenant.waiting:
                tenant.heap = [item for item in tenant.heap if _stands(item[2])]
                heapq.heapify(tenant.heap)
            elif tenant.counter <= floor:
                del self._tenants[tenant_id]
            else:
                tenant.heap = []
        counters = {(tenant.counter, tenant_id) for tenant_id, tenant in self._tenants.items() if tenant.ready}
        self._by_counter = [(counter, turn, tenant_id) for turn, (counter, tenant_id) in enumerate(sorted(counters))]


def _stands(entry: Waiting) -> bool:
    return not entry.gone and entry.home is None
