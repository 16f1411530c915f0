"""The public listener: uvicorn's HTTP/1.1 protocol with bounded connections and timeouts; corridor requests leave it
for an exchange of their own, all others go the ordinary ASGI way."""

import asyncio
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from service.gateway.exchange import ByteBudget, Exchange


@dataclass(frozen=True, slots=True)
class EdgeConfig:
    """Limits of the listener.

    Above ``connections_max`` only health is answered; ``connections_reserve`` more are closed at once. The head of a
    request must come within ``head_timeout_s``, its body within ``body_timeout_s``; an idle connection is kept
    ``keep_alive_s``. ``write_buffer_bytes`` is where a slow reader starts to hold the worker back.
    """

    connections_max: int = 8192
    connections_reserve: int = 64
    head_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    keep_alive_s: float = 75.0
    body_max_bytes: int = 64 * 1024 * 1024
    bodies_max_bytes: int = 1024 * 1024 * 1024
    write_buffer_bytes: int = 128 * 1024


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


_BUSY = (
    b'{"error":{"message":"Too many connections to this gateway. Try again shortly.","type":"server_error",'
    b'"param":null,"code":"server_overloaded"}}'
)
_TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\nretry-after-ms: 1000\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(_BUSY), _BUSY)
)
_NOT_HTTP_BODY = (
    b'{"error":{"message":"The request is not valid HTTP/1.1.","type":"invalid_request_error","param":null,'
    b'"code":"bad_http"}}'
)
_NOT_HTTP = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
    % (len(_NOT_HTTP_BODY), _NOT_HTTP_BODY)
)
_HEAD_MAX_BYTES = 64 * 1024
_SMALL_BODY = 64 * 1024
"""Bodies up to this size are read before anything is decided; they usually come with the head."""


class EdgeProtocol(HttpToolsProtocol):
    """One client connection."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        edge: EdgeConfig,
        budget: ByteBudget,
        corridor: CorridorEntry,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(config, server_state, {}, _loop=loop)
        self._edge = edge
        self._budget = budget
        self._corridor = corridor
        self._over_limit = False
        self._due_at: float | None = None
        self._head_bytes = 0
        self._in_head = True
        self._mid = False
        self._in_body = False

    # ---------------------------------------------------------------- connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count it; refuse what is above the reserve; the first head must come in time."""
        super().connection_made(transport)
        count = len(self.connections)
        if count > self._edge.connections_max + self._edge.connections_reserve:
            transport.write(_TOO_MANY)
            transport.close()
            return
        self._over_limit = count > self._edge.connections_max
        transport.set_write_buffer_limits(high=self._edge.write_buffer_bytes)
        self._due_at = self.loop.time() + self._edge.head_timeout_s

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the exchange, so that the worker stops at once."""
        super().connection_lost(exc)
        while self.pipeline:
            self.pipeline.pop()
        cycle: Any = self.cycle
        if type(cycle) is Exchange:
            if cycle.more_body and not cycle.response_started:
                self._corridor.on_client_gone_early(cycle)
            cycle.disconnected = True
            cycle.client_gone()

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        if self._in_head:
            self._head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # we speak HTTP/1.1 only; RFC 9110 lets a server ignore the wish
        except httptools.HttpParserError:
            self._refuse_bytes()
            return
        if self._in_head:
            if self._head_bytes:
                self._mid_head()
        elif not self._in_body:
            self._in_body = True
            self._due_at = self.loop.time() + self._edge.body_timeout_s

    def _mid_head(self) -> None:
        """A part of a head has come: the rest must come in time, and may not be endless."""
        if self._head_bytes > _HEAD_MAX_BYTES:
            self._refuse_bytes()
        elif not self._mid:
            self._mid = True
            self._due_at = self.loop.time() + self._edge.head_timeout_s

    def _refuse_bytes(self) -> None:
        if not self.transport.is_closing():
            if self.cycle is None or self.cycle.response_complete:
                self.transport.write(_NOT_HTTP)
            self.transport.close()

    def on_sweep(self, now: float) -> None:
        """Look at the time: a head or body that is late, or a connection that is idle for too long."""
        if self._due_at is None or now < self._due_at or self.transport.is_closing():
            return
        self._due_at = None
        cycle: Any = self.cycle
        if self._in_head:
            self.transport.abort()
        elif type(cycle) is Exchange:
            if cycle.more_body and not cycle.response_complete:
                self._corridor.on_body_late(cycle)
        else:
            self.transport.abort()

    def pause_writing(self) -> None:
        """The client reads slowly."""
        super().pause_writing()
        cycle: Any = self.cycle
        if type(cycle) is Exchange and cycle.listener is not None:
            cycle.listener.on_client_paused()

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        cycle: Any = self.cycle
        if type(cycle) is Exchange and cycle.listener is not None:
            cycle.listener.on_client_ready()

    # ---------------------------------------------------------------- request

    def on_message_begin(self) -> None:
        """A request line begins."""
        self.url = b""
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self.headers.append((name.lower(), value))

    def on_response_complete(self) -> None:
        """The connection is free: serve what was pipelined, or wait for the next request, but not for ever."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        elif self._in_head:
            self._due_at = self.loop.time() + self._edge.keep_alive_s

    def on_headers_complete(self) -> None:
        """The head is complete: choose the corridor or the ordinary way."""
        self._in_head = self._mid = self._in_body = False
        self._head_bytes = 0
        self._due_at = None
        method = self.parser.get_method()
        route = self._corridor.find_route(method, self.url)
        if route is None:
            self._ordinary(method.decode("ascii"))
            return
        http_version = self.parser.get_http_version()
        path, _, query = self.url.partition(b"?")
        exchange = Exchange(
            self.transport,
            self.flow,
            method,
            path,
            query,
            self.headers,
            route,
            http_version != "1.0" and self.parser.should_keep_alive(),
            http_version == "1.0",
            self.on_response_complete,
        )
        exchange.over_limit = self._over_limit
        exchange.bound_body(self._edge.body_max_bytes, self._budget)
        length = exchange.named.get(b"content-length", b"")
        self._follow(exchange)
        named = exchange.named
        if len(length) > 5 or b"transfer-encoding" in named or b"expect" in named:
            exchange.expects_continue = named.get(b"expect", b"").lower() == b"100-continue"
            if length:
                exchange.expect_body(int(length))
            if not self.pipeline:
                self._corridor.on_head(exchange)

    def _ordinary(self, method: str) -> None:
        """Build an ASGI scope and start the application."""
        url = self.url
        try:
            parsed = httptools.parse_url(url)
        except httptools.HttpParserInvalidURLError:
            self._refuse_bytes()
            return
        raw_path: bytes = parsed.path or b"/"
        if url.startswith(b"//"):  # parse_url would take the first segment for a host
            raw_path = url.partition(b"?")[0]
        path = raw_path.decode("latin-1")
        http_version = self.parser.get_http_version()
        scope: Any = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": http_version,
            "method": method,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": "",
            "path": urllib.parse.unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": parsed.query or b"",
            "headers": self.headers,
            "state": {},
            "extensions": {"sluice.over_limit": {"value": self._over_limit}},
        }
        self.scope = scope
        self._follow(
            RequestResponseCycle(
                scope=self.scope,
                transport=self.transport,
                flow=self.flow,
                logger=self.logger,
                access_logger=self.access_logger,
                access_log=False,
                default_headers=self.server_state.default_headers,
                message_event=asyncio.Event(),
                expect_100_continue=(b"expect", b"100-continue") in self.headers,
                keep_alive=http_version != "1.0" and self.parser.should_keep_alive(),
                on_response=self.on_response_complete,
            )
        )

    def _follow(self, cycle: RequestResponseCycle | Exchange) -> None:
        """Start ``cycle``, or let it wait behind a request that the client pipelined before it."""
        existing: Any = self.cycle
        self.cycle = cast("RequestResponseCycle", cycle)
        if existing is not None and not existing.response_complete:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))
        elif type(cycle) is not Exchange:
            super()._start_asgi_task(self.cycle, self.app)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:  # noqa: ANN401 - uvicorn's types
        """Start a request that has waited behind another on the same connection."""
        if type(cycle) is Exchange:
            if not cycle.more_body or cycle.body_fault is not None:
                self.loop.call_soon(self._corridor.on_request, cycle)
        else:
            super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        cycle: Any = self.cycle
        if type(cycle) is not Exchange:
            super().on_body(body)
        elif not cycle.response_complete:
            cycle.take_body(body)
            if cycle.body_fault is not None and not self._waits(cycle):
                self._corridor.on_request(cycle)

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._in_head = True
        self._due_at = None
        cycle: Any = self.cycle
        if type(cycle) is not Exchange:
            super().on_message_complete()
        elif cycle.response_complete:  # refused long ago; the client has now sent all of its body
            self.transport.close()
        else:
            cycle.more_body = False
            if not self._waits(cycle):
                self._corridor.on_request(cycle)

    def _waits(self, cycle: Any) -> bool:  # noqa: ANN401 - a cycle of either kind
        return bool(self.pipeline) and any(waiting is cycle for waiting, _ in self.pipeline)


def build_protocol_factory(
    app: Any,  # noqa: ANN401 - an ASGI application
    edge: EdgeConfig,
    corridor: CorridorEntry,
    loop: asyncio.AbstractEventLoop,
) -> tuple[Callable[[], EdgeProtocol], ServerState]:
    """A factory for ``loop.create_server`` and the state shared by its connections."""
    config = Config(
        app,
        http=EdgeProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=int(edge.keep_alive_s),
    )
    config.load()
    state = ServerState()
    budget = ByteBudget(edge.bodies_max_bytes)
    return lambda: EdgeProtocol(config, state, edge, budget, corridor, loop), state
