"""When requests come: renewal processes of a given coefficient of variation, bent by a shape over time, and traces.

A process is drawn in operational time, in which its rate is 1, and mapped to real time through the integral of the
rate: exact for Poisson, and for Gamma it keeps the burstiness at every rate.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from loadtests.sim.traces import load_trace


@dataclass(frozen=True, slots=True)
class Stretch:
    """From ``begin_s`` to ``end_s`` the rate is multiplied by ``factor``."""

    begin_s: float
    end_s: float
    factor: float


Shape = tuple[Stretch, ...]
"""Stretches in order and apart from each other; elsewhere the factor is 1."""

STEADY: Shape = ()


def build_step(at_s: float, factor: float) -> Shape:
    """From ``at_s`` on another rate."""
    return (Stretch(at_s, math.inf, factor),)


def build_burst(at_s: float, length_s: float, factor: float) -> Shape:
    """Another rate for a while."""
    return (Stretch(at_s, at_s + length_s, factor),)


def build_ramp(begin_s: float, end_s: float, first: float, last: float) -> Shape:
    """From factor ``first`` to ``last`` in steps of a second, ``last`` from then on."""
    steps = max(1, int(end_s - begin_s))
    each = (end_s - begin_s) / steps
    ramp = [
        Stretch(begin_s + i * each, begin_s + (i + 1) * each, first + (last - first) * (i + 0.5) / steps)
        for i in range(steps)
    ]
    before = [Stretch(0.0, begin_s, first)] if begin_s > 0 else []
    return (*before, *ramp, Stretch(end_s, math.inf, last))


def build_diurnal(day_s: float, low: float, high: float, days: int = 1) -> Shape:
    """A cosine between ``low`` (at 0) and ``high`` (at half a day) in steps of a hundredth of a day."""
    each = day_s / 100.0
    return tuple(
        Stretch(i * each, (i + 1) * each, low + (high - low) * (1.0 - math.cos(2.0 * math.pi * (i + 0.5) / 100.0)) / 2)
        for i in range(100 * days)
    )


@dataclass(frozen=True, slots=True)
class Process:
    """Gaps between requests. ``cv`` 1 is Poisson, above is bursty (Gamma), 0 is a metronome."""

    cv: float = 1.0
    shape: Shape = STEADY

    def iterate(self, rate: float, until_s: float, chance: random.Random) -> Iterator[float]:
        """Moments from 0 on, ``rate`` a second where the shape's factor is 1."""
        if rate <= 0.0:
            return
        edges = _list_edges(self.shape)
        index, now = 0, 0.0
        while True:
            need = self._draw_gap(chance) / rate
            while True:
                end, factor = edges[index]
                room = factor * (end - now) if factor else 0.0
                if room >= need:
                    now += need / factor
                    break
                need -= room
                now = end
                index += 1
                if now >= until_s:
                    return
            if now >= until_s:
                return
            yield now

    def _draw_gap(self, chance: random.Random) -> float:
        if self.cv == 1.0:
            return chance.expovariate(1.0)
        if not self.cv:
            return 1.0
        return chance.gammavariate(1.0 / self.cv**2, self.cv**2)


@dataclass(frozen=True, slots=True)
class TraceProcess:
    """The gaps of a trace from the place ``begin_ratio`` of it, over and over, scaled to the mean rate wanted."""

    trace: str
    begin_ratio: float = 0.0

    def iterate(self, rate: float, until_s: float, chance: random.Random) -> Iterator[float]:
        """Moments from 0 on."""
        rows = load_trace(self.trace)
        if rate <= 0.0:
            return
        length_s = rows[-1].at_s * len(rows) / (len(rows) - 1)
        scale = len(rows) / length_s / rate
        index = int(self.begin_ratio * len(rows))
        begun_s = rows[index].at_s
        while True:
            lap, place = divmod(index, len(rows))
            now = (rows[place].at_s + lap * length_s - begun_s) * scale
            if now >= until_s:
                return
            yield now
            index += 1


Arrivals = Process | TraceProcess


def _list_edges(shape: Shape) -> list[tuple[float, float]]:
    """(end, factor) of adjoining stretches that cover all time."""
    edges: list[tuple[float, float]] = []
    now = 0.0
    for stretch in shape:
        if stretch.begin_s > now:
            edges.append((stretch.begin_s, 1.0))
        edges.append((stretch.end_s, stretch.factor))
        now = stretch.end_s
    if now < math.inf:
        edges.append((math.inf, 1.0))
    return edges
