"""Counts lengths of time in buckets: a list of integers and a sum."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate


class Histogram:
    """``counts[i]`` are observations in ``(edges[i-1], edges[i]]``; the last counts those above all edges."""

    __slots__ = ("counts", "edges", "sum_s")

    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.sum_s = 0.0

    def observe(self, length_s: float) -> None:
        """Count one length. Below zero counts as zero: two stamps of one turn of the loop may be taken in either
        order, and a sum must never decrease."""
        if length_s < 0.0:
            length_s = 0.0
        self.counts[bisect_left(self.edges, length_s)] += 1
        self.sum_s += length_s

    def cumulative(self) -> list[int]:
        """Observations up to each edge; the last is the number of all."""
        return list(accumulate(self.counts))


def merge_edges(base: Sequence[float], extra: Iterable[float]) -> tuple[float, ...]:
    """``base`` and ``extra`` in order, each once.

    Raises:
        ValueError: an edge is not a positive finite number.
    """
    merged = sorted({*map(float, base), *map(float, extra)})
    for edge in merged:
        if not (math.isfinite(edge) and edge > 0.0):
            raise ValueError(f"a bucket edge must be a positive number of seconds, not {edge}")
    return tuple(merged)
