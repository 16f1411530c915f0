"""Decides whether a failed attempt may be made again elsewhere: a budget earned by arrivals, as in Finagle."""

from dataclasses import dataclass

from service.domain.event import FailureCause
from service.flow.config import RetryConfig


@dataclass(slots=True)
class RetryBudget:
    """Retries that may still be spent. Starts full, so that the first failure after a start can be mended."""

    left: float

    def earn(self, config: RetryConfig) -> None:
        """One arrival earns its share of a retry."""
        if self.left < config.budget_burst:
            self.left += config.budget_ratio
            if self.left > config.budget_burst:  # not min(): this is on the way of every request
                self.left = config.budget_burst

    def spend(self, cause: FailureCause, attempt: int, config: RetryConfig) -> bool:
        """Take one retry for an attempt that failed; ``False`` when it must not be tried again.

        A timeout is never tried again (the first run may still go on and would be paid twice), nor is an answer
        that the worker really gave. Work that the core itself took back costs no budget.
        """
        if cause in (FailureCause.TIMEOUT, FailureCause.FAULTY) or attempt >= config.attempts_max:
            return False
        if cause is FailureCause.REVOKED:
            return True
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True
