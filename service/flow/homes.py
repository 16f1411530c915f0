"""Holds those of one band that wait for one worker each: for the one that has read the beginning of their prompts.

They are out of everybody's way: whoever would go to any worker is not held up by them.
"""

import heapq
from collections.abc import Iterator

from service.domain.units import WorkerId
from service.flow.waiting import Waiting


class HomeLines:
    """One line per worker, by deadline; ``Waiting.home`` says who stands where. Add, drop and first are O(log n)
    amortised: who has gone elsewhere is left in the line until it comes up there."""

    __slots__ = ("_counts", "_lines", "_turn")

    def __init__(self) -> None:
        self._counts: dict[WorkerId, int] = {}
        self._lines: dict[WorkerId, list[tuple[tuple[float, int], int, Waiting]]] = {}
        self._turn = 0

    def __len__(self) -> int:
        return len(self._counts)

    def __iter__(self) -> Iterator[WorkerId]:
        """The workers that somebody waits for."""
        return iter(list(self._counts))

    def count(self, home: WorkerId) -> int:
        """How many wait for that worker."""
        return self._counts.get(home, 0)

    def add(self, entry: Waiting, home: WorkerId) -> None:
        """``entry`` waits for ``home`` alone from here on."""
        entry.home = home
        self._counts[home] = self._counts.get(home, 0) + 1
        self._turn += 1
        heapq.heappush(self._lines.setdefault(home, []), (entry.order, self._turn, entry))

    def drop(self, home: WorkerId) -> None:
        """One of those that waited for ``home`` does so no longer."""
        left = self._counts[home] - 1
        if left:
            self._counts[home] = left
        else:
            del self._counts[home], self._lines[home]

    def first(self, home: WorkerId) -> Waiting | None:
        """Who waits for that worker and is due first."""
        line = self._lines.get(home)
        if line is None:
            return None
        while line[0][2].gone or line[0][2].home != home:
            heapq.heappop(line)
        return line[0][2]

    def clear(self) -> None:
        """Nobody waits."""
        self._counts.clear()
        self._lines.clear()
