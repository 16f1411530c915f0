"""Measures the work that arrives, by band, so that a queue knows how much of the pool dearer traffic will take."""

from math import exp

_HALF_LIFE_S = 5.0
_DECAY = 0.6931471805599453 / _HALF_LIFE_S


class OfferedWork:
    """Permit-seconds per second offered in each band: an exponentially decayed rate with a half-life of 5 s.

    A guess between following a burst and not being thrown by one; the simulator's burst scenarios measure it.
    """

    __slots__ = ("_rates",)

    def __init__(self) -> None:
        self._rates: dict[int, tuple[float, float]] = {}

    def observe(self, band: int, hold_s: float, now: float) -> None:
        """A request of this band arrived."""
        rate, at = self._rates.get(band, (0.0, now))
        self._rates[band] = (rate * exp(-_DECAY * (now - at)) + _DECAY * hold_s, now)

    def rate_above(self, band: int, now: float) -> float:
        """Permit-seconds per second offered in dearer bands than this one; O(bands)."""
        return sum([rate * exp(-_DECAY * (now - at)) for other, (rate, at) in self._rates.items() if other < band])
