"""Keeps a prediction honest: how much must be added so that a stated share of outcomes stays below it."""

import math

_STEP = 0.03
_LOW, _HIGH = -1.0, 2.0
_TOGETHER = 4


class Quantile:
    """A multiplicative offset e^q such that a share ``level`` of observations stays below prediction * e^q.

    After each observation q moves up by ``_STEP * level`` if it was exceeded, else down by ``_STEP * (1 - level)``: the
    pinball update of adaptive conformal inference (Gibbs & Candes, arXiv 2106.00170), whose long-run coverage error
    vanishes whatever the drift. q stays in [-1, 2], that is a factor of 0.37 to 7.4.

    Trade-offs: coverage holds over many requests, not for each kind of request.
    """

    __slots__ = ("_factor", "_kept", "level", "q")

    def __init__(self, level: float, q: float = 0.0) -> None:
        self.level = level
        self.q = q
        self._factor = math.exp(q)
        self._kept = 0

    def bound_s(self, predicted_s: float) -> float:
        """The value that a share ``level`` of outcomes stays below."""
        return predicted_s * self._factor

    def observe(self, predicted_s: float, observed_s: float) -> None:
        """Learn from one outcome."""
        if predicted_s <= 0.0 or observed_s <= 0.0:
            return
        if observed_s > predicted_s * self._factor:
            self._move(_STEP * self.level)
            return
        self._kept += 1
        if self._kept == _TOGETHER:  # most are kept, and each moves q a little: several steps are made as one
            self._kept = 0
            self._move(_TOGETHER * _STEP * (self.level - 1.0))

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
