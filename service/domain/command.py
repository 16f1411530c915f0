"""What the core orders. Commands are carried out in the order given; each names one request."""

from service.domain.outcome import Outcome
from service.domain.units import RequestId, WorkerId
from service.domain.value import value


@value
class Grounds:
    """Why: what the core knew when it decided, enough to say it in words later.

    ``band``: guaranteed ranks first, then excess, then best effort (``flow.band``). ``due_at`` is the promised moment
    of the first token, ``give_up_at`` the latest moment of dispatch. ``wait_s`` is the foreseen wait, ``ttft_s`` the
    foreseen time from dispatch to first token; ``held`` of ``limit`` permits of the worker were in use, and
    ``cached_tokens`` of the prompt should be in its prefix cache. ``bound_s`` is by when the first token comes
    nineteen times out of twenty: from arrival if the request waits, from dispatch if it is sent.
    """

    band: int
    prompt_tokens: int
    output_tokens: int
    due_at: float | None
    give_up_at: float
    queued_requests: int
    permits: int
    wait_s: float | None = None
    ttft_s: float | None = None
    held: int | None = None
    limit: int | None = None
    cached_tokens: int | None = None
    bound_s: float | None = None


@value
class Enqueue:
    """Let the request wait; ``queued_requests`` counts those waiting including this one."""

    request_id: RequestId
    queued_requests: int
    grounds: Grounds | None = None


@value
class Dispatch:
    """Send the request to this worker; a permit is held from now on. ``attempt`` counts from 1."""

    request_id: RequestId
    worker_id: WorkerId
    attempt: int
    grounds: Grounds | None = None


@value
class Refuse:
    """Answer that it will not be served: rejected at the door, evicted from the queue, or failed for good.

    ``retry_after_s`` is given where a retry can help.
    """

    request_id: RequestId
    outcome: Outcome
    retry_after_s: float | None = None
    grounds: Grounds | None = None


@value
class Revoke:
    """Take the request back from its worker: abort upstream, then report how far it had come.

    ``outcome`` is how it ends if part of its answer was sent already; else it may wait for another turn.
    """

    request_id: RequestId
    outcome: Outcome


Command = Enqueue | Dispatch | Refuse | Revoke
