"""What the core orders. Commands are carried out in the order given; each names one request."""

from dataclasses import dataclass

from service.domain.outcome import Outcome
from service.domain.units import RequestId, WorkerId


@dataclass(frozen=True, slots=True)
class Enqueue:
    """Let the request wait; ``queued_requests`` counts those waiting including this one."""

    request_id: RequestId
    queued_requests: int


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send the request to this worker; a permit is held from now on. ``attempt`` counts from 1."""

    request_id: RequestId
    worker_id: WorkerId
    attempt: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer that it will not be served: rejected at the door, evicted from the queue, or failed for good.

    ``retry_after_s`` is given where a retry can help.
    """

    request_id: RequestId
    outcome: Outcome
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Revoke:
    """Take the request back from its worker: abort upstream, then report how far it had come."""

    request_id: RequestId


Command = Enqueue | Dispatch | Refuse | Revoke
