"""What can happen to the core. Each event is a frozen value; its moment is passed beside it."""

from enum import Enum

from service.domain.load import WorkerLoad
from service.domain.permit import PermitEnding
from service.domain.replica import ReplicaReport
from service.domain.request import Request
from service.domain.units import ReplicaId, RequestId, WorkerId
from service.domain.value import value


class FailureCause(Enum):
    """Why an attempt failed before a single byte of the answer reached the client."""

    UNREACHABLE = "unreachable"
    """No connection could be opened: the worker is dead or gone."""

    BROKEN = "broken"
    """The connection broke before anything came back, or the worker is shutting down."""

    FAULTY = "faulty"
    """The worker answered 5xx or nonsense. Never tried again: the request itself may be what breaks workers."""

    BUSY = "busy"
    """The worker answered 429 or 503: alive, and too full."""

    TIMEOUT = "timeout"
    """The worker took the request and yielded nothing in time. Never tried again: the first run may still go on."""

    REVOKED = "revoked"
    """Taken back on the core's own order."""


@value
class RequestArrived:
    """A request passed authentication and peeking and asks to be admitted."""

    request: Request


@value
class RequestAbandoned:
    """The client left while its request was waiting in the queue."""

    request_id: RequestId


@value
class FirstTokenSeen:
    """The first token of a request in flight reached the gateway: its prefill is over."""

    request_id: RequestId


@value
class AttemptFailed:
    """An attempt failed and nothing was sent to the client: another worker may try.

    ``retry_after_s`` is the worker's own wish, if it had one.
    """

    request_id: RequestId
    cause: FailureCause
    retry_after_s: float | None = None


@value
class PermitEnded:
    """The last byte was relayed, or the relay was aborted: the permit is given back.

    Token counts are the worker's own, ``None`` where nobody knows them: of the prompt, of its part that came from the
    prefix cache, of the answer.
    """

    request_id: RequestId
    ending: PermitEnding
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


@value
class WorkerJoined:
    """A worker was discovered. It takes no work before it is said to be healthy."""

    worker_id: WorkerId


@value
class WorkerLeft:
    """A worker is no longer listed. Its requests in flight go on until they end."""

    worker_id: WorkerId


@value
class WorkerHealthChanged:
    """Health was judged anew: an unhealthy worker gets no work, and what it holds is taken back."""

    worker_id: WorkerId
    healthy: bool


@value
class WorkerDrainChanged:
    """An operator or the platform wants a worker empty (or useful again): no new work, present streams go on."""

    worker_id: WorkerId
    draining: bool


@value
class WorkerLoadSeen:
    """A worker's own figures were read."""

    worker_id: WorkerId
    load: WorkerLoad


@value
class ReportDue:
    """This gateway, called ``replica_id``, is about to tell the others of itself, or would if it could reach them."""

    replica_id: ReplicaId


@value
class ReplicasSeen:
    """Report ``number`` of this gateway was published, and these are the latest ones of the others."""

    number: int
    reports: tuple[ReplicaReport, ...]


@value
class DrainBegan:
    """The gateway itself is going away: nothing new is admitted, what waits or runs goes on."""


@value
class Woken:
    """The moment that the core asked for has come."""


PoolEvent = (
    WorkerJoined | WorkerLeft | WorkerHealthChanged | WorkerDrainChanged | WorkerLoadSeen | ReportDue | ReplicasSeen
)
"""What happens to workers, or to how much of them is ours."""

Event = (
    RequestArrived | RequestAbandoned | FirstTokenSeen | AttemptFailed | PermitEnded | PoolEvent | DrainBegan | Woken
)
