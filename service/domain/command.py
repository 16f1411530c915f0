"""What the core orders. Commands are carried out in the order given; each names one request."""

from service.domain.outcome import Outcome
from service.domain.units import RequestId, WorkerId
from service.domain.value import value


@value
class Enqueue:
    """Let the request wait; ``queued_requests`` counts those waiting including this one."""

    request_id: RequestId
    queued_requests: int


@value
class Dispatch:
    """Send the request to this worker; a permit is held from now on. ``attempt`` counts from 1."""

    request_id: RequestId
    worker_id: WorkerId
    attempt: int


@value
class Refuse:
    """Answer that it will not be served: rejected at the door, evicted from the queue, or failed for good.

    ``retry_after_s`` is given where a retry can help.
    """

    request_id: RequestId
    outcome: Outcome
    retry_after_s: float | None = None


@value
class Revoke:
    """Take the request back from its worker: abort upstream, then report how far it had come."""

    request_id: RequestId


Command = Enqueue | Dispatch | Refuse | Revoke
