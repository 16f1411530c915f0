"""The public listener: uvicorn's HTTP/1.1 protocol with bounded connections, timeouts and the corridor's exchange."""

import asyncio
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from service.gateway.exchange import ByteBudget, Exchange


@dataclass(frozen=True, slots=True)
class EdgeConfig:
    """Limits of the listener.

    Above ``connections_max`` only health is answered; ``connections_reserve`` more are closed at once. The head of a
    request must come within ``head_timeout_s``; an idle connection is kept ``keep_alive_s``.
    ``write_buffer_bytes`` is where a slow reader starts to hold the worker back.
    """

    connections_max: int = 8192
    connections_reserve: int = 64
    head_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    keep_alive_s: float = 75.0
    body_max_bytes: int = 64 * 1024 * 1024
    bodies_max_bytes: int = 1024 * 1024 * 1024
    write_buffer_bytes: int = 128 * 1024


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


class EdgeProtocol(HttpToolsProtocol):
    """One client connection."""

    edge: EdgeConfig
    budget: ByteBudget
    corridor_paths: frozenset[bytes]

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        edge: EdgeConfig,
        budget: ByteBudget,
        corridor_paths: frozenset[bytes],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(config, server_state, {}, _loop=loop)
        self.edge = edge
        self.budget = budget
        self.corridor_paths = corridor_paths
        self._over_limit = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._in_head = True

    # ---------------------------------------------------------------- connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count it; refuse what is above the reserve; the first head must come in time."""
        super().connection_made(transport)
        count = len(self.connections)
        if count > self.edge.connections_max + self.edge.connections_reserve:
            transport.write(_TOO_MANY)
            transport.close()
            return
        self._over_limit = count > self.edge.connections_max
        transport.set_write_buffer_limits(high=self.edge.write_buffer_bytes)
        self._head_timer = self.loop.call_later(self.edge.head_timeout_s, self._head_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the exchange, so that the worker stops at once."""
        super().connection_lost(exc)
        self._stop_head_timer()
        cycle = self.cycle
        if isinstance(cycle, Exchange):
            cycle.client_gone()

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        if self._in_head:
            if self.timeout_keep_alive_task is not None:  # first bytes of the next request: now its head must come
                self._unset_keepalive_if_required()
                self._head_timer = self.loop.call_later(self.edge.head_timeout_s, self._head_late)
            self._head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # we speak HTTP/1.1 only; RFC 9110 lets a server ignore the wish
        except httptools.HttpParserError:
            self._refuse_bytes(_NOT_HTTP)
            return
        if self._in_head and self._head_bytes > _HEAD_MAX_BYTES:
            self._refuse_bytes(_NOT_HTTP)

    def _refuse_bytes(self, answer: bytes) -> None:
        if not self.transport.is_closing():
            if self.cycle is None or self.cycle.response_complete:
                self.transport.write(answer)
            self.transport.close()

    def _head_late(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.abort()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def pause_writing(self) -> None:
        """The client reads slowly."""
        super().pause_writing()
        listener = self.cycle.listener if isinstance(self.cycle, Exchange) else None
        if listener is not None:
            listener.on_client_paused()

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        listener = self.cycle.listener if isinstance(self.cycle, Exchange) else None
        if listener is not None:
            listener.on_client_ready()

    # ---------------------------------------------------------------- request

    def on_message_begin(self) -> None:
        """A request line begins."""
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is complete: start the application, or queue it behind a pipelined request."""
        self._in_head = False
        self._head_bytes = 0
        self._stop_head_timer()
        parser, scope = self.parser, self.scope
        http_version = parser.get_http_version()
        if http_version != "1.1":
            scope["http_version"] = http_version
        scope["method"] = parser.get_method().decode("ascii")
        raw_path = self.url
        query = b""
        if not raw_path.startswith(b"/") or b"?" in raw_path or b"#" in raw_path:
            try:
                parsed = httptools.parse_url(raw_path)
            except httptools.HttpParserInvalidURLError:
                self._refuse_bytes(_NOT_HTTP)
                return
            raw_path, query = parsed.path or b"/", parsed.query or b""
        path = raw_path.decode("latin-1")
        scope["path"] = urllib.parse.unquote(path) if "%" in path else path
        scope["raw_path"] = raw_path
        scope["query_string"] = query
        existing = self.cycle
        cycle = Exchange(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=http_version != "1.0" and parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        cast("dict[str, Any]", scope)["extensions"] = {"sluice.exchange": cycle}
        cycle.over_limit = self._over_limit
        if raw_path in self.corridor_paths or raw_path.startswith(b"/v1/responses/"):
            cycle.body_limit = self.edge.body_max_bytes
            cycle.budget = self.budget
        self.cycle = cycle
        if existing is None or existing.response_complete:
            self._start_asgi_task(cycle, self.app)
        else:  # the client pipelines: it waits its turn
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        cycle = self.cycle
        if isinstance(cycle, Exchange) and cycle.body_limit is not None:
            if not cycle.response_complete:
                cycle.take_body(body)
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._in_head = True
        super().on_message_complete()
        if isinstance(self.cycle, Exchange):
            self.cycle.body_done()


def build_protocol_factory(
    app: Any,  # noqa: ANN401 - an ASGI application
    edge: EdgeConfig,
    corridor_paths: frozenset[bytes],
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
    return lambda: EdgeProtocol(config, state, edge, budget, corridor_paths, loop), state
