"""What one tenant bought in its tier."""

from dataclasses import dataclass
from enum import Enum


class Measure(Enum):
    """What a contract counts."""

    WORK = "work"
    """Worker-seconds: what one worker does in a second within the targets. The rates of all contracts add up to the
    number of workers they need."""

    REQUESTS = "requests"
    """Requests, whatever their size."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """What is guaranteed: so much per second, and a burst above that."""

    per_second: float
    burst: float
    measure: Measure = Measure.WORK
