"""Decides in which band a request stands: guaranteed by its contract, in excess of it, or best effort.

Bands are numbers, 0 first: guaranteed traffic of each rank, then excess of each rank, then best effort. Traffic within
the contract of a cheaper tier comes before excess of a dearer one: otherwise a burst of the dearer tier breaks the
cheaper one's promise.
"""

from dataclasses import dataclass
from enum import Enum
from math import exp, sqrt

from service.domain.contract import Allowance, Measure
from service.domain.tier import Tier

RANKS_MAX = 32
"""Ranks of tiers that are told apart; more would share a band."""

EXCESS = RANKS_MAX
BEST_EFFORT = 2 * RANKS_MAX


class Claim(Enum):
    """What traffic of a band may claim, whatever its rank."""

    GUARANTEED = "guaranteed"
    EXCESS = "excess"
    BEST_EFFORT = "best_effort"


def claim_of(band: int) -> Claim:
    """What a request of this band may claim."""
    if band >= BEST_EFFORT:
        return Claim.BEST_EFFORT
    return Claim.GUARANTEED if is_guaranteed(band) else Claim.EXCESS


def is_guaranteed(band: int) -> bool:
    """Whether traffic of this band is what somebody was promised."""
    return band < EXCESS


def is_excess(band: int) -> bool:
    """Whether traffic of this band is above somebody's contract."""
    return EXCESS <= band < BEST_EFFORT


@dataclass(slots=True)
class ContractBucket:
    """A contract's token bucket, filled at its rate up to its burst; below zero it is in debt.

    ``usual`` is the exponential mean of what is taken per second, kept where the contract has a ramp clause. Traffic
    that takes all it may then grows by e every window_s / (growth - 1).

    *Trade-offs*: what was usual before this gateway heard of the tenant nobody knows; the whole rate is taken for it,
    so that a restart cuts nobody down.
    """

    level: float
    filled_at: float
    usual: float | None = None

    def take(self, allowance: Allowance, work_s: float, now: float, gateways: int = 1) -> bool:
        """Whether a request of ``work_s`` worker-seconds lies within the contract now; if so it is taken.

        Where several gateways serve the tenant, each keeps an equal part of the rate, and a burst that is smaller by
        the root of their number: what one of them sees fluctuates less than the whole by that, so no more of the
        contract is lost than with one bucket. Together they let bursts through that are larger by the same factor.

        One dearer than the whole burst passes when the bucket is full and leaves a debt: a contract of any size admits
        requests of any size, only more rarely, and never more work than its rate allows.
        """
        cost = work_s if allowance.measure is Measure.WORK else 1.0
        burst = allowance.burst if gateways == 1 else allowance.burst / sqrt(gateways)
        rate, ramp = allowance.per_second / gateways, allowance.ramp
        if ramp is not None:
            usual = rate if self.usual is None else self.usual
            self.usual = usual * exp(-(now - self.filled_at) / ramp.window_s)
            rate = min(rate, max(ramp.floor * rate, ramp.growth * self.usual))
        self.level = min(self.level + rate * (now - self.filled_at), burst)
        self.filled_at = now
        if self.level < min(cost, burst) or burst <= 0.0:
            return False
        self.level -= cost
        if ramp is not None and self.usual is not None:
            self.usual += cost / ramp.window_s
        return True


def classify(tier: Tier | None, rank: int, within_contract: bool) -> int:
    """The band of a request."""
    if tier is not None and tier.best_effort:
        return BEST_EFFORT
    rank = min(rank, RANKS_MAX - 1)
    return rank if within_contract else EXCESS + rank
