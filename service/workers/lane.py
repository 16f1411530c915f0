"""All connections to one worker: which are open, which are idle, and how another is made."""

import asyncio
import functools
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from service.workers.addresses import WorkerAddress
from service.workers.client import WorkerConnection
from service.workers.upload import Pace


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """``keep_alive_s`` stays below the worker's own keep-alive (5 s for a bare vLLM, 120 s for ours), so that idle
    connections are rarely closed under us. ``idle_max`` bounds idle connections per worker. ``stale_within_s``: a used
    connection that breaks so soon after a request was written had been closed by then, as far as one can tell from
    here; one that breaks later had a worker at work behind it."""

    connect_timeout_s: float = 2.0
    keep_alive_s: float = 4.0
    idle_max: int = 512
    stale_within_s: float = 1.0


@functools.cache
def build_worker_tls() -> ssl.SSLContext:
    """How workers' certificates are verified, by requests and by probes alike: against the system's authorities, or
    those that OpenSSL's ``SSL_CERT_FILE`` and ``SSL_CERT_DIR`` name. Read once; that takes some 20 ms."""
    return ssl.create_default_context()


Write = Callable[[asyncio.Transport, bytes], None]
"""Sends bytes on a transport, now or at the end of the loop's turn."""


def write_now(transport: asyncio.Transport, data: bytes) -> None:
    """Send at once."""
    transport.write(data)


class Lane:
    """All connections to one worker."""

    __slots__ = (
        "_config",
        "_loop",
        "_seen_at",
        "_seen_reads",
        "address",
        "gone",
        "idle",
        "in_flight",
        "now",
        "open",
        "pace",
        "prefix",
        "reads",
        "write",
    )

    def __init__(
        self,
        address: WorkerAddress,
        config: PoolConfig,
        loop: asyncio.AbstractEventLoop,
        now: Callable[[], float],
        write: Write = write_now,
        pace: Pace | None = None,
    ) -> None:
        self.address = address
        self.write = write
        self.pace: Pace = pace or (lambda _, step: loop.call_soon(step))
        self.prefix = f" HTTP/1.1\r\nhost: {address.authority}\r\n".encode()
        self.idle: dict[WorkerConnection, None] = {}
        self.open: set[WorkerConnection] = set()
        self.in_flight = 0
        self.reads = 0
        self.gone = False
        self._seen_reads = 0
        self._seen_at: float | None = None
        self._config = config
        self._loop = loop
        self.now = now

    def opened(self, connection: WorkerConnection) -> None:
        """Count it. Not when its socket opens: uvloop never tells the end of one that was cancelled meanwhile."""
        self.open.add(connection)

    def freed(self, connection: WorkerConnection) -> None:
        """Keep it for the next request."""
        if self.gone or len(self.idle) >= self._config.idle_max:
            connection.abort()
            return
        connection.idle_since = self.now()
        self.idle[connection] = None

    def closed(self, connection: WorkerConnection) -> None:
        """Forget it."""
        self.open.discard(connection)
        self.idle.pop(connection, None)

    def last_byte_at(self) -> float | None:
        """When an answer last moved, to the grain of how often this is asked: reads are counted, not stamped."""
        if self.reads != self._seen_reads:
            self._seen_reads = self.reads
            self._seen_at = self.now()
        return self._seen_at

    def take_idle(self) -> WorkerConnection | None:
        """The connection that was used last and still seems to be open; those that are too old are closed."""
        oldest = self.now() - self._config.keep_alive_s
        while self.idle:
            connection, _ = self.idle.popitem()  # last in, first out: the rest may age and close
            if connection.usable and connection.idle_since >= oldest:
                return connection
            connection.abort()
        return None

    def stale_until(self) -> float:
        """Until when a used connection that breaks is taken to have been closed before it was used."""
        return self.now() + self._config.stale_within_s

    def connect(self) -> asyncio.Task[WorkerConnection]:
        """Open a connection; the task may fail with an OSError, which TimeoutError is."""
        return self._loop.create_task(self._connect())

    async def _connect(self) -> WorkerConnection:
        address = self.address
        tls, name = None, None
        if address.tls:
            tls, name = build_worker_tls(), address.server_name or address.host
        async with asyncio.timeout(self._config.connect_timeout_s):
            _, connection = await self._loop.create_connection(
                lambda: WorkerConnection(self), address.host, address.port, ssl=tls, server_hostname=name
            )
        return connection
