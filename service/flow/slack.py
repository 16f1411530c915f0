"""Keeps account of how long a worker may read prompts before somebody who decodes there gets tokens too late.

While a prompt is read, nearly nothing is decoded. A request that was promised tokens every T seconds and gets one each
t < T gains T / t - 1 seconds of slack per second of decoding, and loses the reading time of every prompt that is sent
after it. It is late as soon as it ends with less than none. A request may end after a few tokens, so it begins with
what its shortest answers leave: see :class:`~service.flow.calibration.ShortAnswer`. The account of a worker is that of
the request on it which has least.
"""

from math import inf

SLACK_MAX_S = 4.0
"""More is not saved up: about what a prompt of 100k tokens takes to read. A guess."""

_ROOM = 0.85
"""The time per token is counted on to be this share of the promise, since readings are means and requests differ."""

_RATE_LEAST, _RATE_MAX = 0.05, 2.0
"""Slack gained per second of decoding. The least keeps the account from standing still where the pace is at the promise
already. Of the most: tokens come in steps, several at once where drafts are accepted, so that a short answer has not
got its share yet. In the simulator's replay of short answers (azure-code, two seeds, 2x and 10x) priority's attainment
was 98.7 and 97.1 % at 2.5, 99.6 and 99.3 % at 2, with a goodput of 48.5 and 45.6 requests a second at 2x."""


class Slack:
    """One worker's account. ``seconds`` is right after :meth:`read_s`; negative is debt.

    Trade-offs: one number for all on the worker, so whoever came last decides though others have much left; prompts
    are charged by estimated tokens, and a step that reads several at once is charged to the first of them too.
    """

    __slots__ = ("_at", "_pace_s", "_spent_s", "_target_s", "busy_until", "rate", "seconds")

    def __init__(self) -> None:
        self.seconds = SLACK_MAX_S
        self.rate = _RATE_MAX
        self.busy_until = 0.0
        """When the prompts sent so far will have been read."""
        self._pace_s: float | None = None
        self._target_s = inf
        self._spent_s = 0.0
        self._at = 0.0

    def learn(self, pace_s: float | None, target_s: float | None) -> None:
        """A reading came: the time per token while no prompt is read, and the tightest promise on the worker."""
        self._pace_s = pace_s
        self._target_s = inf if target_s is None else target_s
        self._derive()

    def tighten(self, target_s: float) -> None:
        """Somebody with this promise comes to the worker."""
        if target_s < self._target_s:
            self._target_s = target_s
            self._derive()

    def _derive(self) -> None:
        self.rate = _RATE_MAX
        if self._pace_s is not None and self._target_s < inf:
            self.rate = min(max(_ROOM * self._target_s / self._pace_s - 1.0, _RATE_LEAST), _RATE_MAX)

    def foresee_s(self, tokens: float, target_s: float) -> float:
        """What an answer of so many tokens leaves if nothing is read meanwhile."""
        return tokens * max(target_s - (self._pace_s or 0.0), 0.0)

    def read_s(self, now: float) -> float:
        """Seconds of prompts that may be sent without making anybody late."""
        since = now - max(self._at, self.busy_until)
        self._at = now
        if since > 0.0:
            self.seconds = min(self.seconds + self.rate * since, SLACK_MAX_S)
        return self.seconds

    def enough_at(self, needed_s: float, now: float) -> float:
        """When it will be ``needed_s`` if nothing else is sent; right after :meth:`read_s`."""
        return max(now, self.busy_until) + (needed_s - self.seconds) / self.rate

    def clear(self, reading_s: float, now: float) -> None:
        """Nobody is there to whom anything was promised; what was sent takes ``reading_s`` yet."""
        self.seconds = SLACK_MAX_S
        self._target_s = inf
        self.rate = _RATE_MAX
        self.busy_until = now + reading_s
        self._at = now

    def spend(self, reading_s: float, own_s: float | None, now: float) -> float:
        """A prompt was sent that takes so long to read; ``own_s`` is what its own answer has to spare, ``None`` if it
        was promised nothing. Returns a mark for :meth:`begin`; infinity where that has no use."""
        self.read_s(now)
        self.busy_until = max(self.busy_until, now) + reading_s
        self._spent_s += reading_s
        self.seconds -= reading_s
        if own_s is None:
            return inf
        self.seconds = min(self.seconds, own_s)
        return own_s + self._spent_s

    def begin(self, mark_s: float, now: float) -> None:
        """An answer began, later perhaps than foreseen: it has gained nothing before, and lost what was sent since."""
        self.seconds = min(self.read_s(now), mark_s - self._spent_s)
