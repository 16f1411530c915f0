"""One client connection: how many there may be, how long each may take, and what its end means for its requests."""

import asyncio
import select
from typing import Any, Protocol, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from service.domain.outcome import Outcome
from service.gateway.edge import FAULTY, LINGER_S, TOO_MANY, EdgeConfig, mark
from service.gateway.exchange import ByteBudget, Exchange
from service.gateway.responses import render_retry
from service.runtime.advice import compute_retry_after_s
from service.runtime.outbox import Outbox
from service.runtime.turnstile import PIECE_BYTES, Turnstile


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

    def on_body_missing(self, exchange: Exchange, outcome: Outcome) -> None:
        """The body did not come in time, or before the gateway went away."""
        ...

    @property
    def client_stall_s(self) -> float:
        """How long a client may refuse to read."""
        ...


_LEFT = getattr(select, "POLLRDHUP", 0)
"""Where the system has no such event, only a connection that broke is noticed: poll always tells of that."""


class _Deaf:
    """Stands in for the parser once nothing more that the client says matters."""

    def feed_data(self, data: bytes) -> None:
        """Throw it away."""


_DEAF = cast("httptools.HttpRequestParser", _Deaf())


class ListenerState(ServerState):
    """What the listener's connections share. ``leaving``: answers ask their clients to go elsewhere next time."""

    leaving = False


class ClientConnection(HttpToolsProtocol):
    """Counts, watches and ends; what is asked on it is read by :class:`service.gateway.server.EdgeProtocol`."""

    def __init__(
        self,
        config: Config,
        listener: ListenerState,
        edge: EdgeConfig,
        budget: ByteBudget,
        reserve: dict["ClientConnection", None],
        corridor: CorridorEntry,
        loop: asyncio.AbstractEventLoop,
        outbox: Outbox,
        turnstile: Turnstile,
    ) -> None:
        super().__init__(config, listener, {}, _loop=loop)
        self._listener = listener
        self._edge = edge
        self._budget = budget
        self._reserve = reserve
        self._corridor = corridor
        self._outbox = outbox
        self._turnstile = turnstile
        self._over_limit = False
        self._due_at: float | None = None
        self._head_bytes = 0
        self._in_head = True
        self._mid = False
        self._in_body = False
        self._upgrading = False
        self._held = False
        self._in_line = False
        self._serving: Any = None  # what is answered now, if others were pipelined behind it
        self._stalled_at: float | None = None  # since when the client reads nothing, or not the last of its answers

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
        port = self.client[1] if self.client else 0  # many are sent away in one turn of the loop
        self.transport.write(mark(TOO_MANY, render_retry(compute_retry_after_s(self.loop.time() + port))))
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
        """Look at the time: a head or body that is late, a connection that is idle for too long, or one whose client
        does not read what it was answered."""
        if self._stalled_at is not None:
            if now >= self._stalled_at + self._corridor.client_stall_s and not self._journeys():
                self.transport.abort()
                return
        elif self.transport.is_closing():  # once all of the last answer is sent, it is gone
            self._stalled_at = now
        if self.pipeline and self._has_left():
            self.transport.abort()
            return
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
            self._corridor.on_body_missing(cycle, Outcome.BODY_TIMEOUT)

    def _has_left(self) -> bool:
        """Whether the client closed its end, which nobody reads about while requests are pipelined: what it sends then
        stays in the kernel, and its end would be behind that."""
        sock = self.transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(sock.fileno(), _LEFT)
        return bool(poll.poll(0))

    @property
    def arriving(self) -> bool:
        """The body of a request is still on its way."""
        cycle: Any = self.cycle
        return type(cycle) is Exchange and cycle.arriving

    def cut_arriving(self) -> None:
        """The gateway goes away: say so to a client that still sends, unless an answer before it is under way."""
        cycle: Any = self.cycle
        if self.arriving and not self._waits(cycle):
            self._due_at = None
            self._corridor.on_body_missing(cycle, Outcome.DRAINING)

    def _answered(self) -> Any:  # noqa: ANN401 - a cycle of either kind
        """The request that is answered now: the newest, unless it waits behind another."""
        serving = self._serving
        return self.cycle if serving is None or serving.response_complete else serving

    def pause_writing(self) -> None:
        """The client reads slowly."""
        super().pause_writing()
        self._stalled_at = self.loop.time()
        cycle = self._answered()
        if type(cycle) is Exchange and cycle.listener is not None:
            cycle.listener.on_client_paused()
        elif cycle is None or cycle.response_complete:
            self._hold()

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        self._stalled_at = None
        cycle = self._answered()
        if type(cycle) is Exchange and cycle.listener is not None:
            cycle.listener.on_client_ready()
        elif self._held and not self.transport.is_closing():
            self._held = False
            self._go_on()

    def _hold(self) -> None:
        """Nothing is begun on a connection whose client leaves answers unread: each would add to what we keep."""
        if not self.transport.is_closing():
            self._held = True
            self._due_at = None
            self.flow.pause_reading()

    def _await_turn(self) -> None:
        """A large body comes: the rest is read when others have had their turn."""
        if not self._in_line and not self.transport.is_closing():
            self._in_line = True
            self.transport.pause_reading()
            self._turnstile.enter(PIECE_BYTES, self._read_on)

    def _read_on(self) -> None:
        self._in_line = False
        if not self.flow.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _go_on(self) -> None:
        """Serve what was pipelined, or wait for the next request; the subclass knows how."""
        raise NotImplementedError

    def _journeys(self) -> bool:
        """A request is served that looks at the time itself."""
        cycle = self._answered()
        return type(cycle) is Exchange and cycle.listener is not None

    def on_fault(self) -> None:
        """Our own code failed while it read a request: say so, and end the connection."""
        told = False
        try:
            self._refuse_bytes(FAULTY, "ours")
            told = True
        finally:
            if not told:
                self.transport.abort()

    def _refuse_bytes(self, answer: bytes, why: str = "framing") -> None:
        """What comes is not HTTP: say so, but let a request that came before it be answered first."""
        if self.parser is _DEAF or self.transport.is_closing():
            return
        self.parser = _DEAF
        self._due_at = None
        newest: Any = self.cycle
        if newest is None or newest.response_complete:
            self._outbox.flush()
            self.transport.write(mark(answer, b""))
            if self.transport.can_write_eof():
                self.transport.write_eof()
            self.loop.call_later(LINGER_S, self.transport.abort)
        elif type(newest) is Exchange and (newest.more_body or self._is_unheard(newest, why)):
            newest.keep_alive = False
            newest.body_fault = why
            if not self._waits(newest):
                self._corridor.on_request(newest)
        else:
            newest.keep_alive = False

    def _is_unheard(self, cycle: Exchange, why: str) -> bool:
        """Read as a whole, and failed by us before anybody took it in hand."""
        return why == "ours" and cycle.listener is None and not cycle.response_started and not self._waits(cycle)

    def _waits(self, cycle: Any) -> bool:  # noqa: ANN401 - a cycle of either kind
        return bool(self.pipeline) and any(waiting is cycle for waiting, _ in self.pipeline)
