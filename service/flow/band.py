"""Decides in which band a request stands: guaranteed by its contract, in excess of it, or best effort.

Bands are numbers, 0 first: guaranteed traffic of each rank, then excess of each rank, then best effort. Traffic within
the contract of a cheaper tier comes before excess of a dearer one: otherwise a burst of the dearer tier breaks the
cheaper one's promise.
"""

from dataclasses import dataclass

from service.domain.contract import WorkRate
from service.domain.tier import Tier

RANKS_MAX = 32
"""Ranks of tiers that are told apart; more would share a band."""

EXCESS = RANKS_MAX
BEST_EFFORT = 2 * RANKS_MAX


def is_guaranteed(band: int) -> bool:
    """Whether traffic of this band is what somebody was promised."""
    return band < EXCESS


@dataclass(slots=True)
class WorkBucket:
    """A contract's token bucket in worker-seconds; ``level`` may go below zero once work turned out dearer."""

    level: float
    filled_at: float

    def take(self, rate: WorkRate, work_s: float, now: float) -> bool:
        """Whether ``work_s`` lies within the contract now; if so it is taken."""
        self.level = min(
            self.level + rate.worker_seconds_per_second * (now - self.filled_at), rate.burst_worker_seconds
        )
        self.filled_at = now
        if self.level < work_s and self.level < rate.burst_worker_seconds:
            return False
        self.level -= work_s
        return True


def classify(tier: Tier | None, rank: int, within_contract: bool) -> int:
    """The band of a request."""
    if tier is not None and tier.best_effort:
        return BEST_EFFORT
    rank = min(rank, RANKS_MAX - 1)
    return rank if within_contract else EXCESS + rank
