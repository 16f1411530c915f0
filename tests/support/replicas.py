"""Short builders for what gateways tell each other."""

from collections.abc import Mapping

from service.domain.replica import Certainty, ReplicaReport, WorkerUse
from service.domain.units import ReplicaId, WorkerId


def build_use(
    worker: str = "a", limit: int = 12, certainty: Certainty = Certainty.FOUND, claim: int = 0, **rest
) -> WorkerUse:
    """One worker in a report; ``rest`` are further fields."""
    return WorkerUse(WorkerId(worker), limit, certainty, claim, **rest)


def build_report(
    name: str, *uses: WorkerUse, demand: Mapping[int, float] | None = None, number: int = 1
) -> ReplicaReport:
    """A report of the gateway ``name``."""
    return ReplicaReport(ReplicaId(name), number, tuple(sorted((demand or {}).items())), uses or (build_use(),))
