"""Finds how many requests a worker can carry within the targets: learned from the worker, never configured."""

from service.flow.pace import DecodePace

FIRST_LIMIT = 8
"""Permits of a worker about which nothing is known; doubled at each reading while all is well."""

_ROOM = 0.9
"""The time per token is kept this far below the tightest target, so that noise does not cross it."""

_SATURATED = 0.7
"""A reading says something of a larger limit only if at least this share of the present one was in use."""

_GROWTH_AFTER = 1.1
"""Growth per reading once the limit has been found; a change of machine is followed within a minute."""


class WorkerLimit:
    """Permits of one worker.

    Two bounds are found. *Slots*: how many requests the engine runs side by side at all (vLLM's ``max_num_seqs``,
    which it does not tell): when it has some waiting for longer than one reading, those that run are all it can. And
    *pace*: the largest batch at which a token still comes within ``_ROOM`` of the tightest target in use.
    The limit doubles with each reading until one of the two is met (slow start), then follows them.

    Trade-offs: while it is being found, a few requests wait inside the worker; and a pool that is never busy never
    learns what it could carry.
    """

    __slots__ = ("_found", "_waited", "limit", "slots")

    def __init__(self) -> None:
        self.limit = FIRST_LIMIT
        self.slots: int | None = None
        self._found = False
        self._waited = 0

    @property
    def found(self) -> bool:
        """Whether a bound was met: before that, nobody is refused because of it."""
        return self._found

    def observe(
        self,
        running: int | None,
        waiting: int | None,
        batch: float,
        target_s: float | None,
        pace: DecodePace,
    ) -> None:
        """Take in one reading: what the worker says runs and waits, the mean ``batch`` since the last one."""
        self._observe_slots(running, waiting)
        wished = float(self.limit)
        if batch >= _SATURATED * self.limit:
            wished = self.limit * (_GROWTH_AFTER if self._found else 2.0) + (1.0 if self._found else 0.0)
        if target_s is not None and pace.known:
            bound = _ROOM * target_s
            if (pace.predict_s(wished) or 0.0) > bound:
                wished = find_batch(pace, bound, wished)
                self._found = True
        if self.slots is not None and wished >= self.slots:
            wished = self.slots
            self._found = True
        self.limit = max(int(wished), 1)

    def _observe_slots(self, running: int | None, waiting: int | None) -> None:
        if running is None or waiting is None:
            return
        if waiting > 0 and running > 0:
            self._waited += 1
            if self._waited >= 2 or waiting >= running // 4 + 1:
                self.slots = running if self.slots is None or running < self.slots or self._waited > 2 else self.slots
        else:
            self._waited = 0
        if self.slots is not None and running > self.slots:
            self.slots = running


def find_batch(pace: DecodePace, bound_s: float, at_most: float) -> float:
    """The largest batch up to ``at_most`` at which the pace stays within ``bound_s``; at least 1."""
    low, high = 1.0, max(at_most, 1.0)
    for _ in range(12):
        middle = (low + high) / 2.0
        if (pace.predict_s(middle) or 0.0) <= bound_s:
            low = middle
        else:
            high = middle
    return low
