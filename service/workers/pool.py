"""Keeps connections to each worker and gives every request one: idle if there is one, else a fresh one."""

import asyncio
from collections.abc import Callable, Sequence

from service.domain.event import FailureCause
from service.domain.units import WorkerId
from service.workers.addresses import WorkerAddress
from service.workers.call import PooledCall
from service.workers.client import ReplySink
from service.workers.lane import Lane, PoolConfig, Write, write_now
from service.workers.upload import Pace

__all__ = ["PoolConfig", "PooledCall", "WorkerPool"]


class WorkerPool:
    """Connections to all workers.

    Memory per idle connection is about 2 KiB; connections left idle too long are closed when the pool is next used
    or swept.
    """

    def __init__(
        self,
        config: PoolConfig,
        loop: asyncio.AbstractEventLoop,
        now: Callable[[], float],
        write: Write = write_now,
        pace: Pace | None = None,
    ) -> None:
        self._write = write
        self._pace = pace
        self._config = config
        self._loop = loop
        self._lanes: dict[WorkerId, Lane] = {}
        self.now = now

    def add(self, worker_id: WorkerId, address: WorkerAddress) -> None:
        """Make a worker reachable."""
        if worker_id not in self._lanes:
            self._lanes[worker_id] = Lane(address, self._config, self._loop, self.now, self._write, self._pace)

    def remove(self, worker_id: WorkerId) -> None:
        """Forget a worker: idle connections close now, busy ones when their answer is complete."""
        lane = self._lanes.pop(worker_id, None)
        if lane is not None:
            lane.gone = True
            for connection in list(lane.idle):
                connection.abort()

    def open(
        self, worker_id: WorkerId, target: bytes, headers: bytes, body: Sequence[bytes | memoryview], sink: ReplySink
    ) -> PooledCall:
        """Send ``target`` (``POST /path``) with rendered ``headers`` (each line ended) and ``body``.

        The sink may hear of the failure of an unknown worker on the next turn of the loop, never before ``open``
        has returned.
        """
        lane = self._lanes.get(worker_id)
        if lane is None:
            nowhere = Lane(WorkerAddress(worker_id, "", 0, False), self._config, self._loop, self.now, self._write)
            call = PooledCall(nowhere, b"", (), sink)
            self._loop.call_soon(call.on_failure, FailureCause.UNREACHABLE)
            return call
        call = PooledCall(lane, target + lane.prefix + headers, body, sink)
        call.start(lane.take_idle())
        return call

    def in_flight(self, worker_id: WorkerId) -> int:
        """Requests under way to a worker."""
        lane = self._lanes.get(worker_id)
        return 0 if lane is None else lane.in_flight

    def last_byte_at(self, worker_id: WorkerId) -> float | None:
        """When the last byte of an answer came from a worker."""
        lane = self._lanes.get(worker_id)
        return None if lane is None else lane.last_byte_at()

    def sweep(self) -> None:
        """Close connections that were idle too long."""
        oldest = self.now() - self._config.keep_alive_s
        for lane in self._lanes.values():
            for connection in [idle for idle in lane.idle if idle.idle_since < oldest]:
                connection.abort()

    def close(self) -> None:
        """Close every idle connection."""
        for worker_id in list(self._lanes):
            self.remove(worker_id)

    @property
    def open_connections(self) -> int:
        """Connections open now, busy or idle."""
        return sum(len(lane.open) for lane in self._lanes.values())
