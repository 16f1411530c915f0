"""The right to occupy a worker, and how it ends."""

from enum import Enum

from service.domain.units import RequestId, WorkerId
from service.domain.value import value


class PermitEnding(Enum):
    """How a permit ended, in the sense of Netflix' concurrency-limits: what the limit may learn from it."""

    SERVED = "served"
    """The worker did the work: its timings are a sample."""

    IGNORED = "ignored"
    """Says nothing about the worker: the client left, or sent something the worker refused."""

    DROPPED = "dropped"
    """The worker failed or was too busy: a sign of trouble."""


@value
class Permit:
    """Held from dispatch until the last byte or the abort, never only until the response headers."""

    request_id: RequestId
    worker_id: WorkerId
    granted_at: float
    attempt: int
