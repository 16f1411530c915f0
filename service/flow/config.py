"""The numbers the flow core works with, valid and frozen."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BreakerConfig:
    """When a worker is left alone.

    ``failures_to_open`` consecutive broken answers open the breaker (a refused connection opens it at once);
    it stays open for ``open_s``, doubled at every renewed failure up to ``open_max_s``; then one request probes.
    A busy answer only rests the worker for its own ``Retry-After`` or ``busy_rest_s``.
    Values are guesses after Envoy's outlier detection (5 failures, 30 s); measured by the overload bench.
    """

    failures_to_open: int = 3
    open_s: float = 1.0
    open_max_s: float = 30.0
    busy_rest_s: float = 0.5
    busy_rest_max_s: float = 10.0


@dataclass(frozen=True, slots=True)
class RetryConfig:
    """How often a failed attempt may be tried on another worker.

    ``budget_ratio`` retries are earned per arrival, ``budget_burst`` at most are saved up (the retry budget of
    Finagle); ``attempts_max`` counts the first attempt too.
    """

    attempts_max: int = 2
    budget_ratio: float = 0.1
    budget_burst: float = 10.0


@dataclass(frozen=True, slots=True)
class FlowConfig:
    """Bounds of admission and queue.

    ``requests_per_worker`` is the fixed limit of permits per worker. ``queued_requests_max`` and
    ``queued_tokens_max`` bound what waits. ``retry_after_max_s`` caps the advice given with a refusal.
    """

    requests_per_worker: int = 256
    queued_requests_max: int = 1024
    queued_tokens_max: int = 64_000_000
    retry_after_max_s: float = 60.0
    breaker: BreakerConfig = BreakerConfig()
    retry: RetryConfig = RetryConfig()


@dataclass(frozen=True, slots=True)
class Reconfigured:
    """Event: the operator changed the numbers; what is queued or running stays."""

    config: FlowConfig
