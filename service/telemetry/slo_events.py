"""Counts what each request was for each indicator: the exact figures that objectives are judged by."""

from collections.abc import Iterable, Iterator
from typing import Protocol

from service.domain.units import TierName
from service.slo.burnrate import Counts, Key
from service.slo.cause import Cause, attribute
from service.slo.objective import Indicator
from service.slo.verdict import MET, Result, Verdict
from service.telemetry.kinds import Family
from service.telemetry.labels import NO_TIER
from service.telemetry.metrics import SLO_EVENTS, SLO_MISSES

_INDICATORS = tuple(Indicator)
COUNTED = (Result.GOOD, Result.BAD, Result.EXCLUDED)
_GOOD, _BAD, _EXCLUDED = COUNTED


class Judged(Protocol):
    """What is read of a settled request."""

    tier: TierName | None
    verdict: Verdict | None


class _Tally:
    """One tier: for each indicator by its place, what was counted. ``met`` counts the usual verdict, in which all four
    are good, in one step. (Counts by pairs of enumeration members took 1.4 us instead of 0.4: members are hashed in
    Python.)"""

    __slots__ = ("bad", "excluded", "good", "met", "misses")

    def __init__(self) -> None:
        self.met = 0
        self.good = [0] * len(_INDICATORS)
        self.bad = [0] * len(_INDICATORS)
        self.excluded = [0] * len(_INDICATORS)
        self.misses = dict.fromkeys(Cause, 0)

    def counts(self, place: int) -> tuple[int, int, int]:
        """Good, bad and excluded so far."""
        return self.good[place] + self.met, self.bad[place], self.excluded[place]


class SloEvents:
    """An accountant. Every label set is there from the start at 0: Prometheus' ``increase`` misses the first event of a
    series that is born at 1.

    Each request counts once under ``availability``, so that its good, bad and excluded events add up to all requests;
    under the others only where they apply to it. A tier that is not configured counts as ``none``.

    Cost in CPU, CPython 3.11, two busy shared cores, best of nine: 0.11 us for a request that met everything, 0.45 us
    for any other, 0.2 us more if it missed.
    """

    def __init__(self, tiers: Iterable[TierName], model: str) -> None:
        self._model = model
        self._tallies: dict[TierName | None, _Tally] = {}
        self.reconfigure(tiers)
        self._nameless = self._tallies[None] = _Tally()

    def reconfigure(self, tiers: Iterable[TierName]) -> None:
        """Tiers that are not known begin at zero; one that is gone keeps its series, since counters do not go away."""
        for name in tiers:
            self._tallies.setdefault(name, _Tally())

    def settle(self, settled: Judged) -> None:
        """Count a request that has ended and was judged."""
        tally = self._tallies.get(settled.tier, self._nameless)
        verdict = settled.verdict
        if verdict is MET:
            tally.met += 1
        elif verdict is not None:
            for place, result in enumerate((verdict.availability, verdict.ttft, verdict.tpot, verdict.met_all)):
                if result is _GOOD:
                    tally.good[place] += 1
                elif result is _BAD:
                    tally.bad[place] += 1
                elif result is _EXCLUDED:
                    tally.excluded[place] += 1
            if verdict.met_all is _BAD and (cause := attribute(verdict)) is not None:
                tally.misses[cause] += 1

    def counts(self) -> Counts:
        """Bad and valid events so far."""
        found: dict[Key, tuple[int, int]] = {}
        for name, tally in self._tallies.items():
            if name is not None:
                for place, indicator in enumerate(_INDICATORS):
                    good, bad, _ = tally.counts(place)
                    found[name, indicator] = (bad, good + bad)
        return found

    def short_counts(self) -> Counts:
        """Requests that missed for want of capacity, and those that were judged, so far."""
        place = _INDICATORS.index(Indicator.ALL)
        found: dict[Key, tuple[int, int]] = {}
        for name, tally in self._tallies.items():
            if name is not None:
                good, bad, _ = tally.counts(place)
                found[name, Indicator.ALL] = (tally.misses[Cause.CAPACITY], good + bad)
        return found

    def families(self) -> Iterator[Family]:
        """The counter with its present values."""
        yield Family(
            SLO_EVENTS,
            [
                ((name or NO_TIER, self._model, indicator.value, result.value), count)
                for name, tally in self._tallies.items()
                for place, indicator in enumerate(_INDICATORS)
                for result, count in zip(COUNTED, tally.counts(place), strict=True)
            ],
        )

    def misses(self) -> Iterator[Family]:
        """What was missed, by cause."""
        yield Family(
            SLO_MISSES,
            [
                ((name or NO_TIER, cause.value), count)
                for name, tally in self._tallies.items()
                for cause, count in tally.misses.items()
            ],
        )
