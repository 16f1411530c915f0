"""Who sends requests: tenants with contracts in tiers, and clients that retry, wait or leave.

The same seed gives the same offers whatever the gateway does with them: each tenant draws from a generator of its own.
"""

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from loadtests.sim.arrivals import Arrivals, Process
from loadtests.sim.lengths import Mix, Size
from service.domain.tier import Tier
from service.domain.units import TierName

POISSON = Process()


class Retry(Enum):
    """What a client does when it is refused."""

    NEVER = "never"
    TOLD = "told"
    """Comes back after the ``Retry-After`` it was given (a second if none)."""
    STORM = "storm"
    """Comes back at once, over and over."""


@dataclass(frozen=True, slots=True)
class Client:
    """How the clients of a tenant behave. ``patience_s``: without a first token by then the client leaves."""

    retry: Retry = Retry.NEVER
    retries_max: int = 3
    storm_gap_s: float = 0.1
    patience_s: float | None = None


@dataclass(frozen=True, slots=True)
class TenantSpec:
    """One tenant. ``share`` of the offered rate is its, ``contract_ratio`` x capacity is its contract (``None``: no
    bound; 0: all it sends is excess). ``weight`` is its claim among its tier's tenants when there is too little.
    """

    name: str
    tier: str
    share: float
    contract_ratio: float | None = None
    mix: Mix | None = None
    arrivals: Arrivals = POISSON
    client: Client = Client()
    weight: float = 1.0
    bytes_per_token: float = 4.0
    burst_s: float = 2.0
    """The contract's bucket holds this many seconds of its rate."""


@dataclass(frozen=True, slots=True)
class TierSpec:
    """A tier, what a good request in it earns per 1,000 tokens, and whether peers may be told that it is sheddable."""

    tier: Tier
    revenue: float
    sheddable: bool = False


@dataclass(slots=True)
class Offer:
    """One thing a client wants, sent at least once. ``draw`` decides what is left to chance later (retry jitter)."""

    number: int
    at: float
    tenant: int
    size: Size
    prompt_bytes: int
    draw: float


class Bucket:
    """A token bucket of requests; ``None`` as rate lets all through."""

    __slots__ = ("_at", "_burst", "_left", "_rate")

    def __init__(self, rate: float | None, burst: float) -> None:
        self._rate, self._burst = rate, max(1.0, burst)
        self._left, self._at = self._burst, 0.0

    def take(self, now: float) -> bool:
        """Whether a request at ``now`` is within the contract; it is counted if so."""
        if self._rate is None:
            return True
        if not self._rate:
            return False
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


def iterate_offers(
    tenants: tuple[TenantSpec, ...], mix: Mix, rate: float, until_s: float, seed: int
) -> Iterator[Offer]:
    """Everything offered at ``rate`` requests a second in all, in order of time."""
    streams = [
        _iterate_tenant(index, tenant, mix, rate, until_s, random.Random(f"{seed}:{tenant.name}"))  # noqa: S311
        for index, tenant in enumerate(tenants)
    ]
    merged = heapq.merge(*streams, key=lambda offer: offer.at) if len(streams) > 1 else streams[0]
    for number, offer in enumerate(merged):
        offer.number = number
        yield offer


def _iterate_tenant(
    index: int, tenant: TenantSpec, mix: Mix, rate: float, until_s: float, chance: random.Random
) -> Iterator[Offer]:
    draw = (tenant.mix or mix).open(random.Random(chance.random()))  # noqa: S311 - repeatable on purpose
    for at in tenant.arrivals.iterate(rate * tenant.share, until_s, random.Random(chance.random())):  # noqa: S311
        size = draw()
        noise = chance.random()
        shared = size.cached_tokens  # what was sent before is as long as it was then
        fresh = (size.prompt_tokens - shared) * (0.85 + 0.3 * noise)
        size_bytes = 200 + int((shared + fresh) * tenant.bytes_per_token)
        yield Offer(0, at, index, size, size_bytes, chance.random())


PRIORITY = TierSpec(
    Tier(
        TierName("priority"),
        0,
        availability=0.999,
        attainment=0.99,
        ttft_targets_s=((4096, 1.0), (32_768, 3.0), (131_072, 12.0), (1_048_576, 60.0)),
        tpot_target_s=0.025,
    ),
    revenue=4.0,
)
DEFAULT = TierSpec(
    Tier(
        TierName("default"),
        1,
        availability=0.995,
        attainment=0.99,
        ttft_targets_s=((4096, 2.5), (32_768, 6.0), (131_072, 25.0), (1_048_576, 120.0)),
        tpot_target_s=0.050,
    ),
    revenue=1.0,
)
FLEX = TierSpec(
    Tier(TierName("flex"), 2, best_effort=True, ttft_targets_s=((1_048_576, 20.0),), queue_ttl_s=20.0),
    revenue=0.3,
    sheddable=True,
)
"""Best effort; the simulator counts an answer as good when it begins within 20 s, so that a run of
two minutes tells late from never. Contracts give such tiers minutes."""

HIGH = TierSpec(Tier(TierName("hi"), 0, ttft_targets_s=((1 << 30, 1.0),), tpot_target_s=0.050), revenue=4.0)
LOW = TierSpec(
    Tier(TierName("lo"), 1, ttft_targets_s=((1 << 30, 5.0),), tpot_target_s=0.100), revenue=1.0, sheddable=True
)
"""The two tiers of the comparison on a real engine."""


def find_ttft_target_s(tier: Tier, prompt_tokens: float) -> float:
    """The promise for a prompt of this size; the last edge's for longer ones."""
    for edge, target_s in tier.ttft_targets_s:
        if prompt_tokens <= edge:
            return target_s
    return tier.ttft_targets_s[-1][1] if tier.ttft_targets_s else float("inf")
