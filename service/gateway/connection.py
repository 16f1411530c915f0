"""One client connection: how many there may be, how long each may take, and what its end means for its requests."""

import asyncio
from typing import Any, Protocol, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from service.gateway.edge import LINGER_S, TOO_MANY, EdgeConfig
from service.gateway.exchange import ByteBudget, Exchange


class CorridorEntry(Protocol):
    """Where inference requests go."""

    def find_route(self, method: bytes, raw_path: bytes) -> object | None:
        """The route of a path of the corridor; ``None`` for all others."""
        ...

    def on_head(self, exchange: Exchange) -> None:
        """The head of a request with a large body, or one of unknown size, has come: refuse it now or never."""
        ...

    def on_request(self, exchange: Exchange) -> None:
        """The request is complete, or its body was refused."""
        ...

    def on_client_gone_early(self, exchange: Exchange) -> None:
        """The client left before its request was complete."""
        ...

    def on_body_late(self, exchange: Exchange) -> None:
        """The body did not come in time."""
        ...


class _Deaf:
    """Stands in for the parser once nothing more that the client says matters."""

    def feed_data(self, data: bytes) -> None:
        """Throw it away."""


_DEAF = cast("httptools.HttpRequestParser", _Deaf())


class ClientConnection(HttpToolsProtocol):
    """Counts, watches and ends; what is asked on it is read by :class:`service.gateway.server.EdgeProtocol`."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        edge: EdgeConfig,
        budget: ByteBudget,
        reserve: dict["ClientConnection", None],
        corridor: CorridorEntry,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(config, server_state, {}, _loop=loop)
        self._edge = edge
        self._budget = budget
        self._reserve = reserve
        self._corridor = corridor
        self._over_limit = False
        self._due_at: float | None = None
        self._head_bytes = 0
        self._in_head = True
        self._mid = False
        self._in_body = False
        self._upgrading = False
        self._serving: Any = None  # what is answered now, if others were pipelined behind it

    # ---------------------------------------------------------------- connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count it; above the limit it has a place only until another needs it; its first head must come in time."""
        super().connection_made(transport)
        edge = self._edge
        count = len(self.connections)
        if count > edge.connections_max:
            self._over_limit = True
            reserve = self._reserve
            if count > edge.connections_max + edge.connections_reserve:  # who came long ago and said nothing goes first
                if not reserve:
                    self.dismiss()
                    return
                next(iter(reserve)).dismiss()
            reserve[self] = None
        transport.set_write_buffer_limits(high=edge.write_buffer_bytes)
        self._due_at = self.loop.time() + edge.head_timeout_s

    def dismiss(self) -> None:
        """There is no room: say so and close."""
        self._reserve.pop(self, None)
        self.transport.write(TOO_MANY)
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell every request of this connection, so that the worker stops at once."""
        super().connection_lost(exc)
        if self._over_limit:
            self._reserve.pop(self, None)
        lost: list[Any] = [self.cycle]
        if self._serving is not None and self._serving is not self.cycle:
            lost.append(self._serving)
        if self.pipeline:
            lost += [waiting for waiting, _ in self.pipeline if waiting is not self.cycle]
            self.pipeline.clear()
        for cycle in lost:
            if type(cycle) is Exchange:
                if cycle.listener is None and not cycle.response_started:
                    self._corridor.on_client_gone_early(cycle)
                cycle.disconnected = True
                cycle.client_gone()
            elif cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def on_sweep(self, now: float) -> None:
        """Look at the time: a head or body that is late, or a connection that is idle for too long."""
        if self._due_at is None or now < self._due_at or self.transport.is_closing():
            return
        self._due_at = None
        cycle: Any = self.cycle
        if self._in_head:
            if cycle is None or cycle.response_complete:
                self.transport.abort()
            else:  # an answer is under way: what was begun behind it may wait
                self._mid = False
        elif type(cycle) is not Exchange:
            self.transport.abort()
        elif self._waits(cycle):  # nothing is read while another is answered, so the client is not late
            self._due_at = now + self._edge.body_timeout_s
        elif cycle.more_body and not cycle.response_complete:
            self._corridor.on_body_late(cycle)

    def _answered(self) -> Any:  # noqa: ANN401 - a cycle of either kind
        """The request that is answered now: the newest, unless it waits behind another."""
        serving = self._serving
        return self.cycle if serving is None or serving.response_complete else serving

    def pause_writing(self) -> None:
        """The client reads slowly."""
        super().pause_writing()
        cycle = self._answered()
        if type(cycle) is Exchange and cycle.listener is not None:
            cycle.listener.on_client_paused()

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        cycle = self._answered()
        if type(cycle) is Exchange and cycle.listener is not None:
            cycle.listener.on_client_ready()

    def _refuse_bytes(self, answer: bytes) -> None:
        """What comes is not HTTP: say so, but let a request that came before it be answered first."""
        if self.parser is _DEAF or self.transport.is_closing():
            return
        self.parser = _DEAF
        self._due_at = None
        newest: Any = self.cycle
        if newest is None or newest.response_complete:
            self.transport.write(answer)
            if self.transport.can_write_eof():
                self.transport.write_eof()
            self.loop.call_later(LINGER_S, self.transport.abort)
        elif type(newest) is Exchange and newest.more_body:
            newest.body_fault = "framing"
            if not self._waits(newest):
                self._corridor.on_request(newest)
        else:
            newest.keep_alive = False

    def _waits(self, cycle: Any) -> bool:  # noqa: ANN401 - a cycle of either kind
        return bool(self.pipeline) and any(waiting is cycle for waiting, _ in self.pipeline)
