"""Holds which request occupies which worker: every permit, once, until its last byte."""

from dataclasses import dataclass, field

from service.domain.errors import InvariantError
from service.domain.load import WorkerLoad
from service.domain.permit import Permit
from service.domain.request import Request
from service.domain.units import RequestId, WorkerId
from service.flow.breaker import BreakerState


@dataclass(slots=True)
class WorkerState:
    """One worker as the core sees it. ``held`` are the requests on it now, in order of dispatch."""

    worker_id: WorkerId
    healthy: bool = False
    draining: bool = False
    listed: bool = True
    held: dict[RequestId, None] = field(default_factory=dict)
    breaker: BreakerState = field(default_factory=BreakerState)
    load: WorkerLoad | None = None

    @property
    def in_flight(self) -> int:
        """Permits held on this worker."""
        return len(self.held)


@dataclass(slots=True)
class Running:
    """One request on a worker."""

    request: Request
    prompt_tokens: int
    permit: Permit
    first_token_at: float | None = None
    revoked: bool = False


class PermitLedger:
    """Workers and permits. Granting twice or releasing what nobody holds is an invariant error."""

    def __init__(self) -> None:
        self.workers: dict[WorkerId, WorkerState] = {}
        self.running: dict[RequestId, Running] = {}

    def grant(self, request: Request, prompt_tokens: int, worker: WorkerState, attempt: int, now: float) -> Permit:
        """Let ``request`` occupy ``worker``."""
        if request.request_id in self.running:
            raise InvariantError(f"request {request.request_id} already holds a permit")
        permit = Permit(request.request_id, worker.worker_id, now, attempt)
        self.running[request.request_id] = Running(request, prompt_tokens, permit)
        worker.held[request.request_id] = None
        return permit

    def release(self, request_id: RequestId) -> tuple[Running, WorkerState]:
        """Give the permit of ``request_id`` back; forget a worker that has left and is now empty."""
        running = self.running.pop(request_id, None)
        if running is None:
            raise InvariantError(f"request {request_id} holds no permit")
        worker = self.workers[running.permit.worker_id]
        del worker.held[request_id]
        if not worker.listed and not worker.held:
            del self.workers[worker.worker_id]
        return running, worker
