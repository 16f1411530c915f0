"""Holds which request occupies which worker: every permit, once, until its last byte."""

from dataclasses import dataclass, field

from service.domain.errors import InvariantError
from service.domain.load import WorkerLoad
from service.domain.permit import Permit
from service.domain.request import Request
from service.domain.units import RequestId, WorkerId
from service.flow.breaker import BreakerState
from service.flow.queue import Waiting


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
    failed_on: frozenset[WorkerId]
    first_token_at: float | None = None
    revoked: bool = False


class PermitLedger:
    """Workers and permits. Granting twice, releasing what nobody holds or naming no worker is an invariant error.

    ``usable`` are the healthy workers that do not drain, in the order they joined; room is another question.
    """

    def __init__(self) -> None:
        self.workers: dict[WorkerId, WorkerState] = {}
        self.running: dict[RequestId, Running] = {}
        self.usable: list[WorkerState] = []

    def worker(self, worker_id: WorkerId) -> WorkerState:
        """The worker of that name."""
        worker = self.workers.get(worker_id)
        if worker is None:
            raise InvariantError(f"worker {worker_id} is not known")
        return worker

    def join(self, worker_id: WorkerId) -> None:
        """List a worker; one that is listed already, or still busy from before, stays as it is."""
        self.workers.setdefault(worker_id, WorkerState(worker_id)).listed = True

    def leave(self, worker_id: WorkerId) -> None:
        """Take a worker off the list; it is remembered until it is empty."""
        worker = self.worker(worker_id)
        worker.listed = worker.healthy = False
        if not worker.held:
            del self.workers[worker_id]

    def sort_out(self) -> None:
        """Find anew who is usable; to be called after each change of a worker. O(workers)."""
        self.usable = [worker for worker in self.workers.values() if worker.healthy and not worker.draining]

    def grant(self, entry: Waiting, worker: WorkerState, now: float) -> Permit:
        """Let the request of ``entry`` occupy ``worker``."""
        request = entry.request
        if request.request_id in self.running:
            raise InvariantError(f"request {request.request_id} already holds a permit")
        permit = Permit(request.request_id, worker.worker_id, now, entry.attempt)
        self.running[request.request_id] = Running(request, entry.prompt_tokens, permit, entry.failed_on)
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
