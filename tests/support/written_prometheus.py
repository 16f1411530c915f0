"""A Prometheus whose series are functions of time: the scaler's questions are answered without a server."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from service.scaler.config import SteeringConfig
from service.scaler.queries import Part, Window, build_miss_query, build_queries, build_valid_query
from service.scaler.source import Labels, Series, SourceError

Value = Callable[[float], float | None]


def label(name: str, value: str) -> Labels:
    return ((name, value),)


@dataclass
class WrittenPrometheus:
    """Answers what is written in ``series`` by question; ``away`` raises."""

    series: dict[str, Mapping[Labels, Value]] = field(default_factory=dict)
    away: bool = False
    asked: int = 0

    async def fetch(self, query: str, begin: float, end: float, step_s: float) -> Series:
        """See ``Source``."""
        self.asked += 1
        if self.away:
            raise SourceError("nobody answers")
        found = {}
        for labels, value in self.series[query].items():
            places = range(int((end - begin) / step_s + 1e-6) + 1)
            known = {place: value(begin + place * step_s) for place in places}
            found[labels] = {place: number for place, number in known.items() if number is not None}
        return found


def write_pool(
    config: SteeringConfig,
    demand: Value,
    workers: Value,
    burn: float = 0.0,
    capacity_burn: float = 0.0,
    gateways: Value = lambda _: 2.0,
) -> WrittenPrometheus:
    """A pool in which all is told."""

    def whole(value: Value) -> Value:
        return lambda at: value(at) if gateways(at) is not None else None

    queries = build_queries(config)
    none: Value = whole(lambda _: 0.0)
    claims = ("guaranteed", "excess", "best_effort")
    source = WrittenPrometheus()
    source.series = {
        queries[Part.DEMAND]: {
            label("claim", "guaranteed"): demand,
            label("claim", "excess"): whole(lambda _: 0.0),
            label("claim", "best_effort"): whole(lambda _: 1.0),
        },
        queries[Part.GATEWAYS]: {(): gateways},
        queries[Part.TARGETS]: {(): lambda _: 2.0},
        queries[Part.QUEUED]: {label("claim", claim): none for claim in claims},
        queries[Part.HELD]: {label("claim", claim): whole(lambda _: 4.0) for claim in claims},
        queries[Part.PERMITS]: {(): whole(lambda _: 100.0)},
        queries[Part.KV]: {(): whole(lambda _: 0.3)},
        queries[Part.WORKERS]: {
            label("state", state): workers if state == "ready" else none
            for state in ("ready", "resting", "starting", "draining", "leaving", "unhealthy")
        },
    }
    for window in Window:
        source.series[build_valid_query(config, window)] = {label("tier", "gold"): whole(lambda _: 1000.0)}
        source.series[build_miss_query(config, window, True)] = {
            label("tier", "gold"): whole(lambda _: capacity_burn * 10.0)
        }
    source.series[build_miss_query(config, Window.H1, False)] = {label("tier", "gold"): whole(lambda _: burn * 10.0)}
    return source
