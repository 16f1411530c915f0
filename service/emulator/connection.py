"""Holds one client connection: reads HTTP/1.1 requests, writes answers, one at a time and in order."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from email.utils import formatdate
from typing import Protocol, cast

import httptools

from service.emulator.exchange import Exchange, Headers
from service.emulator.inspection import Record

DATE_CACHE: dict[int, bytes] = {}


class Receiver(Protocol):
    """Who answers requests."""

    wall_clock: Callable[[], float]
    keep_alive_s: float

    def refuses_reuse(self) -> bool:
        """Whether an idle connection dies as its next request arrives."""

    def opened(self, connection: Connection) -> None:
        """A connection exists."""

    def closed(self, connection: Connection) -> None:
        """A connection is gone."""

    def receive(self, exchange: Exchange) -> None:
        """A whole request has arrived."""


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
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by its methods only
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
        if self._served and self._current is None and self._receiver.refuses_reuse():
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

    def shut(self) -> None:
        """End for good: at once in the middle of an answer, politely otherwise."""
        if self._transport is not None:
            (self._transport.close if self._current is None else self._transport.abort)()

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
