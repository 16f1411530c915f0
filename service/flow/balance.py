"""Chooses the worker for a request among those with room."""

from typing import Protocol

from service.domain.units import WorkerId
from service.flow.breaker import may_try
from service.flow.ledger import WorkerState


class Chance(Protocol):
    """The part of ``random.Random`` the core needs; passed in seeded, so that a run can be repeated."""

    def random(self) -> float:
        """A number in [0, 1)."""
        ...


def has_room(worker: WorkerState, limit: int, now: float) -> bool:
    """Whether ``worker`` may be given one more request."""
    return (
        worker.healthy
        and worker.listed
        and not worker.draining
        and len(worker.held) < limit
        and may_try(worker.breaker, now)
    )


def choose_worker(
    workers: list[WorkerState], limit: int, not_on: frozenset[WorkerId], now: float, chance: Chance
) -> WorkerState | None:
    """The less loaded of two workers drawn at random (Mitzenmacher, "The power of two choices", 2001).

    If neither has room, the whole list is walked once, so that no worker with room stays idle.
    None of ``not_on`` is ever chosen. Returns ``None`` when no worker has room.

    Trade-offs: counts requests, not their size, and knows nothing of prefixes.
    """
    count = len(workers)
    if count > 1:
        drawn = int(chance.random() * count)
        other = int(chance.random() * (count - 1))
        first, second = workers[drawn], workers[other + (other >= drawn)]
        if len(first.held) > len(second.held):
            first, second = second, first
        if first.worker_id not in not_on and has_room(first, limit, now):
            return first
        if second.worker_id not in not_on and has_room(second, limit, now):
            return second
    open_workers = [w for w in workers if w.worker_id not in not_on and has_room(w, limit, now)]
    return min(open_workers, key=lambda worker: len(worker.held), default=None)
