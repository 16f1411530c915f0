"""Placeholder until merge."""

from dataclasses import dataclass

from service.domain.units import WorkerId


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """Where a worker listens."""

    worker_id: WorkerId
    host: str
    port: int
    tls: bool = False
