"""Tells the connection pool where workers are, and carries an operator's drain over to a worker's successor."""

from collections.abc import Callable

from service.domain.event import Event, WorkerDrainChanged
from service.domain.units import WorkerId
from service.workers.addresses import WorkerAddress
from service.workers.pool import WorkerPool


class PoolRoster:
    """Satisfies :class:`service.workers.monitor.Roster`."""

    def __init__(self, pool: WorkerPool, submit: Callable[[Event], None]) -> None:
        self._pool = pool
        self._submit = submit
        self._draining: set[WorkerId] = set()

    def add(self, worker_id: WorkerId, address: WorkerAddress) -> None:
        """Make it reachable under its id."""
        self._pool.add(worker_id, address)

    def remove(self, worker_id: WorkerId) -> None:
        """Open no more connections to it."""
        self._pool.remove(worker_id)

    def replaced(self, old: WorkerId, new: WorkerId) -> None:
        """If the place was being drained, so is whoever took it."""
        if old in self._draining:
            self._draining.discard(old)
            self.set_draining(new, True)

    def set_draining(self, worker_id: WorkerId, draining: bool) -> None:
        """Give a worker no new work, or give it work again."""
        (self._draining.add if draining else self._draining.discard)(worker_id)
        self._submit(WorkerDrainChanged(worker_id, draining))
