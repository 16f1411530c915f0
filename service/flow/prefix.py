"""Remembers which worker has read which beginnings of prompts, and on which worker each session was served last.

A mark (``domain.request``) names one beginning of a prompt. Every worker that read it is remembered with it, up to the
four latest; the marks of a pool are kept in one table, those not asked for longest are forgotten. A worker's cache has
a number of its own: a worker that starts again gets another number, and what the old one had read is never found again.

*Trade-offs*: what the worker itself has thrown out of its cache is not seen here; how much of what is foreseen really
comes from the cache is learned for each worker (``CacheTrust``), so on a worker short of blocks it counts for less.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

MARKS_MAX = 100_000
"""About 15 MB. At some eight marks a prompt these are 12,000 prompts, more than the caches of a few workers hold."""

_WORKERS_MAX = 4
SESSIONS_MAX = 20_000

_BYTES_SHIFT = 32

_FIRST_TRUST = 0.5
"""Before a worker has told of its cache, half of what it should have is believed."""

_TRUST_WEIGHT, _TRUST_MAX = 0.1, 1.5
"""The last ten answers count. More than foreseen may come from the cache: the answer to the prompt before is read, too,
and marks are coarser than the cache's blocks."""


class PrefixTable:
    """Which caches (by number) hold which beginnings; find and remember are O(marks of the prompt), at most some 30."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places: OrderedDict[int, tuple[int, ...]] = OrderedDict()

    def find(self, prefix: Sequence[int]) -> Mapping[int, int]:
        """Bytes of the prompt that each cache holds; caches that hold nothing of it are left out."""
        known: dict[int, int] = {}
        places = self._places
        for mark in prefix:  # from the shortest to the longest: the longest stands in the end
            for cache in places.get(mark, ()):
                known[cache] = mark >> _BYTES_SHIFT
        return known

    def remember(self, prefix: Sequence[int], cache: int) -> None:
        """The prompt was sent to the worker with this cache."""
        places = self._places
        for mark in reversed(prefix):  # short beginnings are shared by many: they are the last to be forgotten
            there = places.get(mark)
            if there is None:
                places[mark] = (cache,)
            else:
                if there[0] != cache:
                    places[mark] = (cache, *[other for other in there if other != cache])[:_WORKERS_MAX]
                places.move_to_end(mark)
        while len(places) > MARKS_MAX:
            places.popitem(last=False)


class SessionTable:
    """The cache that served each session last; at most 20,000 sessions."""

    __slots__ = ("_homes",)

    def __init__(self) -> None:
        self._homes: OrderedDict[str, int] = OrderedDict()

    def find(self, session: str) -> int | None:
        """The cache's number; ``None`` for a session never seen."""
        return self._homes.get(session)

    def caches(self) -> Iterable[int]:
        """The cache of each session."""
        return self._homes.values()

    def remember(self, session: str, cache: int) -> None:
        """The session is served there from here on."""
        self._homes[session] = cache
        self._homes.move_to_end(session)
        if len(self._homes) > SESSIONS_MAX:
            self._homes.popitem(last=False)


class CacheTrust:
    """What part of a prompt's known beginning really comes from the worker's cache: a mean over its latest answers."""

    __slots__ = ("_seen", "ratio")

    def __init__(self) -> None:
        self.ratio = _FIRST_TRUST
        self._seen = 0

    def observe(self, known_ratio: float, cached_ratio: float) -> None:
        """A share ``known_ratio`` of a prompt was known to be there, ``cached_ratio`` of it came from the cache."""
        self._seen += 1
        weight = max(_TRUST_WEIGHT, 1.0 / self._seen)
        self.ratio += weight * (min(cached_ratio / known_ratio, _TRUST_MAX) - self.ratio)
