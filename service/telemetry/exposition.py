"""Writes all figures in Prometheus' text formats when somebody scrapes."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from service.telemetry.gauges import Snapshot, read_gauges
from service.telemetry.kinds import Distributions, Family, Kind
from service.telemetry.lag import LoopLag
from service.telemetry.metrics import BUILD_INFO
from service.telemetry.recorder import Recorder

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Exposition(Collector):
    """The one scrape target of this process, on a registry of its own.

    ``gauges`` is called at each scrape, on the loop: it may read the core, which has one writer; so are those of
    ``more``, who have figures of their own. No ``*_created`` series are written: they would double the counters and
    nobody reads them.
    """

    def __init__(
        self,
        recorder: Recorder,
        lag: LoopLag,
        gauges: Callable[[], Snapshot],
        version: str,
        *more: Callable[[], Iterable[Family]],
    ) -> None:
        self._recorder = recorder
        self._lag = lag
        self._gauges = gauges
        self._version = version
        self._more = more
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def render(self, accept: str | None) -> tuple[bytes, str]:
        """Body and content type of an answer to a scrape with this ``Accept`` header."""
        if prefers_openmetrics(accept):
            body: bytes = generate_openmetrics(self._registry)  # type: ignore[no-untyped-call]  # the library says nothing
            return body, OPENMETRICS
        return generate_latest(self._registry), TEXT

    def collect(self) -> Iterator[Metric]:
        """All families; called by the registry."""
        for family in self._recorder.families():
            yield convert_family(family)
        for source in self._more:
            for family in source():
                yield convert_family(family)
        for distributions in self._recorder.distributions():
            yield convert_histograms(distributions)
        for family in read_gauges(self._gauges()):
            yield convert_family(family)
        yield convert_histograms(self._lag.distributions())
        info = InfoMetricFamily(BUILD_INFO.name.removesuffix("_info"), BUILD_INFO.help)
        info.add_metric((), {BUILD_INFO.labels[0]: self._version})
        yield info


def prefers_openmetrics(accept: str | None) -> bool:
    """Whether OpenMetrics is named in ``accept`` with at least the weight of plain text; never fails."""
    weights = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for entry in (accept or "").split(","):
        media, *parameters = (part.strip().lower() for part in entry.split(";"))
        if media in weights:
            weights[media] = max(weights[media], _read_weight(parameters))
    return weights["application/openmetrics-text"] > 0.0 and (
        weights["application/openmetrics-text"] >= weights["text/plain"]
    )


def _read_weight(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, number = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(number)
            except ValueError:
                return 0.0
    return 1.0


def convert_family(family: Family) -> Metric:
    """A counter or gauge as prometheus_client writes it."""
    metric = family.metric
    out: CounterMetricFamily | GaugeMetricFamily
    if metric.kind is Kind.COUNTER:
        out = CounterMetricFamily(metric.name, metric.help, labels=metric.labels, unit=_unit(metric.name, metric.unit))
    else:
        out = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels, unit=_unit(metric.name, metric.unit))
    for labels, value in family.values:
        out.add_metric(labels, value)
    return out


def convert_histograms(distributions: Distributions) -> Metric:
    """A histogram as prometheus_client writes it."""
    metric = distributions.metric
    out = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels, unit=metric.unit)
    for labels, histogram in distributions.series:
        counts = histogram.cumulative()
        names = [*map(repr, histogram.edges), "+Inf"]
        out.add_metric(labels, list(zip(names, counts, strict=True)), histogram.sum_s)
    return out


def _unit(name: str, unit: str) -> str:
    """OpenMetrics names a unit only where the name ends with it; prometheus_client would append it elsewhere."""
    return unit if name.removesuffix("_total").endswith("_" + unit) else ""
