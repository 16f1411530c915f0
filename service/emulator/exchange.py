"""Holds one request and writes its answer: whole, or as a stream of chunks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol

from service.emulator.delivery import chunk
from service.emulator.inspection import Record

Headers = list[tuple[bytes, bytes]]
PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}


class Carrier(Protocol):
    """The connection an exchange belongs to."""

    loop: asyncio.AbstractEventLoop
    paused: bool
    http_1_1: bool
    peer: str

    def standing_headers(self) -> bytes:
        """Header lines of every answer."""

    def write(self, data: bytes) -> None:
        """Send bytes."""

    def close(self) -> None:
        """End with FIN."""

    def reset(self) -> None:
        """End with RST."""

    def track(self, record: Record) -> None:
        """Tell the record when this socket closes."""

    def finished(self, exchange: Exchange) -> None:
        """The answer of this exchange is complete or broken."""


class Exchange:
    """One request and its answer."""

    __slots__ = ("_chunked", "body", "connection", "ended", "headers", "keep_alive", "method", "on_ended",
                 "on_writable", "record", "single_bytes", "standing", "started", "target")  # fmt: skip

    def __init__(self, connection: Carrier, method: str, target: str, headers: Headers, body: bytes) -> None:
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
        self.standing: Headers = [(b"vary", b"Origin")]
        """Headers of every answer, whatever it is."""
        self.record: Record | None = None
        self.on_ended: Callable[[], None] | None = None
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
        headers: Headers = [*(extra or []), (b"content-length", b"%d" % len(body))]
        if kind is not None:
            headers.append((b"content-type", kind))
        head = self._head(status, headers)
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

    def send(self, parts: list[bytes], last: bool = False) -> None:
        """Parts of a streamed answer: a chunk each, as vLLM yields them, in one write."""
        if self.ended:
            return
        if self._chunked:
            data = b"".join([chunk(part, self.single_bytes) for part in parts if part])
            if last:
                data += b"0\r\n\r\n"
        else:
            data = b"".join(parts)
        if self.record is not None:
            self.record.chunks += len(parts)
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

    def _head(self, status: int, headers: Headers) -> bytes:
        lines = [b"HTTP/1.1 %d %b\r\n" % (status, PHRASES.get(status, b"")), self.connection.standing_headers()]
        lines += [b"%b: %b\r\n" % header for header in (*headers, *self.standing)]
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
        if self.on_ended is not None:
            self.on_ended()
