"""Tells the connection pool where workers are, and the core which of them get no new work.

Two may want a worker empty: an operator, whose word is for the place and is carried over to a worker's successor, and
the platform that is about to end it, whose word is for the process. It gets work only if neither does.
"""

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
        self._leaving: set[WorkerId] = set()

    def add(self, worker_id: WorkerId, address: WorkerAddress) -> None:
        """Make it reachable under its id."""
        self._pool.add(worker_id, address)

    def welcome(self, worker_id: WorkerId) -> None:
        """A worker that is back on the list: what an operator said of it holds until it is taken back."""
        if worker_id in self._draining:
            self._tell(worker_id)

    def remove(self, worker_id: WorkerId) -> None:
        """Open no more connections to it."""
        self._leaving.discard(worker_id)
        self._pool.remove(worker_id)

    def replaced(self, old: WorkerId, new: WorkerId) -> None:
        """If the place was being drained, so is whoever took it."""
        if old in self._draining:
            self._draining.discard(old)
            self.set_draining(new, True)

    def set_draining(self, worker_id: WorkerId, draining: bool) -> None:
        """An operator: give a worker no new work, or give it work again."""
        (self._draining.add if draining else self._draining.discard)(worker_id)
        self._tell(worker_id)

    def set_leaving(self, worker_id: WorkerId, leaving: bool) -> None:
        """The platform: it is about to end this worker, or is not after all."""
        (self._leaving.add if leaving else self._leaving.discard)(worker_id)
        self._tell(worker_id)

    def _tell(self, worker_id: WorkerId) -> None:
        self._submit(WorkerDrainChanged(worker_id, worker_id in self._draining or worker_id in self._leaving))
