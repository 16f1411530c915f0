"""Says what a metric is made of: its declaration, and its present values."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from service.telemetry.histogram import Histogram


class Kind(Enum):
    """What Prometheus takes a metric for."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. ``name`` is the name as scraped, without the suffixes of a histogram; ``unit`` is part of it.

    ``edges`` are a histogram's base buckets in seconds, ``why`` the reason for them; which thresholds of the configured
    tiers become edges too is said in :data:`TIER_EDGES`.
    """

    name: str
    kind: Kind
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    edges: tuple[float, ...] = ()
    why: str = ""


class Family(NamedTuple):
    """One metric with all its present values, each under its label values."""

    metric: Metric
    values: Sequence[tuple[tuple[str, ...], float]]


class Distributions(NamedTuple):
    """One histogram metric with all its series, each under its label values."""

    metric: Metric
    series: Sequence[tuple[tuple[str, ...], Histogram]]


@dataclass(slots=True)
class Declared:
    """The metrics of one process, in the order in which they are declared."""

    metrics: list[Metric] = field(default_factory=list)

    def counter(self, name: str, unit: str, text: str, *labels: str) -> Metric:
        """Only grows."""
        return self._add(Metric(name, Kind.COUNTER, unit, text, labels))

    def gauge(self, name: str, unit: str, text: str, *labels: str) -> Metric:
        """Goes up and down."""
        return self._add(Metric(name, Kind.GAUGE, unit, text, labels))

    def histogram(self, name: str, text: str, why: str, edges: tuple[float, ...], *labels: str) -> Metric:
        """Counts by buckets of seconds."""
        return self._add(Metric(name, Kind.HISTOGRAM, "seconds", text, labels, edges, why))

    def info(self, name: str, text: str, *labels: str) -> Metric:
        """Always 1; its labels are the news."""
        return self._add(Metric(name, Kind.INFO, "", text, labels))

    def _add(self, metric: Metric) -> Metric:
        self.metrics.append(metric)
        return metric
