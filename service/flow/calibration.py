"""Keeps a prediction honest: how much must be added so that a stated share of outcomes stays below it."""

import math

_STEP = 0.03
_LOW, _HIGH = -1.0, 3.0
_TOGETHER = 4
_STALL, _HASTE_MAX = 4, 8
"""After so many exceedances on end the step grows with each that follows, up to so many times. Guesses; if it grew from
the first on, bounds would come out too wide after each stall: goodput at twice the capacity was 4 % less."""


class Quantile:
    """A multiplicative offset e^q such that a share ``level`` of observations stays below prediction * e^q.

    After each observation q moves up by ``step * level`` if it was exceeded, else down by ``step * (1 - level)``: the
    pinball update of adaptive conformal inference (Gibbs & Candes, arXiv 2106.00170), whose long-run coverage error
    vanishes whatever the drift. q stays in [-1, 3], that is a factor of 0.37 to 20. While one outcome after the other
    exceeds the bound, the step grows: where something has jumped, the bound widens within some ten requests.

    Trade-offs: coverage holds over many requests, not for each kind of request.
    """

    __slots__ = ("_factor", "_kept", "_run", "_step", "level", "q")

    def __init__(self, level: float, q: float = 0.0, step: float = _STEP) -> None:
        self.level = level
        self._step = step
        self.q = q
        self._factor = math.exp(q)
        self._kept = 0
        self._run = 0

    def bound_s(self, predicted_s: float) -> float:
        """The value that a share ``level`` of outcomes stays below."""
        return predicted_s * self._factor

    def observe(self, predicted_s: float, observed_s: float) -> None:
        """Learn from one outcome."""
        if predicted_s <= 0.0 or observed_s <= 0.0:
            return
        if observed_s > predicted_s * self._factor:
            self._run += 1  # one in twenty is expected, and a stall makes a few on end; more are another world
            self._move(self._step * self.level * min(max(self._run - _STALL, 1), _HASTE_MAX))
            return
        self._run = 0
        self._kept += 1
        if self._kept == _TOGETHER:  # most are kept, and each moves q a little: several steps are made as one
            self._kept = 0
            self._move(_TOGETHER * self._step * (self.level - 1.0))

    def _move(self, step: float) -> None:
        self.q = min(max(self.q + step, _LOW), _HIGH)
        self._factor = math.exp(self.q)


_SHORT_SHARE = 0.05
_SHORT_STEP = 0.2
_LONGER, _SHORTER = math.exp(_SHORT_STEP * _SHORT_SHARE), math.exp(_SHORT_STEP * (_SHORT_SHARE - 1.0))
_FEWEST = 2.0


class ShortAnswer:
    """How many tokens all but ``_SHORT_SHARE`` of answers exceed: the same pinball update, on the logarithm.

    Trade-offs: it starts at two tokens and needs some hundred answers to find where long ones begin.
    """

    __slots__ = ("tokens",)

    def __init__(self) -> None:
        self.tokens = _FEWEST

    def observe(self, tokens: int) -> None:
        """Learn from one answer."""
        self.tokens = max(self.tokens * (_LONGER if tokens >= self.tokens else _SHORTER), _FEWEST)


_SIZES, _CROWDS = 64, 8
"""Tokens to read, and those who decode meanwhile, are told apart by their number of bits. Finer classes learn more
slowly than they are worth: the median error in the drift scenario was 0.6 points larger."""
_NUDGE = 1.02
"""A median moves so far with each outcome: a tenth is made good within five on end. Slower ones lag, faster ones follow
noise: in the drift scenario the median error was 0.4 points larger with 1.012, and not smaller with 1.03 or 1.04."""
_SAME_SIDE = 12
"""So many outcomes on end on one side of a median are no chance; from there on all sizes move together, faster and
faster, since it is the worker that has changed."""
_FACTOR_MIN, _FACTOR_MAX = 0.2, 5.0


class Medians:
    """What one worker's predictions of the first token must be multiplied with, so that half of the outcomes stay
    below: a factor for each size of what is to be read and of the crowd that decodes ``beside`` it, and one for all of
    them, which follows jumps.

    The law of ``flow.pace`` is a straight line; engines are not (a step is a grain, a long prompt is read in chunks, a
    batch makes steps longer). What it misses is learned here: one multiplication at each outcome.
    """

    __slots__ = ("_by_size", "_common", "_side")

    def __init__(self) -> None:
        self._by_size = [1.0] * (_SIZES * _CROWDS)
        self._common = 1.0
        self._side = 0

    def factor(self, tokens: int, beside: int) -> float:
        """For somebody who waits for ``tokens`` to be read while ``beside`` others decode."""
        return self._by_size[_class_of(tokens, beside)] * self._common

    def observe(self, tokens: int, beside: int, predicted_s: float, observed_s: float) -> None:
        """A first token for which ``predicted_s`` had been foreseen came after ``observed_s``."""
        side = self._side
        if observed_s > predicted_s:
            self._side = side = side + 1 if side > 0 else 1
            nudge = _NUDGE
        else:
            self._side = side = side - 1 if side < 0 else -1
            nudge = 1.0 / _NUDGE
        if -_SAME_SIDE <= side <= _SAME_SIDE:
            size = _class_of(tokens, beside)
            moved = self._by_size[size] * nudge
            if _FACTOR_MIN < moved < _FACTOR_MAX:
                self._by_size[size] = moved
        else:
            run = abs(side) - _SAME_SIDE
            moved = self._common * nudge ** min(1 << (run >> 1), 8)
            self._common = min(max(moved, _FACTOR_MIN), _FACTOR_MAX)


def _class_of(tokens: int, beside: int) -> int:
    return tokens.bit_length() * _CROWDS + min(beside.bit_length(), _CROWDS - 1)
