"""Holds those of one band that wait for one worker each: for the one that has read the beginning of their prompts.

They are out of everybody's way: whoever would go to any worker is not held up by them. Among themselves they go in the
order of their band (``flow.fairness``): by deadline, or in a congested band the tenant first that was served least.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from service.domain.units import TenantId, WorkerId
from service.flow.waiting import Waiting

_Heap = list[tuple[tuple[float, int], int, Waiting]]


@dataclass(slots=True)
class _Line:
    count: int = 0
    by_deadline: _Heap = field(default_factory=list)
    by_tenant: dict[TenantId, _Heap] = field(default_factory=dict)
    by_counter: list[tuple[float, int, TenantId]] = field(default_factory=list)


class HomeLines:
    """One line per worker; ``Waiting.home`` says who stands where, ``counter_of`` what a tenant was served, which never
    becomes less while it waits. Add, drop and first are O(log n) amortised: who has gone elsewhere is left in the line
    until it comes up there, and so is a counter that has grown since."""

    __slots__ = ("_counter_of", "_lines", "_turn")

    def __init__(self, counter_of: Callable[[TenantId], float]) -> None:
        self._counter_of = counter_of
        self._lines: dict[WorkerId, _Line] = {}
        self._turn = 0

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[WorkerId]:
        """The workers that somebody waits for."""
        return iter(list(self._lines))

    def count(self, home: WorkerId) -> int:
        """How many wait for that worker."""
        line = self._lines.get(home)
        return 0 if line is None else line.count

    def add(self, entry: Waiting, home: WorkerId) -> None:
        """``entry`` waits for ``home`` alone from here on."""
        line = self._lines.get(home)
        if line is None:
            line = self._lines[home] = _Line()
        entry.home = home
        line.count += 1
        self._turn += 1
        item = (entry.order, self._turn, entry)
        heapq.heappush(line.by_deadline, item)
        tenant_id = entry.request.tenant_id
        heap = line.by_tenant.get(tenant_id)
        if heap is None:
            heap = line.by_tenant[tenant_id] = []
            heapq.heappush(line.by_counter, (self._counter_of(tenant_id), self._turn, tenant_id))
        heapq.heappush(heap, item)

    def drop(self, home: WorkerId) -> None:
        """One of those that waited for ``home`` does so no longer."""
        line = self._lines[home]
        line.count -= 1
        if not line.count:
            del self._lines[home]

    def first(self, home: WorkerId, congested: bool = False) -> Waiting | None:
        """Who of those that wait for that worker goes before the others."""
        line = self._lines.get(home)
        if line is None:
            return None
        if not congested:
            _clean(line.by_deadline, home)
            return line.by_deadline[0][2]
        while True:
            counter, turn, tenant_id = line.by_counter[0]
            heap = line.by_tenant[tenant_id]
            _clean(heap, home)
            if not heap:
                heapq.heappop(line.by_counter)
                del line.by_tenant[tenant_id]
            elif (served := self._counter_of(tenant_id)) > counter:
                heapq.heapreplace(line.by_counter, (served, turn, tenant_id))
            else:
                return heap[0][2]

    def clear(self) -> None:
        """Nobody waits."""
        self._lines.clear()


def _clean(heap: _Heap, home: WorkerId) -> None:
    while heap and (heap[0][2].gone or heap[0][2].home != home):
        heapq.heappop(heap)
