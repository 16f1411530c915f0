"""One inference request and its response on a client's connection, written straight to the socket."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from service.gateway.auth import Known
from service.gateway.edge import LINGER_S
from service.runtime.account import Settlement
from service.runtime.outbox import Outbox


class ClientListener(Protocol):
    """Hears what the client's connection does while a request is served."""

    def on_client_gone(self) -> None:
        """The connection is closed."""
        ...

    def on_client_paused(self) -> None:
        """The send buffer is above its high-water mark."""
        ...

    def on_client_ready(self) -> None:
        """The send buffer has drained."""
        ...


class ByteBudget:
    """Bytes of request bodies held by the whole gateway. ``take`` says no when the rest does not suffice."""

    __slots__ = ("_total", "left")

    def __init__(self, total: int) -> None:
        self._total = total
        self.left = total

    @property
    def taken(self) -> int:
        """Bytes held at this moment."""
        return self._total - self.left

    def take(self, size: int) -> bool:
        """Reserve ``size`` bytes."""
        if size > self.left:
            return False
        self.left -= size
        return True

    def give(self, size: int) -> None:
        """Return what was reserved."""
        self.left += size


class _Nobody:
    """Stands in for the event that uvicorn's protocol sets when a connection is lost."""

    def set(self) -> None:
        """Nobody waits."""


class Exchange:
    """What the corridor sees of one request: its head, its body within bounds, and a response to be written.

    Takes the place of uvicorn's cycle for corridor paths: no coroutine, no task and no event per request, no check
    of headers that we render ourselves. ``body_fault`` is why the body was not kept: ``too_large``, ``budget``,
    ``framing``, or ``ours`` for a fault of our own code. ``announced``: its body is large or of unknown size, so the
    corridor hears of it before it comes. ``in_line``: a large body is complete and waits for its turn. Defaults live
    in the class, since most requests set few of them: made anew for each they were half of what one takes to build.
    """

    message_event = _Nobody()
    _chunked = False
    _taken = 0
    _unsent_head = b""  # waits for the first piece of the body, so that both leave in one system call
    announced = False
    body: bytes | bytearray = b""
    body_fault: str | None = None
    body_limit = 0
    budget: ByteBudget | None = None
    disconnected = False
    expects_continue = False
    http_10 = False
    in_line = False
    known: Known | None = None
    listener: ClientListener | None = None
    more_body = True
    over_limit = False
    response_complete = False
    response_started = False
    settlement: Settlement | None = None

    def __init__(
        self,
        transport: asyncio.Transport,
        flow: FlowControl,
        method: bytes,
        raw_path: bytes,
        query: bytes,
        headers: list[tuple[bytes, bytes]],
        route: Any,  # noqa: ANN401 - service.gateway.routes.Route, which imports the dialects
        keep_alive: bool,
        on_response: Callable[[], None],
        outbox: Outbox,
    ) -> None:
        self._outbox = outbox
        self._transport = transport
        self._flow = flow
        self._on_response = on_response
        self.method = method
        self.raw_path = raw_path
        self.query = query
        self.headers = headers
        self.named = dict(headers)
        self.route = route
        self.keep_alive = keep_alive

    # ---------------------------------------------------------------- the response

    @property
    def gone(self) -> bool:
        """The client closed its connection."""
        return self.disconnected

    @property
    def paused(self) -> bool:
        """The client reads more slowly than we write."""
        return bool(self._flow.write_paused)

    @property
    def arriving(self) -> bool:
        """Its body has not come to its end or was not looked at, and it was not answered."""
        return (self.more_body or self.in_line) and not self.response_started and not self.disconnected

    def begin(self, status: int, headers: bytes, length: int | None) -> None:
        """Prepare status line and headers; they are sent with the first piece of the body, or by ``finish``."""
        self.response_started = True
        if self.more_body:  # the rest of the body will not be read
            self.keep_alive = False
        if length is not None:
            if self.keep_alive:
                self._unsent_head = STATUS_LINE[status] + headers + b"content-length: %d\r\n\r\n" % length
                return
            framing = b"content-length: %d\r\n" % length
        elif not self.http_10:
            self._chunked = True
            framing = b"transfer-encoding: chunked\r\n"
        else:  # HTTP/1.0 knows no chunks: the end of the connection is the end of the body
            self.keep_alive = False
            framing = b""
        if not self.keep_alive:
            framing += b"connection: close\r\n"
        self._unsent_head = STATUS_LINE[status] + headers + framing + b"\r\n"

    def write(self, data: bytes) -> None:
        """Send a piece of the body."""
        if self.disconnected or not data:
            return
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._unsent_head:
            data = self._unsent_head + data
            self._unsent_head = b""
        self._outbox.write(self._transport, data)

    def finish(self) -> None:
        """The response is complete; the connection is free for the next request."""
        self.listener = None
        if self.body or self._taken:  # usually let go when the answer began
            self.release()
        if self.disconnected or self.response_complete:
            return
        end = self._unsent_head + b"0\r\n\r\n" if self._chunked else self._unsent_head
        if end:
            self._outbox.write(self._transport, end)
        self.response_complete = True
        if self.more_body:
            self._outbox.flush()
            self._linger()
        elif not self.keep_alive:
            self._outbox.flush()
            self._transport.close()
        self._on_response()

    def _linger(self) -> None:
        """Closing while the client still sends would make its kernel throw our answer away: say that nothing more
        comes, and take what it sends for a moment."""
        if self._transport.can_write_eof():
            self._transport.write_eof()
        asyncio.get_running_loop().call_later(LINGER_S, self._transport.abort)

    def cut(self) -> None:
        """Close at once: the client must see that the body is not complete."""
        self.listener = None
        self.disconnected = True
        self.release()
        self._transport.abort()

    # ---------------------------------------------------------------- the request's body

    def expect_body(self, declared: int) -> None:
        """A body of ``declared`` bytes is announced: refuse it now if it is too large, else reserve it."""
        if declared > self.body_limit:
            self._refuse_body("too_large")
        elif self.budget is not None and not self.budget.take(declared):
            self._refuse_body("budget")
        else:
            self._taken = declared

    def send_continue(self) -> None:
        """The client waits for leave to send its body."""
        self._outbox.write(self._transport, b"HTTP/1.1 100 Continue\r\n\r\n")

    def take_body(self, data: bytes) -> None:
        """Keep a piece of the body, or nothing of it once it is too large."""
        if self.body_fault is not None:
            return
        size = len(self.body) + len(data)
        if size > self.body_limit:
            self._refuse_body("too_large")
            return
        if size > self._taken and self.budget is not None:
            if not self.budget.take(size - self._taken):
                self._refuse_body("budget")
                return
            self._taken = size
        if not self.body:
            self.body = data
        elif isinstance(self.body, bytes):
            self.body = bytearray(self.body)
            self.body += data
        else:
            self.body += data

    def _refuse_body(self, why: str) -> None:
        self.body_fault = why
        self.body = b""

    def release(self) -> None:
        """The body is no longer needed: an idle connection must not keep it."""
        self.body = b""
        if self._taken and self.budget is not None:
            self.budget.give(self._taken)
            self._taken = 0

    def client_gone(self) -> None:
        """The connection was lost: tell whoever listens, once."""
        listener, self.listener = self.listener, None
        if listener is not None:
            listener.on_client_gone()
        self.release()
