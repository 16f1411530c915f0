"""Serves what the scaler publishes, in Prometheus' format."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from service.slo.scaling import Decision
from service.telemetry.kinds import Metric as Declared
from service.telemetry.scaler_metrics import (
    DESIRED,
    DESIRED_PART,
    FAILURES,
    FORESEEN,
    FULL_RATIO,
    INPUT_AGE,
    INPUT_COMPLETE,
)


class Bulletin:
    """The last decision of one pool. Read by the thread that serves scrapes: each field is replaced as a whole."""

    def __init__(self, pool: str, wall: Callable[[], float]) -> None:
        self.pool = pool
        self._wall = wall
        self.decision: Decision | None = None
        self.known_at: float | None = None
        """When everything was known last."""
        self.failures = 0

    def publish(self, decision: Decision, at: float) -> None:
        """A decision was made for the step ``at``."""
        if decision.complete:
            self.known_at = at
        # A decision that could not be built on anything does not take back one that could.
        if decision.target is not None or self.decision is None:
            self.decision = decision

    @property
    def input_age_s(self) -> float | None:
        """Seconds since everything was known; ``None`` if that never was."""
        return None if self.known_at is None else max(self._wall() - self.known_at, 0.0)


class Page(Collector):
    """One page for all pools."""

    def __init__(self, bulletins: list[Bulletin]) -> None:
        self._bulletins = bulletins
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def collect(self) -> Iterator[Metric]:
        """All families. What nobody knows is absent: an autoscaler must never take it for a number."""
        desired, part = _gauge(DESIRED), _gauge(DESIRED_PART)
        foreseen, full, age, complete = _gauge(FORESEEN), _gauge(FULL_RATIO), _gauge(INPUT_AGE), _gauge(INPUT_COMPLETE)
        failures = CounterMetricFamily(FAILURES.name, FAILURES.help, labels=FAILURES.labels)
        for bulletin in self._bulletins:
            pool, decision = bulletin.pool, bulletin.decision
            failures.add_metric((pool,), bulletin.failures)
            if bulletin.input_age_s is not None:
                age.add_metric((pool,), bulletin.input_age_s)
            if decision is None:
                continue
            complete.add_metric((pool,), int(decision.complete))
            if decision.target is not None:
                desired.add_metric((pool,), decision.target)
            asked = {
                "forecast": decision.parts.forecast,
                "reactive": decision.parts.reactive,
                "burn": decision.parts.burn,
                "wanted": decision.wanted,
            }
            for name, value in asked.items():
                if value is not None:
                    part.add_metric((pool, name), value)
            for family, known in ((foreseen, decision.foreseen), (full, decision.full_ratio)):
                if known is not None:
                    family.add_metric((pool,), known)
        yield from (desired, part, foreseen, full, age, complete, failures)


def _gauge(metric: Declared) -> GaugeMetricFamily:

    return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
