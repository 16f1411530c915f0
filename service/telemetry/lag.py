"""Measures how late the event loop is, from moments that somebody else takes."""

from service.telemetry.histogram import Histogram
from service.telemetry.kinds import Distributions
from service.telemetry.metrics import LOOP_LAG


class LoopLag:
    """Fed by whoever rings a timer regularly: when it was due, and when it rang.

    Trade-offs: a loop that hangs is seen only when it comes back, as one long lag.
    """

    def __init__(self) -> None:
        self._histogram = Histogram(LOOP_LAG.edges)

    def observe(self, scheduled_at: float, actual_at: float) -> None:
        """A timer due at ``scheduled_at`` rang at ``actual_at``."""
        self._histogram.observe(actual_at - scheduled_at)

    def distributions(self) -> Distributions:
        """The lags seen so far."""
        return Distributions(LOOP_LAG, [((), self._histogram)])
