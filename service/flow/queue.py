"""Holds all requests that wait: by band, by the workers they may go to, and by when they give up."""

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from service.domain.errors import InvariantError
from service.domain.units import RequestId, WorkerId
from service.flow.fairness import BandQueue
from service.flow.waiting import Waiting

_STALE_DEADLINES = 64
"""Deadlines of requests that left which may pile up beside those that wait, before they are swept out. A guess: it
only has to be large enough that a short queue is not swept at every step."""

Line = OrderedDict[RequestId, Waiting]
"""Requests of one band that exactly the same workers may serve, in the order they came: if the first must wait, so must
all."""

Where = tuple[int, frozenset[WorkerId]]
"""A band, and workers."""


class WaitingRoom:
    """Add and remove are O(log n), the next of a band and the first of a line O(1) amortised, expiry O(log n).

    Requests that not every worker may serve stand in lines of their own: by band, one per worker they are pinned to,
    one per set of workers they failed on. So they hold up nobody, and no step looks at more than the first of a line.

    Trade-offs: choosy lines go first, the dearest before the others; they are few.
    """

    def __init__(self) -> None:
        self._entries: dict[RequestId, Waiting] = {}
        self._bands: dict[int, BandQueue] = {}
        self._order: list[int] = []
        self._pinned: dict[Where, Line] = {}
        self._returned: dict[Where, Line] = {}
        self._deadlines: list[tuple[float, int, RequestId]] = []
        self.choosy = 0
        """How many of them stand in lines of their own."""
        self.size = 0
        """How many wait."""
        self.tokens = 0
        """Estimated prompt tokens of all that wait."""

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._entries

    def add(self, entry: Waiting) -> None:
        """Let a request wait."""
        request_id = entry.request.request_id
        if request_id in self._entries:
            raise InvariantError(f"request {request_id} already waits")
        self._entries[request_id] = entry
        if entry.choosy:
            self._line_of(entry)[request_id] = entry
            self.choosy += 1
        else:
            self.band(entry.band).add(entry)
        heapq.heappush(self._deadlines, (entry.give_up_at, entry.sequence, request_id))
        self.tokens += entry.estimate.prompt_tokens
        self.size += 1

    def remove(self, request_id: RequestId) -> Waiting | None:
        """Take a request out wherever it stands; ``None`` if it does not wait."""
        entry = self._entries.pop(request_id, None)
        if entry is None:
            return None
        if entry.choosy:
            line = self._line_of(entry)
            del line[request_id]
            self.choosy -= 1
            if not line:
                self._forget_line(entry)
            entry.gone = True
        else:
            self._bands[entry.band].remove(entry)
        self.tokens -= entry.estimate.prompt_tokens
        self.size -= 1
        if len(self._deadlines) > 2 * self.size + _STALE_DEADLINES:
            self._deadlines = [(left.give_up_at, left.sequence, name) for name, left in self._entries.items()]
            heapq.heapify(self._deadlines)
        return entry

    def entries(self) -> Iterable[Waiting]:
        """All that wait, in no order."""
        return self._entries.values()

    def band(self, band: int) -> BandQueue:
        """The queue of one band."""
        queue = self._bands.get(band)
        if queue is None:
            queue = self._bands[band] = BandQueue()
            self._order = sorted(self._bands)
        return queue

    def bands(self) -> Iterator[tuple[int, BandQueue]]:
        """Bands in which somebody would go to any worker, the dearest first; there are few bands."""
        for band in self._order:
            queue = self._bands[band]
            if queue.ready:
                yield band, queue

    def all_bands(self) -> Iterator[tuple[int, BandQueue]]:
        """Bands in which anybody waits, the dearest first."""
        for band in self._order:
            queue = self._bands[band]
            if queue.size:
                yield band, queue

    def is_dearest(self, band: int) -> bool:
        """Whether nobody who would go to any worker waits in a band as dear as this one: then what is free is its own
        to take."""
        return not self.size or band < next(self.bands(), (band + 1, None))[0]

    def displaceable(self, beyond: int) -> tuple[int, int]:
        """Requests and prompt tokens that wait in bands from ``beyond`` on."""
        queues = [queue for band, queue in self._bands.items() if band >= beyond]
        return sum([queue.size for queue in queues]), sum([queue.tokens for queue in queues])

    def last_of_cheapest(self) -> Waiting:
        """Who came last into the cheapest band in which somebody waits."""
        return next(queue for band in reversed(self._order) if (queue := self._bands[band]).size).last()

    def hold_ahead_s(self, entry: Waiting) -> float:
        """Permit-seconds that will be served before ``entry``: dearer bands, and its own as far as it goes first."""
        ahead_s = 0.0
        for number, queue in self._bands.items():
            if number < entry.band:
                ahead_s += queue.hold_s
            elif number == entry.band:
                ahead_s += queue.hold_ahead_s(entry)
        return ahead_s

    def lines(self) -> Sequence[Line]:
        """Lines of choosy requests."""
        return [lines[where] for lines in (self._pinned, self._returned) for where in sorted(lines, key=_band_of)]

    def lines_for(self, worker_id: WorkerId) -> Sequence[Line]:
        """The lines whose requests ``worker_id`` may serve, in the order in which they are to be tried."""
        pinned = [where for where in self._pinned if worker_id in where[1]]
        returned = [where for where in self._returned if worker_id not in where[1]]
        return [
            *[self._pinned[where] for where in sorted(pinned, key=_band_of)],
            *[self._returned[where] for where in sorted(returned, key=_band_of)],
        ]

    def next_deadline_at(self) -> float | None:
        """When the next waiting request gives up; ``None`` when nobody waits. Forgets those that left."""
        while self._deadlines:
            moment, sequence, request_id = self._deadlines[0]
            entry = self._entries.get(request_id)
            if entry is not None and entry.sequence == sequence:
                return moment
            heapq.heappop(self._deadlines)
        return None

    def take_expired(self, now: float) -> list[Waiting]:
        """Remove and return all whose moment has passed, earliest first."""
        expired: list[Waiting] = []
        while (moment := self.next_deadline_at()) is not None and moment <= now:
            entry = self._entries[self._deadlines[0][2]]
            self.remove(entry.request.request_id)
            expired.append(entry)
        return expired

    def _line_of(self, entry: Waiting) -> Line:
        lines, where = self._find_line(entry)
        return lines.setdefault(where, OrderedDict())

    def _forget_line(self, entry: Waiting) -> None:
        lines, where = self._find_line(entry)
        del lines[where]

    def _find_line(self, entry: Waiting) -> tuple[dict[Where, Line], Where]:
        if entry.request.pinned_to is not None:
            return self._pinned, (entry.band, frozenset((entry.request.pinned_to,)))
        return self._returned, (entry.band, entry.failed_on)


def _band_of(where: Where) -> int:
    return where[0]
