"""Draws how many tokens a decoding request gains in one step under speculative decoding.

With K drafts, each accepted with the same probability q given that all before it were, the mean gain is
1 + q + ... + q^K. q is solved for the mean that the profile names for the batch size, then draws come from a table.
"""

from __future__ import annotations

from bisect import bisect_left

from service.emulator.profiles import Speculation

TABLE_SIZE = 1024
"""Entries of a draw table: probabilities are rounded to about 0.1 %."""


def solve_acceptance(drafts: int, mean: float) -> float:
    """The per-draft acceptance q with 1 + q + ... + q^drafts = mean, clipped to 0..1."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2.0
        if sum(middle**power for power in range(drafts + 1)) < mean:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def build_table(drafts: int, mean: float) -> tuple[int, ...]:
    """Accept lengths (1 .. drafts + 1), each as often as it is likely."""
    rate = solve_acceptance(drafts, mean)
    # P(at most n accepted) = 1 - q^(n+1), and 1 at n = drafts.
    at_most = [1.0 - rate ** (n + 1) for n in range(drafts)] + [1.0]
    return tuple(1 + bisect_left(at_most, (slot + 0.5) / TABLE_SIZE) for slot in range(TABLE_SIZE))


class Drafting:
    """Looks up drafts per request and the draw table by batch size; ``scale`` shifts the mean (a collapse)."""

    __slots__ = ("_by_batch", "_scale", "_speculation", "_tables")

    def __init__(self, speculation: Speculation) -> None:
        self._speculation = speculation
        self._scale = 1.0
        self._by_batch: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._tables: dict[tuple[int, float], tuple[int, ...]] = {}

    def rescale(self, scale: float) -> None:
        if scale != self._scale:
            self._scale = scale
            self._by_batch.clear()

    def lookup(self, batch: int) -> tuple[int, tuple[int, ...]]:
        """(K, draw table) for a batch of this size; the table is empty where K = 0."""
        found = self._by_batch.get(batch)
        if found is None:
            found = self._by_batch[batch] = self._build(batch)
        return found

    def _build(self, batch: int) -> tuple[int, tuple[int, ...]]:
        drafts = next((k for first, last, k in self._speculation.schedule if first <= batch <= last), 0)
        if not drafts:
            return 0, ()
        rows = self._speculation.accept_length
        mean = next((length for last, length in rows if batch <= last), rows[-1][1])
        mean = 1.0 + max(0.0, mean - 1.0) * self._scale
        key = (drafts, mean)
        if key not in self._tables:
            self._tables[key] = build_table(drafts, mean)
        return drafts, self._tables[key]
