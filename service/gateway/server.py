"""The public listener: uvicorn's HTTP/1.1 protocol with bounded connections and timeouts; corridor requests leave it
for an exchange of their own, all others go the ordinary ASGI way."""

import asyncio
import functools
from collections.abc import Callable
from typing import Any, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from service.gateway.connection import ClientConnection, CorridorEntry, ListenerState
from service.gateway.edge import HEAD_MAX_BYTES, HEAD_TOO_LARGE, NOT_HTTP, EdgeConfig
from service.gateway.exchange import ByteBudget, Exchange
from service.gateway.target import build_scope, strip_authority
from service.runtime.guard import contain
from service.runtime.outbox import Outbox
from service.runtime.turnstile import PIECE_BYTES, Turnstile

__all__ = ["CorridorEntry", "EdgeConfig", "EdgeProtocol", "build_protocol_factory"]


_UPGRADE = frozenset((b"upgrade", b"http2-settings"))

_MUCH_BYTES = 64 * 1024
"""One read of so much: the socket holds more, and would be read until it is empty."""


class EdgeProtocol(ClientConnection):
    """Reads requests and sends each its way."""

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        if self._in_head:
            self._head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserCallbackError as error:
            contain(self, "reading a request", error.__context__ or error)
            return
        except httptools.HttpParserError:
            self._refuse_bytes(NOT_HTTP)
            return
        if self._in_head:
            if self._head_bytes:
                self._mid_head()
        else:
            if not self._in_body:
                self._in_body = True
                self._due_at = self.loop.time() + self._edge.body_timeout_s
            if len(data) >= _MUCH_BYTES:
                self._await_turn()

    def _mid_head(self) -> None:
        """A part of a head has come: the rest must come in time, and may not be endless."""
        if self._head_bytes > HEAD_MAX_BYTES:
            self._refuse_bytes(HEAD_TOO_LARGE)
        elif not self._mid:
            self._mid = True
            self._due_at = self.loop.time() + self._edge.head_timeout_s

    def _ignore_upgrade(self, rest: bytes) -> None:
        """We speak HTTP/1.1 only, and RFC 9110 lets a server ignore the wish for another protocol (Java's client
        wishes for h2c in every first request). The parser would not: read the head again without it."""
        self._upgrading = False
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse_bytes(NOT_HTTP)
            return
        lines = [b"%b: %b\r\n" % item for item in self.headers if item[0] not in _UPGRADE]
        head = b"%b %b HTTP/%b\r\n" % (method, self.url, self.parser.get_http_version().encode())
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._in_head = True
        self.data_received(head + b"".join(lines) + b"\r\n" + rest)

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
        if self.transport.is_closing():
            return
        if self.flow.write_paused:
            self._hold()
        else:
            self._go_on()

    def _go_on(self) -> None:
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._serving = cycle
            self._start_asgi_task(cycle, app)
        elif self._in_head:
            self._due_at = self.loop.time() + (self._edge.head_timeout_s if self._mid else self._edge.keep_alive_s)
        elif self._due_at is None:  # reading was held in the middle of a body
            self._due_at = self.loop.time() + self._edge.body_timeout_s

    def on_headers_complete(self) -> None:
        """The head is complete: choose the corridor or the ordinary way."""
        parser = self.parser
        if parser.should_upgrade():
            self._upgrading = True
            return
        self._in_head = self._mid = self._in_body = False
        self._head_bytes = 0
        self._due_at = None
        if self._over_limit:
            self._reserve.pop(self, None)
        method = parser.get_method()
        route = self._corridor.find_route(method, self.url)
        if route is None:
            self.url = strip_authority(self.url)
            route = self._corridor.find_route(method, self.url)
        if route is None:
            self._ordinary(method.decode("ascii"))
            return
        keep_alive = parser.should_keep_alive() and not self._listener.leaving
        path, query = self.url, b""
        if b"?" in path:
            path, _, query = path.partition(b"?")
        exchange = Exchange(
            self.transport,
            self.flow,
            method,
            path,
            query,
            self.headers,
            route,
            keep_alive,
            self.on_response_complete,
            self._outbox,
        )
        exchange.body_limit = self._edge.body_max_bytes
        exchange.budget = self._budget
        named = exchange.named
        if self._over_limit:
            exchange.over_limit = True
            exchange.keep_alive = False
        # A client of HTTP/1.0 keeps a connection only if it says so; the version is dear to ask for.
        if (not keep_alive or b"connection" in named) and parser.get_http_version() == "1.0":
            exchange.http_10 = True
            exchange.keep_alive = False
        length = named.get(b"content-length", b"")
        self._follow(exchange)
        if len(length) > 5 or b"transfer-encoding" in named or b"expect" in named:
            exchange.announced = True
            exchange.expects_continue = not exchange.http_10 and named.get(b"expect", b"").lower() == b"100-continue"
            if length:
                exchange.expect_body(int(length))
            if not self.pipeline:
                self._corridor.on_head(exchange)

    def _ordinary(self, method: str) -> None:
        """Build an ASGI scope and start the application."""
        version, over = self.parser.get_http_version(), self._over_limit
        scope: Any = build_scope(
            method, self.url, self.headers, version, self.scheme, self.server, self.client, over
        )  # fmt: skip
        self.scope = scope
        self._follow(
            RequestResponseCycle(
                scope=scope,
                transport=self.transport,
                flow=self.flow,
                logger=self.logger,
                access_logger=self.access_logger,
                access_log=False,
                default_headers=self.server_state.default_headers,
                message_event=asyncio.Event(),
                expect_100_continue=(b"expect", b"100-continue") in self.headers,
                keep_alive=version != "1.0"
                and not (over or self._listener.leaving)
                and self.parser.should_keep_alive(),
                on_response=self.on_response_complete,
            )
        )

    def _follow(self, cycle: RequestResponseCycle | Exchange) -> None:
        """Start ``cycle``, or let it wait behind a request that the client pipelined before it, or until the client has
        read what it was answered."""
        existing: Any = self.cycle
        if type(existing) is Exchange and type(cycle) is Exchange:
            cycle.known = existing.known
        self.cycle = cycle  # type: ignore[assignment]  # an exchange takes the place of uvicorn's cycle
        if existing is not None and not existing.response_complete:
            self.flow.pause_reading()
            if not self.pipeline:
                self._serving = existing
            self.pipeline.appendleft((self.cycle, self.app))
        elif self.flow.write_paused:
            self.pipeline.appendleft((self.cycle, self.app))
            self._hold()
        elif type(cycle) is not Exchange:
            super()._start_asgi_task(self.cycle, self.app)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:  # noqa: ANN401 - uvicorn's types
        """Start a request that has waited behind another on the same connection."""
        if type(cycle) is not Exchange:
            super()._start_asgi_task(cycle, app)
        elif not cycle.more_body or cycle.body_fault is not None:
            self.loop.call_soon(self._serve_waited, cycle)
        else:
            self._due_at = self.loop.time() + self._edge.body_timeout_s
            if cycle.announced:
                self._corridor.on_head(cycle)

    def _serve_waited(self, cycle: Exchange) -> None:
        if self.flow.write_paused:
            self.pipeline.append((cast("RequestResponseCycle", cycle), self.app))
            self._hold()
        elif not cycle.disconnected and not cycle.response_started:
            cycle.in_line = False
            self._corridor.on_request(cycle)

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
        if self._upgrading:
            return
        self._in_head = True
        self._due_at = None
        cycle: Any = self.cycle
        if type(cycle) is not Exchange:
            super().on_message_complete()
        elif cycle.response_complete:  # refused long ago; the client has now sent all of its body
            self.transport.close()
        else:
            cycle.more_body = False
            if self.flow.write_paused:
                if not self._waits(cycle):
                    self.pipeline.appendleft((self.cycle, self.app))
                    self._hold()
            elif not self.pipeline or not self._waits(cycle):
                if len(cycle.body) <= PIECE_BYTES:
                    self._corridor.on_request(cycle)
                else:  # reading in it takes as long as a hundred others
                    cycle.in_line = True
                    self._turnstile.enter(len(cycle.body), functools.partial(self._serve_waited, cycle))


def build_protocol_factory(
    app: Any,  # noqa: ANN401 - an ASGI application
    edge: EdgeConfig,
    corridor: CorridorEntry,
    loop: asyncio.AbstractEventLoop,
    budget: ByteBudget | None = None,
    outbox: Outbox | None = None,
    turnstile: Turnstile | None = None,
) -> tuple[Callable[[], EdgeProtocol], ListenerState]:
    """A factory for ``loop.create_server`` and the state shared by its connections. ``budget``: of all bodies, for
    whoever wants to see how much of it is taken; ``outbox`` and ``turnstile``: shared with whatever else is written on
    this loop."""
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
    state = ListenerState()
    bodies = ByteBudget(edge.bodies_max_bytes) if budget is None else budget
    reserve: dict[ClientConnection, None] = {}
    written = Outbox(loop.call_soon) if outbox is None else outbox
    turns = Turnstile(loop.call_soon) if turnstile is None else turnstile
    return lambda: EdgeProtocol(config, state, edge, bodies, reserve, corridor, loop, written, turns), state
