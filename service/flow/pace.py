"""Learns how fast one worker is: time per output token by batch size, and time to first token by prompt backlog."""

from bisect import bisect_left, bisect_right
from math import log, sqrt

_BATCH_EDGES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_ROW_WEIGHT = 0.25
"""Weight of one reading in its row. A reading comes about once a second, so a row follows within a few seconds. A
guess between the noise of one reading (5-10 %) and the wish to follow; the simulator's drift scenarios measure it."""

_DRIFT_WEIGHT = 0.15
"""How far a surprise in one row moves all others: a machine that slows down, or speculation that is accepted less,
does so at every batch size."""


_JUMP, _JUMP_LEAST = log(1.5), 0.2
_SPREAD_WEIGHT = 0.1


class DecodePace:
    """Mean time per output token as a function of how many requests decode side by side.

    A table over batch sizes, filled by readings and interpolated between them. Speculation is part of what is
    measured: several tokens per step make a smaller time per token, and where its schedule changes with the batch the
    table bends with it. Drift is followed by a mean; a jump, as when drafts are no longer accepted, scales the whole
    table at the second reading that shows it.

    Trade-offs: a batch size that was never seen is extrapolated along the last slope.
    """

    __slots__ = ("_batches", "_known", "_rows", "_spread", "_surprise", "lone_s")

    def __init__(self) -> None:
        self.lone_s = 0.0
        """Time per token of a request that has the worker to itself, as far as it can be told: no promise below it can
        be kept. 0 before anything was measured."""
        self._spread = 0.1
        self._surprise = 0.0
        self._rows: list[tuple[float, float] | None] = [None] * (len(_BATCH_EDGES) + 1)
        self._known: list[tuple[float, float]] = []
        self._batches: list[float] = []

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return bool(self._known)

    def observe(self, batch: float, tpot_s: float) -> None:
        """Learn that ``batch`` requests (a mean over the reading) got a token each ``tpot_s`` seconds."""
        if batch < 0.5 or tpot_s <= 0.0:
            return
        index = bisect_right(_BATCH_EDGES, batch)
        expected = self.predict_s(batch)
        row = self._rows[index]
        if row is not None and expected is not None and self._has_jumped(log(tpot_s / expected)):
            self._rows = [None if one is None else (one[0], one[1] * tpot_s / expected) for one in self._rows]
            expected, row = None, None
        if row is None:
            self._rows[index] = (batch, tpot_s)
        else:
            self._rows[index] = (
                row[0] + _ROW_WEIGHT * (batch - row[0]),
                row[1] + _ROW_WEIGHT * (tpot_s - row[1]),
            )
        if expected is not None:
            factor = min(max(tpot_s / expected, 0.5), 2.0) ** _DRIFT_WEIGHT
            for other, entry in enumerate(self._rows):
                if entry is not None and other != index:
                    self._rows[other] = (entry[0], entry[1] * factor)
        self._known = [row for row in self._rows if row is not None]  # predictions are many, readings few
        self._batches = [row[0] for row in self._known]
        self.lone_s = self._derive_lone_s()

    def _derive_lone_s(self) -> float:
        """Where one batch size was seen, half of its step is taken to be fixed cost; else the line through the least
        and the largest is carried on, which is too low where the curve bends: a promise is given up late, not soon."""
        (batch, tpot_s), (most, most_s) = self._known[0], self._known[-1]
        if most == batch:
            return tpot_s * (0.5 + 0.5 / max(batch, 1.0))
        slope = max((most_s - tpot_s) / (most - batch), 0.0)
        return max(tpot_s - slope * max(batch - 1.0, 0.0), 0.0)

    def _has_jumped(self, surprise: float) -> bool:
        """Whether the machine is another than it was: two readings on end lie far off, on the same side. ``surprise``
        is the logarithm of how far; five times its usual size is far, and so is half again as much in any case."""
        size, before = abs(surprise), self._surprise
        if size <= min(max(5.0 * self._spread, _JUMP_LEAST), _JUMP):
            self._spread += _SPREAD_WEIGHT * (size - self._spread)
            self._surprise = 0.0
            return False
        self._surprise = 0.0 if surprise * before > 0.0 else surprise
        return surprise * before > 0.0

    def predict_s(self, batch: float) -> float | None:
        """Expected time per output token at ``batch``; ``None`` before anything was measured."""
        known = self._known
        if not known:
            return None
        if len(known) == 1 or batch <= known[0][0]:
            first = known[0]
            # one point says nothing of the slope: half of a step is taken to be fixed cost
            return first[1] if batch <= first[0] else first[1] * (0.5 + 0.5 * batch / first[0])
        index = min(bisect_left(self._batches, batch), len(known) - 1)
        below, above = known[index - 1], known[index]
        slope = max((above[1] - below[1]) / (above[0] - below[0]), 0.0)
        return max(above[1] + slope * (batch - above[0]), 1e-6)


_FORGETTING = 0.99
_SPREAD_MAX = 1e4
_KNOWN_SAMPLES = 8


class PrefillPace:
    """Time from dispatch to first token: a fixed part and a part that grows with the prompt tokens still to be read.

    y = fixed_s + per_kilotoken_s * x, x in thousands of uncached prompt tokens, the request's own and those ahead of
    it on the same worker; fitted by recursive least squares with forgetting (Ljung, System Identification, 11.2),
    both parameters kept >= 0. The prior (20 ms, 20k tokens a second) is a guess that a few answers replace.
    Observations count alike, long ones more by their size: weighted by relative error, goodput of equal short prompts
    at twice the capacity was 193 instead of 204 requests a second in the simulator, and 94 % of the dearest tier kept
    their promise instead of all.

    Trade-offs: linear in the tokens, so a very long context, whose attention grows faster, is underestimated until
    such requests are seen.
    """

    __slots__ = ("_p00", "_p01", "_p11", "fixed_s", "per_kilotoken_s", "samples")

    def __init__(self) -> None:
        self.fixed_s = 0.02
        self.per_kilotoken_s = 0.05
        self.samples = 0
        self._p00, self._p01, self._p11 = 1.0, 0.0, 1.0

    @property
    def known(self) -> bool:
        """Whether enough first tokens were seen to build on."""
        return self.samples >= _KNOWN_SAMPLES

    def predict_s(self, tokens: float) -> float:
        """Expected time to first token behind and with ``tokens`` uncached prompt tokens."""
        return self.fixed_s + self.per_kilotoken_s * tokens * 1e-3

    def observe(self, tokens: float, seconds: float) -> None:
        """Learn from one first token."""
        x = tokens * 1e-3
        predicted_s = self.fixed_s + self.per_kilotoken_s * x
        error = seconds - predicted_s
        bound = 4.0 * predicted_s + 0.05
        error = min(max(error, -bound), bound)  # one stall must not bend the line
        p00, p01, p11 = self._p00, self._p01, self._p11
        g0, g1 = p00 + p01 * x, p01 + p11 * x
        scale = 1.0 / (_FORGETTING + g0 + g1 * x)
        # neither part grows far beyond what would explain this observation alone: so the fit is stable at its bounds
        most_s = 10.0 * max(seconds, 1e-4)
        fixed_s = min(self.fixed_s + g0 * scale * error, max(self.fixed_s, most_s))
        slope_s = min(self.per_kilotoken_s + g1 * scale * error, max(self.per_kilotoken_s, most_s / max(x, 1e-3)))
        self.fixed_s, self.per_kilotoken_s = max(fixed_s, 1e-4), max(slope_s, 1e-6)
        # equal prompts teach nothing of the slope, and forgetting would let its spread grow without bound: it is
        # capped, and what the two parts share is kept within what a covariance can be
        self._p00 = min(max((p00 - g0 * g0 * scale) / _FORGETTING, 1e-12), _SPREAD_MAX)
        self._p11 = min(max((p11 - g1 * g1 * scale) / _FORGETTING, 1e-12), _SPREAD_MAX)
        bound = sqrt(self._p00 * self._p11)
        self._p01 = min(max((p01 - g0 * g1 * scale) / _FORGETTING, -bound), bound)
        self.samples += 1


_FIRST_READING_S = 0.03
"""Seconds per thousand prompt tokens before any were seen: a guess, near the reference machine's 24 ms."""

_SAMPLE_CAP = 4.0
_LEAST_READING_S = 1e-3
"""No machine reads a million tokens a second: a guess, twenty times the reference machine's pace."""


class ReadingPace:
    """Seconds of engine time per thousand prompt tokens, by first tokens: time in which prompts were read, over tokens.

    The time of a prompt begins when the one before it was through, since an engine reads them in turn; so what waits
    ahead does not count. The means are decayed, and shrunk towards a prior that weighs ``weight`` thousand tokens: the
    pool's figure for a worker, a guess for the pool.

    Trade-offs: where all prompts are short, the grain of steps is counted as reading.
    """

    __slots__ = ("_keep", "_parent", "_seconds", "_tokens", "_weight", "per_kilotoken_s")

    def __init__(self, keep: float, weight: float, parent: "ReadingPace | None" = None) -> None:
        self._keep, self._weight, self._parent = keep, weight, parent
        self._seconds = self._tokens = 0.0
        self.per_kilotoken_s: float = _FIRST_READING_S if parent is None else parent.per_kilotoken_s

    def observe(self, tokens: int, seconds: float) -> None:
        """A prompt of so many tokens was read in ``seconds``, which may be below zero where the time that is not
        reading was estimated too long; one stall must not count for more than a few prompts."""
        kilotokens = tokens * 1e-3
        seconds = min(seconds, _SAMPLE_CAP * self.per_kilotoken_s * kilotokens + 0.05)
        self._tokens = self._keep * self._tokens + kilotokens
        self._seconds = self._keep * self._seconds + seconds
        prior_s = _FIRST_READING_S if self._parent is None else self._parent.per_kilotoken_s
        per_kilotoken_s = (self._weight * prior_s + self._seconds) / (self._weight + self._tokens)
        self.per_kilotoken_s = max(per_kilotoken_s, _LEAST_READING_S)
