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


class Excess(Enum):
    """What becomes of traffic above the contract."""

    RUN = "run"
    """It runs at lower rank than anything that is within somebody's contract, and is marked."""

    REFUSE = "refuse"
    """It is refused as the tenant's own doing."""


@dataclass(frozen=True, slots=True)
class Ramp:
    """How fast traffic may grow and still be guaranteed: to ``growth`` times its mean over the last ``window_s``, or to
    the share ``floor`` of the rate, whichever is more."""

    growth: float
    window_s: float
    floor: float


@dataclass(frozen=True, slots=True)
class Allowance:
    """What is guaranteed: so much per second, and a burst above that; ``ramp`` where the rate has to be grown into."""

    per_second: float
    burst: float
    measure: Measure = Measure.WORK
    ramp: Ramp | None = None


@dataclass(frozen=True, slots=True)
class Contract:
    """One tenant's contract beside its tier; ``None`` for what is not limited.

    Requests and tokens (prompt and output) are counted over any minute, ``concurrency`` counts requests that wait or
    run, ``tokens_per_month`` counts over the calendar month in UTC. ``work`` is guaranteed capacity: what comes above
    it is excess and is never refused for it. ``continuation``: a stream whose worker dies may go on at another.
    ``fingerprint`` names these terms in the record, where they are not named with their tenant.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    tokens_per_month: int | None = None
    work: Allowance | None = None
    excess: Excess = Excess.REFUSE
    credits: str | None = None
    continuation: bool = True
    fingerprint: str | None = None

    @property
    def limited(self) -> bool:
        """Whether anything of it is counted before a request is let in."""
        counted = (self.requests_per_minute, self.tokens_per_minute, self.concurrency, self.tokens_per_month)
        return any(limit is not None for limit in counted)
