"""Learns how long answers are: a decayed histogram for each tenant, shrunk to its tier's and to everybody's.

Buckets are a factor of sqrt 2 apart (28 of them: 1 to 16,384 tokens, the last is open). Each keeps its mass and the
tokens in it, so a mean over buckets is exact however coarse they are. The weight of an answer halves with every 500
that follow. p_tenant = (n p_own + m p_tier) / (n + m), with m = 20 pseudo-answers, and the tier's in the
same way from everybody's.

An answer that was cut off (the client left, its own bound was reached) was at least so long: its mass goes to the
buckets from there on in proportion to what is there (redistribution to the right, Efron 1967: the Kaplan-Meier curve).

*Trade-offs*: a tenant with two kinds of traffic is foreseen between them; beyond the last bucket a bound of the
client's tells nothing; curves are redrawn only now and then, so they lag by a few answers.
"""

import math
from array import array
from bisect import bisect_right
from itertools import accumulate

from service.domain.units import TierName

BUCKETS = 28
_EDGES: tuple[float, ...] = tuple(2.0 ** (0.5 * (index + 1)) for index in range(BUCKETS))
"""Upper edge of each bucket."""
_INNER_EDGES = _EDGES[:-1]
_NOTHING = bytes(8 * BUCKETS)

_HALF_LIFE = 500.0
_GROWTHS = tuple(2.0 ** (lessons / _HALF_LIFE) for lessons in range(9))
"""By how much the weight of a lesson grows that stands for so many answers."""

_WEIGHT_MAX = 1e12
"""Instead of shrinking what is old, what comes weighs more and more; beyond this all is scaled down."""

_PSEUDO_ANSWERS = 20.0
_REDRAWN_AFTER, _SHARED_REDRAWN_AFTER = 8, 64
"""Lessons between two drawings of a tenant's curve, and of one that many share; while there are few lessons it is
drawn more often."""

FIRST_OUTPUT_TOKENS = 211.0
"""Mean output of the Azure 2023 conversation trace, before any answer was seen."""


class Histogram:
    """Answers of one source by length, the latest counting most; those that were cut off are kept apart."""

    __slots__ = ("_cut_mass", "_cut_tokens", "_mass", "_tokens", "_weight")

    def __init__(self) -> None:
        self._mass = array("d", _NOTHING)
        self._tokens = array("d", _NOTHING)
        self._cut_mass = array("d")
        self._cut_tokens = array("d")
        self._weight = 1.0

    def observe(self, tokens: float, cut: bool, stands_for: int) -> None:
        """An answer came to so many tokens, complete or ``cut`` off; as many as it ``stands_for`` ended meanwhile."""
        index = bisect_right(_INNER_EDGES, tokens)
        self._weight = self._weight * _GROWTHS[stands_for]
        weight = self._weight * stands_for
        if not cut:
            self._mass[index] += weight
            self._tokens[index] += weight * tokens
        else:
            if not self._cut_mass:
                self._cut_mass, self._cut_tokens = array("d", _NOTHING), array("d", _NOTHING)
            self._cut_mass[index] += weight
            self._cut_tokens[index] += weight * tokens
        if weight > _WEIGHT_MAX:
            self._scale_down()

    def _scale_down(self) -> None:
        for row in (self._mass, self._tokens, self._cut_mass, self._cut_tokens):
            row[:] = array("d", [value / self._weight for value in row])
        self._weight = 1.0

    def blend(self, prior: "Curve") -> "Curve":
        """The curve of this source, shrunk towards ``prior``."""
        mass, tokens = self._complete() if self._cut_mass else (self._mass, self._tokens)
        scale = 1.0 / self._weight
        count = scale * sum(mass)
        own, other = scale / (count + _PSEUDO_ANSWERS), _PSEUDO_ANSWERS / (count + _PSEUDO_ANSWERS)
        return Curve(
            [own * mine + other * theirs for mine, theirs in zip(mass, prior.mass, strict=True)],
            [own * mine + other * theirs for mine, theirs in zip(tokens, prior.tokens, strict=True)],
        )

    def _complete(self) -> tuple[list[float], list[float]]:
        """Mass and tokens with those that were cut off where they would have ended: from low to high, what was cut in a
        bucket makes everything beyond it weigh more. Cut ones with nothing beyond are taken for complete."""
        mass, tokens, factor = list(self._mass), list(self._tokens), 1.0
        both = [whole + cut for whole, cut in zip(mass, self._cut_mass, strict=True)]
        beyond = [*accumulate(reversed(both))][-2::-1]  # no subtraction: what is left may be very little of the whole
        for index, left in enumerate((*beyond, 0.0)):
            mass[index] *= factor
            tokens[index] *= factor
            cut = self._cut_mass[index]
            if left > 0.0:
                factor *= 1.0 + cut / left
            else:
                mass[index] += factor * cut
                tokens[index] += factor * self._cut_tokens[index]
        return mass, tokens


class Curve:
    """A distribution of lengths, with what is asked of it worked out: ``mass`` adds up to 1, ``tokens`` to ``mean``."""

    __slots__ = ("_capped", "_level", "_long", "bound", "mass", "mean", "tokens", "within")

    def __init__(self, mass: list[float], tokens: list[float]) -> None:
        self._level = -1.0
        self._long = 0.0
        self.mass = mass
        self.tokens = tokens
        self.mean = sum(tokens)
        capped, below, left = [1.0], 0.0, 1.0
        for part, sum_, edge in zip(mass, tokens, _EDGES, strict=True):
            below += sum_
            left -= part
            capped.append(below + max(left, 0.0) * edge)
        capped[-1] = self.mean
        self._capped = capped
        self.bound = -1
        self.within = 0.0

    def mean_within(self, bound: int) -> float:
        """Mean of min(length, ``bound``), linear between the edges of buckets. The last is kept as ``bound`` and
        ``within``: most clients send the same bound always."""
        index = bisect_right(_EDGES, bound)
        if index >= BUCKETS - 1:
            return self.mean
        low = _EDGES[index - 1] if index else 1.0
        before, after = self._capped[index], self._capped[index + 1]
        self.bound, self.within = bound, before + (after - before) * max(bound - low, 0.0) / (_EDGES[index] - low)
        return self.within

    def long(self, level: float) -> float:
        """:meth:`quantile`, worked out once: the same level is asked for at every request."""
        if level != self._level:
            self._level, self._long = level, self.quantile(level)
        return self._long

    def quantile(self, level: float) -> float:
        """The length that a share ``level`` of answers does not exceed; in its bucket linear in the logarithm."""
        below = 0.0
        for index, part in enumerate(self.mass):
            if part > 0.0 and below + part >= level:
                return _EDGES[index] * math.exp(0.5 * math.log(2.0) * ((level - below) / part - 1.0))
            below += part
        return _EDGES[-1]


def _draw_first() -> Curve:
    """Before anything was seen: all answers are of the mean length."""
    index = bisect_right(_EDGES, FIRST_OUTPUT_TOKENS)
    mass, tokens = [0.0] * BUCKETS, [0.0] * BUCKETS
    mass[index], tokens[index] = 1.0, FIRST_OUTPUT_TOKENS
    return Curve(mass, tokens)


class Source:
    """A histogram with the curve last drawn from it, and what it is shrunk towards."""

    __slots__ = ("_histogram", "_interval", "_lessons", "_prior", "_redrawn_at", "curve")

    def __init__(self, prior: "Source | None", interval: int = _REDRAWN_AFTER) -> None:
        self.curve: Curve = prior.curve if prior is not None else _FIRST
        self._histogram = Histogram()
        self._prior = prior
        self._interval = interval
        self._lessons = 0
        self._redrawn_at = 1

    def observe(self, tokens: int, cut: bool, stands_for: int) -> None:
        """Learn from one answer."""
        self._histogram.observe(tokens, cut, stands_for)
        self._lessons += 1
        if self._lessons >= self._redrawn_at:
            self._redrawn_at = self._lessons + min(1 + self._lessons // 4, self._interval)
            self.curve = self._histogram.blend(self._prior.curve if self._prior is not None else _FIRST)


_FIRST = _draw_first()


class OutputLengths:
    """Where the lengths of tenants come from: one source for each tier, and one over all."""

    def __init__(self) -> None:
        self._all = Source(None, _SHARED_REDRAWN_AFTER)
        self._tiers: dict[TierName, Source] = {}

    def find_curve(self, tier: TierName) -> Curve:
        """How long the answers of a tenant are of which only the tier is known."""
        return (self._tiers.get(tier) or self._all).curve

    def open_tenant(self, tier: TierName) -> Source:
        """A source for a tenant of this tier, of which nothing is known yet."""
        return Source(self._open_tier(tier))

    def observe(self, own: Source, tier: TierName, tokens: int, cut: bool, stands_for: int) -> None:
        """An answer of the tenant of ``own`` came to so many tokens, or was ``cut`` off there."""
        self._all.observe(tokens, cut, stands_for)
        self._open_tier(tier).observe(tokens, cut, stands_for)
        own.observe(tokens, cut, stands_for)

    def _open_tier(self, tier: TierName) -> Source:
        source = self._tiers.get(tier)
        if source is None:
            source = self._tiers[tier] = Source(self._all, _SHARED_REDRAWN_AFTER)
        return source
