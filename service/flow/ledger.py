"""Holds which request occupies which worker: every permit, once, until its last byte."""

from dataclasses import dataclass
from math import inf

from service.domain.errors import InvariantError
from service.domain.permit import Permit
from service.domain.units import RequestId, WorkerId
from service.flow.band import is_guaranteed
from service.flow.limit import FIRST_LIMIT, WorkerLimit
from service.flow.pace import DecodePace, ReadingPace
from service.flow.prefix import CacheTrust
from service.flow.waiting import Waiting
from service.flow.worker import READING_KEEP, READING_WEIGHT, WorkerState, find_known_ratio

_POOL_KEEP, _POOL_WEIGHT = 0.998, 5.0
"""The pool's pace of reading: some five hundred prompts count, and the first guess as much as five thousand tokens."""


@dataclass(slots=True)
class Running:
    """One request on a worker. ``ahead_tokens`` are the uncached prompt tokens, its own among them, that the worker had
    to read before its first token; ``ttft_s`` is when that was foreseen, from dispatch; ``mark_s`` see
    :meth:`service.flow.slack.Slack.begin`; ``known_ratio`` is the part of the prompt that the worker's prefix cache
    should hold; ``beside`` were decoding there when it came."""

    entry: Waiting
    permit: Permit
    tokens: int
    ahead_tokens: int
    ttft_s: float
    mark_s: float
    known_ratio: float = 0.0
    beside: int = 0
    first_token_at: float | None = None
    revoked: bool = False


class PermitLedger:
    """Workers and permits. Granting twice, releasing what nobody holds or naming no worker is an invariant error.

    ``usable`` are the healthy workers that do not drain, in the order they joined; room is another question.
    """

    def __init__(self) -> None:
        self.workers: dict[WorkerId, WorkerState] = {}
        self.running: dict[RequestId, Running] = {}
        self.common = DecodePace()
        """The pace of all workers together."""
        self.reading = ReadingPace(_POOL_KEEP, _POOL_WEIGHT)
        self._caches = 0
        self.gateways = 0
        """How many gateways serve the same workers, this one among them; 0 where they are not shared."""
        self.usable: list[WorkerState] = []
        self.permits = 0
        """How many requests all usable workers can carry together."""
        self.mean_permits = 1.0
        """How many one of them can, in the mean; at least 1."""
        self.sheddable: dict[RequestId, None] = {}
        """Running requests beyond any contract that may still be taken back, in order of dispatch: the last has the
        least work sunk in it."""

    def worker(self, worker_id: WorkerId) -> WorkerState:
        """The worker of that name."""
        worker = self.workers.get(worker_id)
        if worker is None:
            raise InvariantError(f"worker {worker_id} is not known")
        return worker

    def join(self, worker_id: WorkerId, permits: int = FIRST_LIMIT) -> None:
        """List a worker, for so many requests until more is known of it; one that is listed already, or still busy
        from before, stays as it is."""
        worker = self.workers.get(worker_id)
        if worker is None:
            worker = WorkerState(
                worker_id,
                common=self.common,
                reading=ReadingPace(READING_KEEP, READING_WEIGHT, self.reading),
                limit=WorkerLimit(permits),
            )
            if self.gateways:
                worker.share = 0  # until the next report
            self.workers[worker_id] = worker
            self.forget_cache(worker)
        worker.listed = True

    def leave(self, worker_id: WorkerId) -> None:
        """Take a worker off the list; it is remembered until it is empty."""
        worker = self.worker(worker_id)
        worker.listed = worker.healthy = False
        self.forget_cache(worker)
        if not worker.held:
            del self.workers[worker_id]

    def forget_cache(self, worker: WorkerState) -> None:
        """The prefix cache of ``worker`` is empty, or another."""
        self._caches += 1
        worker.cache, worker.trust = self._caches, CacheTrust()

    def sort_out(self, cap: int) -> None:
        """Find anew who is usable, each for its limit, or this gateway's share of that, and at most ``cap``; to be
        called after each change of a worker or of the cap. O(workers)."""
        self.usable = usable = [worker for worker in self.workers.values() if worker.healthy and not worker.draining]
        for worker in usable:
            worker.permits = min(worker.limit.limit if worker.share is None else worker.share, cap)
        self.permits = sum([worker.permits for worker in usable])
        carried = sum([min(worker.limit.limit, cap) for worker in usable])
        self.mean_permits = max(carried / max(len(usable), 1), 1.0)

    def widen(self, worker: WorkerState, cap: int) -> None:
        """One permit more for ``worker``, if it needs and may have it."""
        usable = worker.healthy and not worker.draining
        reached = worker.permits if worker.share is None else worker.limit.limit + self.gateways - 1
        if usable and reached < cap and worker.limit.widen(len(worker.held) + worker.foreign):
            worker.permits += 1
            worker.widened += 1
            self.permits += 1
            if worker.share is not None:  # any other gateway may do so at the same time
                worker.share += 1

    def grant(self, entry: Waiting, worker: WorkerState, tokens: int, ttft_s: float, now: float) -> Permit:
        """Let the request of ``entry`` occupy ``worker``, which has ``tokens`` of its prompt still to read."""
        request = entry.request
        if request.request_id in self.running:
            raise InvariantError(f"request {request.request_id} already holds a permit")
        permit = Permit(request.request_id, worker.worker_id, now, entry.attempt)
        promised = entry.tpot_s is not None or worker.promises
        mark_s = self._charge(entry, worker, tokens, now) if promised else inf
        worker.backlog_tokens += tokens
        worker.sent_tokens += tokens
        running = Running(entry, permit, tokens, worker.backlog_tokens, ttft_s, mark_s, beside=worker.decoding)
        if entry.known is not None:
            running.known_ratio = find_known_ratio(entry, worker)
        self.running[request.request_id] = running
        worker.held[request.request_id] = None
        if not request.stream:  # nobody will see its first token: it counts as decoding from the start
            self.start_decoding(running, now)
        worker.promise(entry.tpot_s, 1)
        if not is_guaranteed(entry.band) and not entry.revoked:
            self.sheddable[request.request_id] = None
        return permit

    def _charge(self, entry: Waiting, worker: WorkerState, tokens: int, now: float) -> float:
        """Those that decode on ``worker`` wait while the prompt is read; see :mod:`service.flow.slack`."""
        slack, spare_s = worker.slack, None
        if not worker.promises:
            slack.clear(worker.prefilling_s, now)
        if entry.tpot_s is not None:
            slack.tighten(entry.tpot_s)
            spare_s = slack.foresee_s(entry.spare_tokens, entry.tpot_s)
        return slack.spend(tokens * worker.reading.per_kilotoken_s * 1e-3, spare_s, now)

    def mark_revoked(self, running: Running) -> None:
        """It is being taken back: nobody takes it back a second time."""
        running.revoked = True
        self.sheddable.pop(running.permit.request_id, None)

    def take_all_back(self, worker: WorkerState) -> list[RequestId]:
        """What ``worker`` holds is being taken back, but for what already is."""
        taken_back = [running for name in worker.held if not (running := self.running[name]).revoked]
        for running in taken_back:
            self.mark_revoked(running)
        return [running.permit.request_id for running in taken_back]

    def start_decoding(self, running: Running, now: float) -> WorkerState:
        """The first token of ``running`` has come."""
        worker = self.workers[running.permit.worker_id]
        if running.first_token_at is None:
            running.first_token_at = now
            worker.backlog_tokens -= running.tokens
            worker.prefilled_tokens += running.tokens
            worker.count_decoding(1, now)
            if running.mark_s < inf:
                worker.slack.begin(running.mark_s, now)
        return worker

    def release(self, request_id: RequestId, now: float) -> tuple[Running, WorkerState]:
        """Give the permit of ``request_id`` back; forget a worker that has left and is now empty."""
        running = self.running.pop(request_id, None)
        if running is None:
            raise InvariantError(f"request {request_id} holds no permit")
        worker = self.workers[running.permit.worker_id]
        del worker.held[request_id]
        worker.promise(running.entry.tpot_s, -1)
        self.sheddable.pop(request_id, None)
        if running.first_token_at is None:
            worker.backlog_tokens -= running.tokens
        else:
            worker.count_decoding(-1, now)
        if not worker.listed and not worker.held:
            del self.workers[worker.worker_id]
        return running, worker
