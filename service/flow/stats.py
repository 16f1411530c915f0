"""Immutable snapshots of the flow core, for operators and metrics."""

from dataclasses import dataclass

from service.domain.units import WorkerId
from service.flow.breaker import next_change_at
from service.flow.worker import WorkerState


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """One worker in a snapshot."""

    worker_id: WorkerId
    in_flight: int
    healthy: bool
    draining: bool
    listed: bool
    resting: bool


@dataclass(frozen=True, slots=True)
class FlowStats:
    """Immutable snapshot of the controller. ``permits`` of the usable workers; ``capacity_found``: that is what they
    can carry, and not a beginning."""

    queued_requests: int
    queued_tokens: int
    in_flight: int
    draining: bool
    mean_tpot_s: float | None
    workers: tuple[WorkerStats, ...]
    permits: int = 0
    capacity_found: bool = False

    @property
    def tokens_per_worker_minute(self) -> float | None:
        """Output tokens per minute that one usable worker carries within the targets; ``None`` before it was found."""
        usable = [worker for worker in self.workers if worker.healthy and not worker.draining]
        if not self.capacity_found or not usable or not self.mean_tpot_s:
            return None
        return 60.0 * self.permits / len(usable) / self.mean_tpot_s


def build_worker_stats(worker: WorkerState, now: float) -> WorkerStats:
    """What a snapshot says of ``worker``; it rests while its breaker lets nothing through."""
    resting = next_change_at(worker.breaker, now) is not None or worker.breaker.probing
    return WorkerStats(worker.worker_id, worker.in_flight, worker.healthy, worker.draining, worker.listed, resting)
