"""Declares the metrics of the prober, a process of its own."""

from service.telemetry.kinds import Declared, Metric

_declare = Declared()

PROBES = _declare.counter(
    "sluice_probe_requests_total", "requests", "Synthetic requests that ended, by whether the answer was as promised.",
    "tier", "result",
)  # fmt: skip
PROBE_TTFT = _declare.histogram(
    "sluice_probe_ttft_seconds",
    "Sending a synthetic request to its first token, connecting included, of those that got one.",
    "As for sluice_ttft_seconds; probes are short prompts.",
    (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 2.5, 5.0, 10.0, 30.0, 60.0),
    "tier",
)

PROBER_METRICS: tuple[Metric, ...] = tuple(_declare.metrics)
