"""The numbers the flow core works with, valid and frozen."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from service.domain.contract import Allowance
from service.domain.tier import Tier
from service.domain.units import TenantId, TierName
from service.flow.limit import FIRST_LIMIT


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
class SheddingConfig:
    """What is given up first, and how much of it may be wasted.

    ``floor_ratio`` of the dispatched work goes to traffic beyond contracts while it waits. At most ``revoked_ratio``
    of the output of the last minute may be thrown away by taking work back. ``brownout_forced`` is the operator's:
    1 refuses best effort, 2 excess too and suspends the floor, 3 the lowest guaranteed rank as well; what waits or runs
    goes on. ``ceilings`` say up to which share of a worker's permits traffic of a band may be sent there, so that the
    rest stays free for dearer bands; a band that is not named has none. An idle worker takes one of any band.
    """

    floor_ratio: float = 0.02
    revoked_ratio: float = 0.05
    brownout_forced: int = 0
    ceilings: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class SharingConfig:
    """Where several gateways serve the same workers: one that has not been heard of for ``lease_s`` counts no longer.
    ``replicas_assumed`` are taken to be there before the others could be asked."""

    lease_s: float = 1.0
    replicas_assumed: int = 4


@dataclass(frozen=True, slots=True)
class FlowConfig:
    """Bounds of admission and queue.

    ``requests_per_worker`` caps the permits per worker; how many are really given is found (``flow.limit``), from
    ``requests_per_new_worker`` on, which hold from the worker's first reading. One that never told a reading is given
    all that the operator allows: nothing could be found there.
    ``queued_requests_max`` and ``queued_tokens_max`` bound what waits. ``retry_after_max_s`` caps the advice given
    with a refusal. ``contracts`` are guaranteed rates by tenant; a tenant without one is guaranteed all it sends.
    """

    requests_per_worker: int = 1024
    requests_per_new_worker: int = FIRST_LIMIT
    queued_requests_max: int = 10_000
    queued_tokens_max: int = 64_000_000
    retry_after_max_s: float = 60.0
    tiers: Mapping[TierName, Tier] = field(default_factory=dict)
    contracts: Mapping[TenantId, Allowance] = field(default_factory=dict)
    breaker: BreakerConfig = BreakerConfig()
    retry: RetryConfig = RetryConfig()
    shedding: SheddingConfig = SheddingConfig()
    sharing: SharingConfig = SharingConfig()


@dataclass(frozen=True, slots=True)
class Reconfigured:
    """Event: the operator changed the numbers; what is queued or running stays."""

    config: FlowConfig
