"""Estimates how long the queue takes, for early refusals and for the advice given with them."""

from dataclasses import dataclass

_SMOOTHING = 0.05
"""Weight of one finished request in the mean; about the last 20 count. A guess, to be measured by the simulator."""

_SPREAD_LOW, _SPREAD_HIGH = 0.8, 1.3
"""Advice is spread over this range of the estimate, so that refused clients do not return together."""


@dataclass(slots=True)
class HoldingTime:
    """Moving mean of the time a permit is held, in seconds; ``None`` before the first one ended."""

    mean_s: float | None = None

    def observe(self, held_s: float) -> None:
        """Learn from a request that was served."""
        self.mean_s = held_s if self.mean_s is None else self.mean_s + _SMOOTHING * (held_s - self.mean_s)

    def estimate_wait_s(self, ahead_requests: int, permits_total: int) -> float | None:
        """Expected wait behind ``ahead_requests`` when ``permits_total`` requests run side by side (Little's law).

        ``None`` when nothing was served yet or nothing can run. Trade-offs: takes all requests as alike.
        """
        if self.mean_s is None or permits_total <= 0:
            return None
        return ahead_requests * self.mean_s / permits_total


def compute_retry_after_s(wait_s: float | None, cap_s: float, draw: float) -> float:
    """Seconds after which a refused client should return: the estimated wait, spread by ``draw`` in [0, 1).

    Without an estimate one second is the base. At least 0.1 s, at most ``cap_s``.
    """
    base = 1.0 if wait_s is None else wait_s
    spread = _SPREAD_LOW + (_SPREAD_HIGH - _SPREAD_LOW) * draw
    return min(max(base * spread, 0.1), cap_s)
