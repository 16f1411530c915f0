"""A scripted stand-in for a vLLM server's control pages: raw asyncio, so that it can also do what no server should."""

import asyncio
import contextlib
import itertools
from dataclasses import dataclass, field

_PORTS = itertools.cycle(range(24100, 24900))

OK, HANG, BROKEN, GARBAGE, ENDLESS, RESET = "ok", "hang", "broken", "garbage", "endless", "reset"


@dataclass
class FakeWorker:
    """Change the attributes at any time; they hold for the next call."""

    model: str = "MiniMax-M3.1-Flash"
    started_at: float | None = 1000.0
    health: str = OK  # ok, hang, broken (503), reset
    health_delay_s: float = 0.0
    metrics: str = OK  # ok, hang, broken (500), garbage, endless, reset
    models: str = OK  # ok, hang, broken (401)
    token: str = OK  # ok, hang, broken (404)
    running: int = 0
    waiting: int = 0
    kv_cache: float = 0.0
    tokens: float = 100.0
    moving: bool = False  # tokens grow with every page
    filling: bool = False  # the cache fills with every page
    port: int = 0
    calls: dict[str, int] = field(default_factory=dict)
    connections: int = 0
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _release: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self, host: str = "127.0.0.1") -> "FakeWorker":
        self._release = asyncio.Event()
        candidates = [self.port] if self.port else [next(_PORTS) for _ in range(50)]
        for port in candidates:
            with contextlib.suppress(OSError):
                self._server = await asyncio.start_server(self._serve, host, port)
                self.port = port
                return self
        raise OSError("no free port")

    async def stop(self) -> None:
        """As if the process ended: the listener closes, connections are cut."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        self._release.set()
        for writer in tuple(self._writers):
            writer.transport.abort()
        await server.wait_closed()

    async def __aenter__(self) -> "FakeWorker":
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = 0
                for line in head.split(b"\r\n"):
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                if length:
                    await reader.readexactly(length)
                path = head.split(b" ")[1].decode()
                self.calls[path] = self.calls.get(path, 0) + 1
                await self._answer(path, reader, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.connections -= 1
            self._writers.discard(writer)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mode = {
            "/health": self.health,
            "/metrics": self.metrics,
            "/v1/models": self.models,
            "/v1/completions": self.token,
        }[path]
        if mode == HANG:
            await self._hang(reader)
        if mode == RESET:
            writer.transport.abort()
            raise ConnectionResetError
        if mode == ENDLESS:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while True:
                writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
                await writer.drain()
        if path == "/health":
            if self.health_delay_s:
                await asyncio.wait({asyncio.ensure_future(self._release.wait())}, timeout=self.health_delay_s)
            writer.write(_reply(200 if mode == OK else 503, b""))
        elif path == "/metrics":
            body = self._page() if mode == OK else b"<html>busy</html>"
            writer.write(_reply(500 if mode == BROKEN else 200, body))
        elif path == "/v1/models":
            body = b'{"object":"list","data":[{"id":"%s","created":%d}]}' % (self.model.encode(), self.calls[path])
            writer.write(_reply(200, body) if mode == OK else _reply(401, b'{"error":"Unauthorized"}'))
        else:
            writer.write(_reply(200, b'{"choices":[]}') if mode == OK else _reply(404, b"{}"))

    async def _hang(self, reader: asyncio.StreamReader) -> None:
        """Say nothing until the other side gives up or the worker stops."""
        gone = asyncio.ensure_future(reader.read(1))
        release = asyncio.ensure_future(self._release.wait())
        try:
            await asyncio.wait({gone, release}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            release.cancel()
        raise ConnectionResetError

    def _page(self) -> bytes:
        if self.moving:
            self.tokens += 7
        if self.filling:
            self.kv_cache += 0.001
        labels = f'{{engine="0",model_name="{self.model}"}}'
        lines = [
            f"vllm:num_requests_running{labels} {float(self.running)}",
            f"vllm:num_requests_waiting{labels} {float(self.waiting)}",
            f"vllm:kv_cache_usage_perc{labels} {self.kv_cache}",
            f"vllm:iteration_tokens_total_sum{labels} {self.tokens}",
            f"vllm:generation_tokens_total{labels} {self.tokens}",
        ]
        if self.started_at is not None:
            lines.append(f"process_start_time_seconds {self.started_at}")
        return "\n".join(lines).encode() + b"\n"


def _reply(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nContent-Type: text/plain\r\n\r\n%s" % (status, len(body), body)
