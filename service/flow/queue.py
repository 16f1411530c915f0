"""Holds the requests that wait, in order of arrival, each until its deadline."""

import heapq
from collections import OrderedDict
from dataclasses import dataclass

from service.domain.request import Request
from service.domain.units import RequestId, WorkerId


@dataclass(slots=True)
class Waiting:
    """One request in the queue. ``failed_on`` is the worker it must not be sent to again."""

    request: Request
    prompt_tokens: int
    attempt: int = 1
    failed_on: WorkerId | None = None

    @property
    def choosy(self) -> bool:
        """Whether not every worker will do, so that it must not hold up those behind it."""
        return self.failed_on is not None or self.request.pinned_to is not None


class ArrivalQueue:
    """First come, first served; removal of any member and of the first are O(1), expiry is O(log n).

    Requests that not every worker may serve (they come back from a failed worker, or are pinned to one) stand in a
    line of their own, tried ahead of the others, so that they hold up nobody; that line is short.

    Trade-offs: order of arrival ignores deadlines and tenants, so one flood makes all wait.
    """

    def __init__(self) -> None:
        self._special: OrderedDict[RequestId, Waiting] = OrderedDict()
        self._line: OrderedDict[RequestId, Waiting] = OrderedDict()
        self._deadlines: list[tuple[float, RequestId]] = []
        self._tokens = 0

    def __len__(self) -> int:
        return len(self._line) + len(self._special)

    @property
    def tokens(self) -> int:
        """Estimated prompt tokens of all that wait."""
        return self._tokens

    def add(self, entry: Waiting) -> None:
        """Put a request at the end of its line."""
        line = self._special if entry.choosy else self._line
        line[entry.request.request_id] = entry
        heapq.heappush(self._deadlines, (entry.request.deadline_at, entry.request.request_id))
        self._tokens += entry.prompt_tokens

    def remove(self, request_id: RequestId) -> Waiting | None:
        """Take a request out wherever it stands; ``None`` if it does not wait."""
        entry = self._line.pop(request_id, None) or self._special.pop(request_id, None)
        if entry is not None:
            self._tokens -= entry.prompt_tokens
            if not self:
                self._deadlines.clear()
        return entry

    def first(self) -> Waiting | None:
        """The longest-waiting request that any worker may serve."""
        return next(iter(self._line.values()), None)

    def special(self) -> tuple[Waiting, ...]:
        """Requests that only some workers may serve, in the order they came."""
        return tuple(self._special.values())

    def has_special(self) -> bool:
        """Whether any choosy request waits."""
        return bool(self._special)

    def next_deadline_at(self) -> float | None:
        """When the next waiting request expires; ``None`` when nobody waits. Forgets those that left."""
        while self._deadlines:
            deadline_at, request_id = self._deadlines[0]
            if request_id in self._line or request_id in self._special:
                return deadline_at
            heapq.heappop(self._deadlines)
        return None

    def take_expired(self, now: float) -> list[Waiting]:
        """Remove and return all whose deadline has passed, earliest first."""
        expired: list[Waiting] = []
        while (deadline_at := self.next_deadline_at()) is not None and deadline_at <= now:
            _, request_id = heapq.heappop(self._deadlines)
            entry = self.remove(request_id)
            if entry is not None:
                expired.append(entry)
        return expired
