"""One request and its response on a client's connection, with direct writes to the socket."""

import asyncio
from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle


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

    __slots__ = ("left",)

    def __init__(self, total: int) -> None:
        self.left = total

    def take(self, size: int) -> bool:
        """Reserve ``size`` bytes."""
        if size > self.left:
            return False
        self.left -= size
        return True

    def give(self, size: int) -> None:
        """Return what was reserved."""
        self.left += size


class Exchange(RequestResponseCycle):
    """uvicorn's cycle with three additions: direct writes, a listener for the client, a bounded body.

    Ordinary ASGI applications use ``receive`` and ``send`` as ever. The corridor calls ``begin``, ``write`` and
    ``finish``: no coroutine per chunk, no checks of headers that we render ourselves.
    """

    listener: ClientListener | None = None
    over_limit = False
    body_limit: int | None = None
    budget: ByteBudget | None = None
    budget_taken = 0
    body_refused: str | None = None
    body_waiter: asyncio.Future[None] | None = None

    # ---------------------------------------------------------------- the response

    @property
    def gone(self) -> bool:
        """The client closed its connection."""
        return bool(self.disconnected)

    @property
    def paused(self) -> bool:
        """The client reads more slowly than we write."""
        return bool(self.flow.write_paused)

    def begin(self, status: int, headers: bytes, length: int | None) -> None:
        """Send status line and headers; ``headers`` are rendered lines, framing is added here."""
        if self.disconnected or self.response_started:
            return
        self.response_started = True
        self.waiting_for_100_continue = False
        if length is not None:
            self.chunked_encoding = False
            framing = b"content-length: %d\r\n" % length
        elif self.scope["http_version"] == "1.1":
            self.chunked_encoding = True
            framing = b"transfer-encoding: chunked\r\n"
        else:  # HTTP/1.0 knows no chunks: the end of the connection is the end of the body
            self.chunked_encoding = False
            self.keep_alive = False
            framing = b""
        if not self.keep_alive or self.more_body:
            self.keep_alive = False
            framing += b"connection: close\r\n"
        self.transport.write(STATUS_LINE[status] + headers + framing + b"\r\n")

    def write(self, data: bytes) -> None:
        """Send a piece of the body."""
        if self.disconnected or self.response_complete or not data:
            return
        if self.chunked_encoding:
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            self.transport.write(data)

    def finish(self) -> None:
        """The response is complete; the connection is free for the next request."""
        self.listener = None
        if self.disconnected or self.response_complete:
            return
        if self.chunked_encoding:
            self.transport.write(b"0\r\n\r\n")
        self.response_complete = True
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    def cut(self) -> None:
        """Close at once: the client must see that the body is not complete."""
        self.listener = None
        self.disconnected = True
        self.transport.abort()

    # ---------------------------------------------------------------- the request's body

    def take_body(self, data: bytes) -> None:
        """Buffer a piece of the body within its limit and the gateway's budget, else refuse all of it."""
        if self.body_refused is not None:
            return
        size = len(self.body) + len(data)
        if self.body_limit is not None and size > self.body_limit:
            self.refuse_body("too_large")
        elif self.budget is not None and size > self.budget_taken and not self._take_budget(size):
            self.refuse_body("budget")
        else:
            self.body += data

    def _take_budget(self, size: int) -> bool:
        assert self.budget is not None  # noqa: S101 - only called with one
        if not self.budget.take(size - self.budget_taken):
            return False
        self.budget_taken = size
        return True

    def refuse_body(self, why: str) -> None:
        """Buffer no more and wake the reader."""
        self.body_refused = why
        self.body = bytearray()
        self._wake()

    def body_done(self) -> None:
        """The body is complete."""
        self._wake()

    def release_body(self) -> None:
        """The body is no longer held."""
        if self.budget is not None and self.budget_taken:
            self.budget.give(self.budget_taken)
            self.budget_taken = 0

    async def read_body(self, declared: int | None, timeout_s: float) -> bool:
        """Wait for the whole body; ``False`` when the client took too long or left.

        Raises nothing; look at ``body_refused`` and ``gone``.
        """
        if declared is not None:
            if self.body_limit is not None and declared > self.body_limit:
                self.refuse_body("too_large")
                return True
            if self.budget is not None and not self._take_budget(max(declared, self.budget_taken)):
                self.refuse_body("budget")
                return True
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        if not self.more_body or self.body_refused is not None:
            return True
        loop = asyncio.get_running_loop()
        self.body_waiter = loop.create_future()
        timer = loop.call_later(timeout_s, self._wake)
        try:
            await self.body_waiter
        finally:
            timer.cancel()
            self.body_waiter = None
        return not self.more_body or self.body_refused is not None

    def _wake(self) -> None:
        if self.body_waiter is not None and not self.body_waiter.done():
            self.body_waiter.set_result(None)

    def client_gone(self) -> None:
        """The connection was lost: tell whoever listens, once."""
        self._wake()
        listener, self.listener = self.listener, None
        if listener is not None:
            listener.on_client_gone()


def exchange_of(scope: Any) -> Exchange:  # noqa: ANN401 - an ASGI scope
    """The exchange behind an ASGI scope served by our own listener."""
    exchange = scope["extensions"]["sluice.exchange"]
    if not isinstance(exchange, Exchange):
        raise TypeError("the corridor must be served by service.gateway.server")
    return exchange
