"""Measures the work that arrives, by band, so that a queue knows how much of the pool dearer traffic will take, and
whoever decides about workers how many it takes."""

from math import exp

_HALF_LIFE_S = 5.0
_DECAY = 0.6931471805599453 / _HALF_LIFE_S
_GRAIN_S = 0.1


class OfferedWork:
    """Permit-seconds per second offered in each band: an exponentially decayed rate with a half-life of 5 s.

    A guess between following a burst and not being thrown by one; the simulator's burst scenarios measure it.
    """

    __slots__ = ("_at", "_fresh", "_rates", "work_s")

    def __init__(self) -> None:
        self._rates: dict[int, float] = {}
        self._fresh: dict[int, float] = {}
        self._at = 0.0
        self.work_s: dict[int, float] = {}
        """Worker-seconds offered so far, by band; what was refused is in it."""

    def observe(self, band: int, hold_s: float, work_s: float, now: float) -> None:
        """A request of this band arrived, which will hold a permit for ``hold_s`` and costs ``work_s`` worker-seconds.
        What came within ``_GRAIN_S`` is added up and decays together."""
        if now - self._at > _GRAIN_S:
            self._fold(now)
        self._fresh[band] = self._fresh.get(band, 0.0) + hold_s
        self.work_s[band] = self.work_s.get(band, 0.0) + work_s

    def rate_above(self, band: int, now: float) -> float:
        """Permit-seconds per second offered in dearer bands than this one; O(bands)."""
        self._fold(now)
        return sum([rate for other, rate in self._rates.items() if other < band])

    def rates(self, now: float) -> dict[int, float]:
        """Permit-seconds per second offered in each band."""
        self._fold(now)
        return dict(self._rates)

    def _fold(self, now: float) -> None:
        keep = exp(-_DECAY * (now - self._at))
        self._at = now
        for band in self._rates:
            self._rates[band] *= keep
        for band, hold_s in self._fresh.items():
            self._rates[band] = self._rates.get(band, 0.0) + _DECAY * hold_s
        self._fresh.clear()
