"""Holds the moments at which the core must look again though nothing happens, apart from deadlines."""

import heapq
from math import inf


class Alarms:
    """Ends of rests, each once, and the one moment at which time alone may make a place for somebody who found none.

    Trade-offs: a moment noted for somebody who has gone since is kept: one look too many, never one too few.
    """

    __slots__ = ("_again_at", "_rests")

    def __init__(self) -> None:
        self._rests: list[float] = []
        self._again_at = inf

    def __len__(self) -> int:
        return len(self._rests) + (self._again_at < inf)

    def note_rest(self, until: float) -> None:
        """A worker rests until then."""
        if not (self._rests and self._rests[0] == until):
            heapq.heappush(self._rests, until)

    def note_again(self, at: float) -> None:
        """Somebody may find a place then."""
        self._again_at = min(self._again_at, at)

    def ring(self, now: float) -> None:
        """All moments up to ``now`` have come."""
        while self._rests and self._rests[0] <= now:
            heapq.heappop(self._rests)
        if self._again_at <= now:
            self._again_at = inf

    def next_at(self) -> float:
        """The earliest of them; infinity if there is none."""
        return min(self._rests[0], self._again_at) if self._rests else self._again_at
