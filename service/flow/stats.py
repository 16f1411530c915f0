"""Immutable snapshots of the flow core, for operators and metrics."""

from dataclasses import dataclass

from service.domain.units import WorkerId
from service.flow.band import Claim, claim_of
from service.flow.breaker import next_change_at
from service.flow.state import FlowState
from service.flow.worker import WorkerState


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """One worker in a snapshot. ``permits`` is how many requests this gateway may have there. ``starting``: it has
    never been healthy yet."""

    worker_id: WorkerId
    in_flight: int
    healthy: bool
    draining: bool
    listed: bool
    resting: bool
    permits: int = 0
    starting: bool = False


@dataclass(frozen=True, slots=True)
class FlowStats:
    """Immutable snapshot of the controller. ``permits`` of the usable workers; ``capacity_found``: that is what they
    can carry, and not a beginning. ``replicas`` counts the gateways known to serve the same workers, this one among
    them, ``alone`` says that the others cannot be asked; ``None`` where workers are not shared."""

    queued_requests: int
    queued_tokens: int
    in_flight: int
    draining: bool
    mean_tpot_s: float | None
    workers: tuple[WorkerStats, ...]
    permits: int = 0
    capacity_found: bool = False
    replicas: int | None = None
    alone: bool | None = None

    @property
    def tokens_per_worker_minute(self) -> float | None:
        """Output tokens per minute that one usable worker carries within the targets; ``None`` before it was found."""
        usable = [worker for worker in self.workers if worker.healthy and not worker.draining]
        if not self.capacity_found or not usable or not self.mean_tpot_s:
            return None
        return 60.0 * self.permits / len(usable) / self.mean_tpot_s


@dataclass(frozen=True, slots=True)
class ClaimStats:
    """Demand of one claim: worker-seconds offered since the start (what was refused is in it), worker-seconds that
    wait, and permits held."""

    claim: Claim
    offered_work_s: float
    queued_work_s: float
    permits_held: int


@dataclass(frozen=True, slots=True)
class DemandStats:
    """What is asked of the pool beside what it has; O(requests that wait or run), for a scrape."""

    claims: tuple[ClaimStats, ...]
    permits: int


def build_demand_stats(state: FlowState) -> DemandStats:
    """What a scaler has to know of this gateway."""
    offered, queued, held = dict.fromkeys(Claim, 0.0), dict.fromkeys(Claim, 0.0), dict.fromkeys(Claim, 0)
    for band, work_s in state.offered.work_s.items():
        offered[claim_of(band)] += work_s
    for entry in state.room.entries():
        queued[claim_of(entry.band)] += entry.work_s
    for running in state.ledger.running.values():
        held[claim_of(running.entry.band)] += 1
    claims = tuple(ClaimStats(claim, offered[claim], queued[claim], held[claim]) for claim in Claim)
    return DemandStats(claims, state.ledger.permits)


def build_flow_stats(state: FlowState, now: float) -> FlowStats:
    """Snapshot of queue, permits and workers; O(workers)."""
    workers = tuple(build_worker_stats(worker, now) for worker in state.ledger.workers.values())
    sharing = state.sharing
    return FlowStats(
        state.room.size, state.room.tokens, len(state.ledger.running), state.draining, state.tpot_s, workers,
        state.ledger.permits, state.capacity_found,
        None if sharing is None else max(len(sharing.known), 1), None if sharing is None else sharing.alone,
    )  # fmt: skip


def build_worker_stats(worker: WorkerState, now: float) -> WorkerStats:
    """What a snapshot says of ``worker``; it rests while its breaker lets nothing through."""
    resting = next_change_at(worker.breaker, now) is not None or worker.breaker.probing
    return WorkerStats(
        worker.worker_id, worker.in_flight, worker.healthy, worker.draining, worker.listed, resting,
        worker.permits, not worker.known,
    )  # fmt: skip
