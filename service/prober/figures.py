"""Counts probes and writes the figures for Prometheus."""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from service.prober.probe import ProbeResult
from service.telemetry.exposition import convert_family, convert_histograms
from service.telemetry.histogram import Histogram
from service.telemetry.kinds import Distributions, Family
from service.telemetry.prober_metrics import PROBE_TTFT, PROBES


class ProbeFigures(Collector):
    """Counters and times by tier; there from the start at 0."""

    def __init__(self, tiers: Iterable[str]) -> None:
        tiers = tuple(tiers)
        self._counts = {(tier, result): 0 for tier in tiers for result in ("good", "bad")}
        self._times = {tier: Histogram(PROBE_TTFT.edges) for tier in tiers}

    def count(self, tier: str, result: ProbeResult) -> None:
        """One probe has ended."""
        self._counts[tier, "bad" if result.fault else "good"] += 1
        if result.ttft_s is not None:
            self._times[tier].observe(result.ttft_s)

    def collect(self) -> Iterator[Metric]:
        """All figures; called by the registry."""
        yield convert_family(Family(PROBES, list(self._counts.items())))
        yield convert_histograms(Distributions(PROBE_TTFT, [((tier,), times) for tier, times in self._times.items()]))


def serve_figures(figures: ProbeFigures, host: str, port: int) -> None:
    """Answer scrapes on a thread of its own until the process ends; ``OSError`` if the port cannot be had."""
    registry = CollectorRegistry()
    registry.register(figures)
    start_http_server(port, host, registry)
