"""Immutable snapshots of the flow core, for operators and metrics."""

from dataclasses import dataclass

from service.domain.units import WorkerId


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
    """Immutable snapshot of the controller."""

    queued_requests: int
    queued_tokens: int
    in_flight: int
    draining: bool
    mean_service_s: float | None
    workers: tuple[WorkerStats, ...]
