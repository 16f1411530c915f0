"""A worker that plays what a test has written down: raw bytes, pauses and broken connections."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

RESET = "reset"
CLOSE = "close"
HANG = "hang"
Step = bytes | float | str
Script = Sequence[Step]


@dataclass
class Received:
    """One request as it came."""

    target: str
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def named(self):
        return dict(self.headers)

    def json(self):
        return json.loads(self.body)


def reply(
    body: bytes | dict, status: str = "200 OK", headers: Sequence[str] = (), kind: str = "application/json"
) -> bytes:
    """A whole answer with its length."""
    if isinstance(body, dict):
        body = json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status}", f"content-type: {kind}", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def stream_head(headers: Sequence[str] = (), kind: str = "text/event-stream; charset=utf-8") -> bytes:
    """The head of a chunked stream."""
    lines = ["HTTP/1.1 200 OK", f"content-type: {kind}", "transfer-encoding: chunked", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST = b"0\r\n\r\n"


def stream(data: bytes | Sequence[bytes], headers: Sequence[str] = (), size: int | None = None) -> list[Step]:
    """A whole stream: each piece, or each ``size`` bytes, in a chunk and a write of its own."""
    pieces = [data] if isinstance(data, bytes) else list(data)
    if size is not None:
        whole = b"".join(pieces)
        pieces = [whole[i : i + size] for i in range(0, len(whole), size)]
    return [stream_head(headers), *[chunk(piece) for piece in pieces], LAST]


def delta(text: str, **more) -> dict:
    return {
        "id": "c1",
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": {"content": text, **more}}],
    }


def event(data: dict | str) -> bytes:
    return b"data: " + (data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))).encode() + b"\n\n"


USAGE = {"id": "c1", "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}}
DONE = event("[DONE]")
WHOLE = reply({"id": "c1", "choices": [{"index": 0, "message": {"content": "hi"}}], "usage": USAGE["usage"]})


@dataclass
class ScriptedWorker:
    """Plays ``script`` for each request: a list of steps, or a function from the request to one."""

    script: Script | Callable[[Received], Script] = (WHOLE,)
    keep_bodies: bool = True
    port: int = 0
    received: list[Received] = field(default_factory=list)
    open: int = 0
    connections: int = 0

    async def __aenter__(self) -> "ScriptedWorker":
        self._tasks: set[asyncio.Task] = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**20, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._tasks.add(task)
        self.open += 1
        self.connections += 1
        try:
            while await self._answer(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in head[1:] if line)]
        left = int(dict(headers).get("content-length", 0))
        pieces = []
        while left:
            piece = await reader.read(min(left, 2**18))
            if not piece:
                return False
            left -= len(piece)
            if self.keep_bodies:
                pieces.append(piece)
        request = Received(head[0], headers, b"".join(pieces))
        self.received.append(request)
        for step in self.script(request) if callable(self.script) else self.script:
            if isinstance(step, bytes):
                writer.write(step)
                await writer.drain()
                await asyncio.sleep(0)
            elif isinstance(step, float):
                await asyncio.sleep(step)
            elif step == RESET:
                writer.transport.abort()
                return False
            elif step == CLOSE:
                return False
            else:
                await reader.read()
                return False
        return True


BARE_STREAM: list[Step] = [chunk(event(delta("a")) + event(USAGE) + DONE), LAST]
"""The rest of the shortest stream, after its head."""
