"""Holds one client connection: reads HTTP/1.1 requests, writes answers, one at a time and in order."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import Protocol

import httptools

from service.emulator.delivery import chunk
from service.emulator.inspection import Record

Headers = list[tuple[bytes, bytes]]
PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}
NO_BODY_STATUS = 200
DATE_CACHE: dict[int, bytes] = {}


class Receiver(Protocol):
    """Who answers requests."""

    wall_clock: Callable[[], float]
    keep_alive_s: float
    refuses_reuse: bool

    def opened(self, connection: Connection) -> None:
        """A connection exists."""

    def closed(self, connection: Connection) -> None:
        """A connection is gone."""

    def receive(self, exchange: Exchange) -> None:
        """A whole request has arrived."""


class Exchange:
    """One request and its answer."""

    __slots__ = ("_chunked", "body", "connection", "ended", "headers", "keep_alive", "method", "on_closed", "on_writable",
                 "record", "single_bytes", "started", "target")  # fmt: skip

    def __init__(self, connection: Connection, method: str, target: str, headers: Headers, body: bytes) -> None:
        self.connection = connection
        self.method = method
        self.target = target
        self.headers = headers
        self.body = body
        self.keep_alive = True
        self._chunked = True
        self.started = False
        self.ended = False
        self.single_bytes = False
        self.record: Record | None = None
        self.on_closed: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def header(self, name: bytes) -> str | None:
        for key, value in self.headers:
            if key == name:
                return value.decode("latin-1")
        return None

    @property
    def writable(self) -> bool:
        return not self.connection.paused

    def respond(self, status: int, body: bytes, kind: bytes | None, extra: Headers | None = None) -> None:
        """A whole answer."""
        if self.ended:
            return
        headers: Headers = [(b"content-length", b"%d" % len(body))]
        if kind is not None:
            headers.append((b"content-type", kind))
        head = self._head(status, headers + (extra or []))
        self.connection.write(head if self.method == "HEAD" else head + body)
        self._end("done")

    def begin(self, extra: Headers | None = None) -> None:
        """The head of a streamed answer."""
        headers: Headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        self._chunked = self.connection.http_1_1
        if self._chunked:
            headers.append((b"transfer-encoding", b"chunked"))
        else:
            self.keep_alive = False
        self.started = True
        self.connection.write(self._head(200, headers + (extra or [])))

    def send(self, data: bytes, last: bool = False) -> None:
        """Part of a streamed answer."""
        if self.ended:
            return
        if self._chunked:
            data = chunk(data, self.single_bytes) if data else b""
            if last:
                data += b"0\r\n\r\n"
        if self.record is not None:
            self.record.chunks += 1
        self.connection.write(data)
        if last:
            self._end("done")

    def reset(self) -> None:
        """Break the connection with RST."""
        self._end("cut")
        self.connection.reset()

    def cut(self) -> None:
        """Break the connection with FIN, in the middle of the answer."""
        self._end("cut")
        self.connection.close()

    def raw(self, data: bytes) -> None:
        """Bytes that are no HTTP, then the end."""
        self.connection.write(data)
        self._end("cut")
        self.connection.close()

    def abandon(self, state: str) -> None:
        """The connection is gone."""
        if self.ended:
            return
        self.ended = True
        self._note(state)
        if self.on_closed is not None:
            self.on_closed()

    def _head(self, status: int, headers: Headers) -> bytes:
        lines = [b"HTTP/1.1 %d %b\r\n" % (status, PHRASES.get(status, b"")), self.connection.standing_headers()]
        lines += [b"%b: %b\r\n" % header for header in headers]
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        if self.record is not None:
            self.record.status = status
        return b"".join(lines)

    def _end(self, state: str) -> None:
        if self.ended:
            return
        self.ended = True
        self._note(state)
        self.connection.finished(self)

    def _note(self, state: str) -> None:
        if self.record is not None:
            self.record.state = state
            self.record.ended_at = self.connection.loop.time()


class Connection(asyncio.Protocol):
    """The protocol of one socket. Answers leave in the order of the requests."""

    def __init__(self, receiver: Receiver, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.paused = False
        self.http_1_1 = True
        self.peer = ""
        self._receiver = receiver
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[Exchange] = deque()
        self._current: Exchange | None = None
        self._records: list[Record] = []
        self._served = 0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._target = b""
        self._headers: Headers = []
        self._body: list[bytes] = []

    # ------------------------------------------------------------------ asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if peer else ""
        self._receiver.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._stop_idle_timer()
        self._receiver.closed(self)
        for record in self._records:
            record.closed_at = self.loop.time()
        current, self._current = self._current, None
        self._waiting.clear()
        if current is not None:
            current.abandon("client_closed")

    def data_received(self, data: bytes) -> None:
        self._stop_idle_timer()
        if self._served and self._current is None and self._receiver.refuses_reuse:
            self.reset()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass
        except httptools.HttpParserError:
            text = b"Invalid HTTP request received."
            head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
            self.write(head + b"content-length: %d\r\n\r\n" % len(text) + text)
            self.close()

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self._current is not None and self._current.on_writable is not None:
            self._current.on_writable()

    # ------------------------------------------------------------------ httptools

    def on_message_begin(self) -> None:
        self._target, self._headers, self._body = b"", [], []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if any(name == b"expect" and value.lower() == b"100-continue" for name, value in self._headers):
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        target = self._target.decode("latin-1")
        exchange = Exchange(self, self._parser.get_method().decode(), target, self._headers, b"".join(self._body))
        self.http_1_1 = self._parser.get_http_version() == "1.1"
        exchange.keep_alive = self._parser.should_keep_alive()
        if self._current is None:
            self._start(exchange)
        else:
            self._waiting.append(exchange)

    # ------------------------------------------------------------------ for exchanges

    def standing_headers(self) -> bytes:
        """``date`` and ``server``, rendered once a second."""
        second = int(self._receiver.wall_clock())
        lines = DATE_CACHE.get(second)
        if lines is None:
            DATE_CACHE.clear()
            lines = DATE_CACHE[second] = b"date: %b\r\nserver: uvicorn\r\n" % formatdate(second, usegmt=True).encode()
        return lines

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        if self._transport is None:
            return
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def track(self, record: Record) -> None:
        """Tell the record when this socket closes."""
        self._records.append(record)
        if len(self._records) > 64:
            del self._records[0]

    def finished(self, exchange: Exchange) -> None:
        if self._current is not exchange:
            return
        self._current = None
        self._served += 1
        if self._transport is None or self._transport.is_closing():
            return
        if not exchange.keep_alive:
            self.close()
        elif self._waiting:
            self.loop.call_soon(self._start_next)
        else:
            self._idle_timer = self.loop.call_later(self._receiver.keep_alive_s, self.close)

    # ------------------------------------------------------------------ inside

    def _start_next(self) -> None:
        if self._current is None and self._waiting:
            self._start(self._waiting.popleft())

    def _start(self, exchange: Exchange) -> None:
        self._current = exchange
        self._receiver.receive(exchange)

    def _stop_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
