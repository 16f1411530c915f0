"""Declares the metrics of the scaler, a process of its own."""

from service.telemetry.kinds import Declared, Metric

_declare = Declared()

DESIRED = _declare.gauge(
    "sluice_desired_replicas", "",
    "How many workers the pool should have; absent until anything is known. Every scaler of a pool says the same.",
    "pool",
)  # fmt: skip
DESIRED_PART = _declare.gauge(
    "sluice_desired_replicas_part", "",
    "What each term of the law asks for: the forecast, the present, the budget; wanted is the greatest with the spare.",
    "pool", "part",
)  # fmt: skip
FORESEEN = _declare.gauge(
    "sluice_scaler_foreseen_workers", "workers", "Workers' worth of demand foreseen within the lead time.", "pool"
)  # fmt: skip
FULL_RATIO = _declare.gauge(
    "sluice_scaler_full_ratio", "ratio", "How full workers are planned; the slow budget moves it.", "pool"
)  # fmt: skip
INPUT_AGE = _declare.gauge(
    "sluice_scaler_input_age_seconds", "seconds", "Since everything was known last; absent if it never was.", "pool"
)  # fmt: skip
INPUT_COMPLETE = _declare.gauge(
    "sluice_scaler_input_complete", "", "1 if everything was known at the last decision, else 0.", "pool"
)  # fmt: skip
FAILURES = _declare.counter(
    "sluice_scaler_failures_total", "failures", "Steps without an answer of Prometheus: the last target stood.", "pool"
)  # fmt: skip

SCALER_METRICS: tuple[Metric, ...] = tuple(_declare.metrics)
