"""Keeps connections to each worker and gives every request one: idle if there is one, else a fresh one."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service.domain.event import FailureCause
from service.domain.units import WorkerId
from service.workers.addresses import WorkerAddress
from service.workers.client import ReplySink, WorkerConnection


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """``keep_alive_s`` stays below the worker's own keep-alive (5 s for a bare vLLM, 120 s for ours), so that idle
    connections are rarely closed under us. ``idle_max`` bounds idle connections per worker."""

    connect_timeout_s: float = 2.0
    keep_alive_s: float = 4.0
    idle_max: int = 512


class _Lane:
    """All connections to one worker."""

    __slots__ = (
        "_idle_max",
        "_now",
        "_seen_at",
        "_seen_reads",
        "address",
        "gone",
        "idle",
        "in_flight",
        "open",
        "prefix",
        "reads",
    )

    def __init__(self, address: WorkerAddress, idle_max: int, now: Callable[[], float]) -> None:
        self.address = address
        self.prefix = f" HTTP/1.1\r\nhost: {address.authority}\r\n".encode()
        self.idle: dict[WorkerConnection, None] = {}
        self.open = 0
        self.in_flight = 0
        self.reads = 0
        self.gone = False
        self._seen_reads = 0
        self._seen_at: float | None = None
        self._idle_max = idle_max
        self._now = now

    def opened(self, connection: WorkerConnection) -> None:
        """Count it."""
        self.open += 1

    def freed(self, connection: WorkerConnection) -> None:
        """Keep it for the next request."""
        if self.gone or len(self.idle) >= self._idle_max:
            connection.abort()
            return
        connection.idle_since = self._now()
        self.idle[connection] = None

    def closed(self, connection: WorkerConnection) -> None:
        """Forget it."""
        self.open -= 1
        self.idle.pop(connection, None)

    def last_byte_at(self) -> float | None:
        """When an answer last moved, to the grain of how often this is asked: reads are counted, not stamped."""
        if self.reads != self._seen_reads:
            self._seen_reads = self.reads
            self._seen_at = self._now()
        return self._seen_at


class PooledCall:
    """One request under way. Sits between connection and sink, so that a stale connection is replaced unseen.

    An idle connection may be closed by the worker just as it is used again. If it breaks before any byte of the
    answer, the request is sent once more on a fresh connection (RFC 9112, 9.3.1 leaves this to a client that knows
    its requests may be repeated; a generation that never answered may).
    """

    __slots__ = (
        "_body",
        "_connecting",
        "_connection",
        "_head",
        "_lane",
        "_paused",
        "_pool",
        "_reused",
        "_sink",
        "over",
    )

    def __init__(
        self, pool: "WorkerPool", lane: _Lane, head: bytes, body: Sequence[bytes | memoryview], sink: ReplySink
    ) -> None:
        self._pool = pool
        self._lane = lane
        self._head = head
        self._body = body
        self._sink = sink
        self._connection: WorkerConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._reused = False
        self._paused = False
        self.over = False
        lane.in_flight += 1

    def start(self, connection: WorkerConnection | None) -> None:
        """Send on ``connection``, or open one."""
        if connection is None:
            self._connecting = asyncio.ensure_future(self._connect())
            return
        self._connection = connection
        self._reused = connection.answered_once
        if self._paused:
            connection.pause()
        connection.send(self._head, self._body, self)

    async def _connect(self) -> None:
        try:
            connection = await self._pool.connect(self._lane)
        except OSError:  # TimeoutError and ssl.SSLError are kinds of it
            self._connecting = None
            self._end()
            self._sink.on_failure(FailureCause.UNREACHABLE)
            return
        self._connecting = None
        if self.over:  # aborted in the very turn in which the connection came up
            connection.abort()
            return
        self.start(connection)

    def abort(self) -> None:
        """Stop; the worker sees its client leave. Nothing more reaches the sink."""
        if self.over:
            return
        self._end()
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.abort()

    def pause(self) -> None:
        """Read nothing more for a while."""
        self._paused = True
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """Read again."""
        self._paused = False
        if self._connection is not None:
            self._connection.resume()

    def _end(self) -> None:
        if not self.over:
            self.over = True
            self._lane.in_flight -= 1

    # ---------------------------------------------------------------- sink of the connection

    def on_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Pass on; from here on the body goes past this object."""
        connection = self._connection
        self._body = ()  # nothing is sent again once something came: a large body need not stay
        self._sink.on_head(status, headers)
        if connection is not None and not self.over:
            connection.divert(self._sink.on_body)

    @property
    def on_body(self) -> Callable[[bytes], None]:
        """Where the body goes."""
        return self._sink.on_body

    def on_end(self) -> None:
        """Pass on; the connection is already free."""
        self._end()
        self._connection = None
        self._sink.on_end()

    def on_failure(self, cause: FailureCause) -> None:
        """Try a stale connection's request once more, pass everything else on."""
        connection, self._connection = self._connection, None
        if cause is FailureCause.BROKEN and self._reused and connection is not None and connection.untouched:
            self.start(None)
            return
        self._end()
        self._sink.on_failure(cause)


class WorkerPool:
    """Connections to all workers.

    Memory per idle connection is about 2 KiB; connections left idle too long are closed when the pool is next used
    or swept.
    """

    def __init__(self, config: PoolConfig, loop: asyncio.AbstractEventLoop, now: Callable[[], float]) -> None:
        self._config = config
        self._loop = loop
        self._lanes: dict[WorkerId, _Lane] = {}
        self.now = now

    def add(self, worker_id: WorkerId, address: WorkerAddress) -> None:
        """Make a worker reachable."""
        if worker_id not in self._lanes:
            self._lanes[worker_id] = _Lane(address, self._config.idle_max, self.now)

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
            nowhere = _Lane(WorkerAddress(worker_id, "", 0, False), 0, self.now)
            call = PooledCall(self, nowhere, b"", (), sink)
            self._loop.call_soon(call.on_failure, FailureCause.UNREACHABLE)
            return call
        call = PooledCall(self, lane, target + lane.prefix + headers, body, sink)
        call.start(self._take_idle(lane))
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
        return sum(lane.open for lane in self._lanes.values())

    async def connect(self, lane: _Lane) -> WorkerConnection:
        """Open a connection of ``lane``. Raises OSError or TimeoutError."""
        address = lane.address

        async with asyncio.timeout(self._config.connect_timeout_s):
            _, connection = await self._loop.create_connection(
                lambda: WorkerConnection(lane), address.host, address.port, ssl=True if address.tls else None
            )
        return connection

    def _take_idle(self, lane: _Lane) -> WorkerConnection | None:
        oldest = self.now() - self._config.keep_alive_s
        while lane.idle:
            connection, _ = lane.idle.popitem()  # last in, first out: the rest may age and close
            if connection.usable and connection.idle_since >= oldest:
                return connection
            connection.abort()
        return None
