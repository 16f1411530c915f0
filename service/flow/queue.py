"""Holds the requests that wait, in order of arrival, each until its deadline."""

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from service.domain.errors import InvariantError
from service.domain.request import Request
from service.domain.units import RequestId, WorkerId

NOWHERE: frozenset[WorkerId] = frozenset()
"""The workers on which a fresh request has failed."""

_STALE_DEADLINES = 64
"""Deadlines of requests that left which may pile up beside those that wait, before they are swept out. A guess: it
only has to be large enough that a short queue is not swept at every step."""


@dataclass(slots=True)
class Waiting:
    """One request in the queue. ``failed_on`` are the workers it must not be sent to again."""

    request: Request
    prompt_tokens: int
    attempt: int = 1
    failed_on: frozenset[WorkerId] = NOWHERE

    @property
    def choosy(self) -> bool:
        """Whether not every worker will do, so that it must not hold up those behind it."""
        return bool(self.failed_on) or self.request.pinned_to is not None


Line = OrderedDict[RequestId, Waiting]
"""Requests that exactly the same workers may serve, in the order they came: if the first must wait, so must all."""


class ArrivalQueue:
    """First come, first served within a line; add, remove and the first of a line are O(1), expiry is O(log n).

    Requests that not every worker may serve stand in lines of their own: one per worker they are pinned to, one per
    set of workers they failed on. So they hold up nobody, and no step has to look at more than the first of a line.

    Trade-offs: order of arrival ignores deadlines and tenants, so one flood makes all wait; choosy lines go first,
    pinned before returned, whoever came first.
    """

    def __init__(self) -> None:
        self._entries: dict[RequestId, Waiting] = {}
        self._line: Line = OrderedDict()
        self._pinned: dict[WorkerId, Line] = {}
        self._returned: dict[frozenset[WorkerId], Line] = {}
        self._deadlines: list[tuple[float, RequestId]] = []
        self._tokens = 0
        self.size = 0
        """How many wait."""

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._entries

    @property
    def tokens(self) -> int:
        """Estimated prompt tokens of all that wait."""
        return self._tokens

    def add(self, entry: Waiting) -> None:
        """Put a request at the end of its line."""
        request_id = entry.request.request_id
        if request_id in self._entries:
            raise InvariantError(f"request {request_id} already waits")
        self._entries[request_id] = entry
        self._line_of(entry)[request_id] = entry
        heapq.heappush(self._deadlines, (entry.request.deadline_at, request_id))
        self._tokens += entry.prompt_tokens
        self.size += 1

    def remove(self, request_id: RequestId) -> Waiting | None:
        """Take a request out wherever it stands; ``None`` if it does not wait."""
        entry = self._entries.get(request_id)
        if entry is not None:
            self._take(entry)
        return entry

    def lines(self) -> Sequence[Line]:
        """All lines in which somebody waits, in the order in which they are to be tried."""
        if len(self._line) == self.size:
            return (self._line,)
        return (*self._pinned.values(), *self._returned.values(), self._line)

    def lines_for(self, worker_id: WorkerId) -> Sequence[Line]:
        """The lines whose requests ``worker_id`` may serve, in the order in which they are to be tried."""
        if len(self._line) == self.size:
            return (self._line,)
        pinned = self._pinned.get(worker_id)
        returned = [line for failed_on, line in self._returned.items() if worker_id not in failed_on]
        return (*returned, self._line) if pinned is None else (pinned, *returned, self._line)

    def has_ordinary(self) -> bool:
        """Whether a request waits that any worker may serve."""
        return bool(self._line)

    def next_deadline_at(self) -> float | None:
        """When the next waiting request expires; ``None`` when nobody waits. Forgets those that left."""
        while self._deadlines:
            deadline_at, request_id = self._deadlines[0]
            if request_id in self._entries:
                return deadline_at
            heapq.heappop(self._deadlines)
        return None

    def take_expired(self, now: float) -> list[Waiting]:
        """Remove and return all whose deadline has passed, earliest first."""
        expired: list[Waiting] = []
        while (deadline_at := self.next_deadline_at()) is not None and deadline_at <= now:
            entry = self._entries[self._deadlines[0][1]]
            self._take(entry)
            expired.append(entry)
        return expired

    def _take(self, entry: Waiting) -> None:
        request_id = entry.request.request_id
        del self._entries[request_id]
        line = self._line_of(entry)
        del line[request_id]
        if not line and entry.choosy:
            self._forget_line(entry)
        self._tokens -= entry.prompt_tokens
        self.size -= 1
        if len(self._deadlines) > 2 * self.size + _STALE_DEADLINES:
            self._deadlines = [(left.request.deadline_at, name) for name, left in self._entries.items()]
            heapq.heapify(self._deadlines)

    def _line_of(self, entry: Waiting) -> Line:
        if entry.request.pinned_to is not None:
            return self._pinned.setdefault(entry.request.pinned_to, OrderedDict())
        if entry.failed_on:
            return self._returned.setdefault(entry.failed_on, OrderedDict())
        return self._line

    def _forget_line(self, entry: Waiting) -> None:
        if entry.request.pinned_to is not None:
            del self._pinned[entry.request.pinned_to]
        else:
            del self._returned[entry.failed_on]
