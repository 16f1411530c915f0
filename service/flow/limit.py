"""Finds how many requests a worker can carry within the targets: learned from the worker, never configured."""

from service.domain.load import WorkerLoad
from service.domain.replica import Certainty
from service.flow.pace import DecodePace

FIRST_LIMIT = 8
"""Permits of a worker from its first reading on; doubled at each that follows while all is well."""

UNBOUNDED = 1 << 30
"""No limit but the operator's."""

_ROOM = 0.9
"""The time per token is kept this far below the tightest target, so that noise does not cross it."""

_SATURATED = 0.7
"""A reading says something of a larger limit only if at least this share of the present one was in use."""

_PREFILLING_S = 0.25
"""With more than this of prompts to read, requests may wait for the engine's token budget rather than for a slot."""

_GROWTH_AFTER = 1.1
"""Growth per reading once the limit has been found; a change of machine is followed within a minute."""


_STREAK = 2
"""Readings in a row that must show requests waiting inside the engine: between two steps some always may."""

_PROBE_READINGS = 15
"""Readings at the slots without any waiting, after which a few more are tried: a machine may have changed."""


class WorkerLimit:
    """Permits of one worker.

    Two bounds are found. *Slots*: how many requests the engine runs side by side at all (vLLM's ``max_num_seqs``,
    which it does not tell): when some wait inside it reading after reading, those that run are all it can. And
    *pace*: the largest batch at which a token still comes within ``_ROOM`` of the tightest target in use.
    Until one of the two is met the limit doubles with each reading, and grows by one with each first token that came
    promptly (TCP's slow start, RFC 5681, 3.1: a request that waited for a slot would be late); then it follows them,
    and the slots are tried again now and then.

    The search begins with the first reading that tells how many requests run and wait. Before that there is no limit
    but the operator's: a worker that tells nothing would never show that it could carry more.

    Trade-offs: while a bound is being found, a few requests wait inside the worker; and a pool that is never busy
    never learns what it could carry. A worker without readings is bounded by the pace of its answers alone.
    """

    __slots__ = ("_first", "_found", "_quiet", "_seen", "_streak", "limit", "slots")

    def __init__(self, permits: int = FIRST_LIMIT) -> None:
        self._first: int | None = permits
        self.limit = UNBOUNDED
        self.slots: int | None = None
        self._found = False
        self._streak = 0
        self._seen = 0
        self._quiet = 0

    @property
    def found(self) -> bool:
        """Whether a bound was met: before that, nobody is refused because of it."""
        return self._found

    def begin(self, load: WorkerLoad, held: int) -> None:
        """The worker spoke: from its first word on a limit is searched, beginning with what it holds already."""
        if self._first is not None and load.running_requests is not None and load.waiting_requests is not None:
            self.limit, self._first = min(self.limit, max(self._first, held)), None

    def widen(self, held: int) -> bool:
        """A first token came promptly while so many were held: whether there is one permit more for it."""
        if self._found or self._first is not None or held < _SATURATED * self.limit:
            return False
        self.limit += 1
        return True

    @property
    def certainty(self) -> Certainty:
        """How much is known of it."""
        if self._found:
            return Certainty.FOUND
        return Certainty.NOTHING if self._first is not None else Certainty.SEARCHED

    def raise_by(self, permits: int) -> None:
        """First tokens that other gateways saw on the worker raised the limit there by so much."""
        if self.certainty is Certainty.SEARCHED:
            self.limit += permits

    def adopt(self, permits: int, certainty: Certainty) -> None:
        """Other gateways know more of this worker."""
        if certainty > self.certainty:
            self.limit, self._first, self._found = permits, None, certainty is Certainty.FOUND

    def observe(
        self,
        load: WorkerLoad | None,
        batch: float,
        peak: int,
        prefilling_s: float,
        target_s: float | None,
        pace: DecodePace,
    ) -> None:
        """Take in one reading: the worker's own word, the mean ``batch`` and the ``peak`` of requests that got tokens
        side by side since the last one, and how many seconds of prompts it still has to read, which would explain
        that some wait. A reading that lacks the figures may lower the limit and not raise it."""
        told = load is None or (load.running_requests is not None and load.waiting_requests is not None)
        if load is not None:
            self._observe_slots(load.running_requests, load.waiting_requests, batch, peak, prefilling_s)
        wished = float(self.limit)
        used = batch >= _SATURATED * self.limit
        if told and used:
            wished = self.limit * _GROWTH_AFTER + 1.0 if self._found else self.limit * 2.0
        if told and target_s is None and self.slots is None:
            self._found = False  # no promise bounds it, or none that could be kept: what it carries is no mistake
            wished = max(wished, batch)
        if target_s is not None and pace.known:
            bound = _ROOM * target_s
            if (pace.predict_s(wished) or 0.0) > bound:
                wished = find_batch(pace, bound, wished)
                # without readings a pace at few requests is carried far to a guess: nobody is refused for that
                self._found = self._found or load is not None or used
        if self.slots is not None and wished >= self.slots:
            wished = float(self.slots)
            self._found = True
        self.limit = max(int(wished), 1)

    def _observe_slots(
        self, running: int | None, waiting: int | None, batch: float, peak: int, prefilling_s: float
    ) -> None:
        if running is None or waiting is None:
            return
        if waiting > 0 and running > 0 and prefilling_s < _PREFILLING_S:
            self._streak += 1
            self._quiet = 0
            self._seen = max(self._seen, running, peak)
            if self._streak >= _STREAK:
                self.slots = self._seen
            return
        self._streak = self._seen = 0
        if self.slots is None:
            return
        if running > self.slots:
            self.slots = running
        elif batch >= 0.9 * self.slots:
            self._quiet += 1
            if self._quiet >= _PROBE_READINGS:
                self._quiet = 0
                self.slots += max(1, self.slots // 8)


_BATCH_MOST = 4096.0
"""No engine runs more requests side by side; the search is as fine as it is narrow."""


def find_batch(pace: DecodePace, bound_s: float, at_most: float) -> float:
    """The largest batch up to ``at_most`` at which the pace stays within ``bound_s``; at least 1."""
    low, high = 1.0, min(max(at_most, 1.0), _BATCH_MOST)
    for _ in range(12):
        middle = (low + high) / 2.0
        if (pace.predict_s(middle) or 0.0) <= bound_s:
            low = middle
        else:
            high = middle
    return low
