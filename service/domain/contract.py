"""What one tenant bought in its tier."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkRate:
    """Work that is guaranteed: so many worker-seconds per second, and a burst above that.

    One worker-second is what one worker does in a second within the targets, so the rates of all contracts add up to
    the number of workers they need.
    """

    worker_seconds_per_second: float
    burst_worker_seconds: float
