"""One request under way to a worker, on whichever connection carries it."""

import asyncio
from collections.abc import Callable, Sequence

from service.domain.event import FailureCause
from service.workers.client import ReplySink, WorkerConnection
from service.workers.lane import Lane


class PooledCall:
    """One request under way. Sits between connection and sink, so that a stale connection is replaced unseen.

    An idle connection may be closed by the worker just as it is used again. If it breaks before any byte of the
    answer, and soon, the request is sent once more on a fresh connection (RFC 9112, 9.3.1 leaves this to a client
    that knows its requests may be repeated; a generation that never answered may).
    """

    __slots__ = (
        "_body",
        "_connecting",
        "_connection",
        "_head",
        "_lane",
        "_paused",
        "_sink",
        "_stale_until",
        "over",
    )

    def __init__(self, lane: Lane, head: bytes, body: Sequence[bytes | memoryview], sink: ReplySink) -> None:
        self._lane = lane
        self._head = head
        self._body = body
        self._sink = sink
        self._connection: WorkerConnection | None = None
        self._connecting: asyncio.Task[WorkerConnection] | None = None
        self._stale_until: float | None = None
        self._paused = False
        self.over = False
        lane.in_flight += 1

    def start(self, connection: WorkerConnection | None) -> None:
        """Send on ``connection``, or open one."""
        if connection is None:
            self._connecting = self._lane.connect()
            self._connecting.add_done_callback(self._connected)
            return
        self._connection = connection
        self._stale_until = self._lane.stale_until() if connection.answered_once else None
        if self._paused:
            connection.pause()
        connection.send(self._head, self._body, self)

    def _connected(self, connecting: asyncio.Task[WorkerConnection]) -> None:
        self._connecting = None
        if connecting.cancelled():
            return
        error = connecting.exception()
        if self.over:  # aborted in the very turn in which the connection came up
            if error is None:
                connecting.result().abort()
        elif error is None:
            connection = connecting.result()
            if connection.usable:
                self._lane.opened(connection)
                self.start(connection)
            else:  # it was accepted and closed again at once
                self.on_failure(FailureCause.BROKEN)
        elif isinstance(error, OSError | ValueError):  # refused, too late, bad certificate; a name that is none
            self.on_failure(FailureCause.UNREACHABLE)
        else:
            self.on_fault(error)

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
        if not self.over:
            self.over = True
            self._lane.in_flight -= 1
        self._connection = None
        self._sink.on_end()

    def on_failure(self, cause: FailureCause) -> None:
        """Try a stale connection's request once more, pass everything else on."""
        if self.over:
            return
        connection, self._connection = self._connection, None
        stale_until, self._stale_until = self._stale_until, None
        broke = cause is FailureCause.BROKEN and connection is not None and connection.untouched
        if broke and stale_until is not None and self._lane.now() <= stale_until:
            self.start(None)
            return
        self._end()
        self._sink.on_failure(cause)

    def on_fault(self, error: BaseException) -> None:
        """Pass on."""
        if self.over:
            return
        self._end()
        self._connection = None
        self._sink.on_fault(error)
