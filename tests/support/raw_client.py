"""A client that sees the bytes: one raw HTTP/1.1 connection, for tests of what exactly crosses the wire."""

import asyncio
import contextlib
import json

BOUND_S = 10.0


class RawAnswer:
    """Head and body of one answer, chunks as they were framed."""

    def __init__(self, status, headers, body, chunks):
        self.status = status
        self.headers = headers
        self.body = body
        self.chunks = chunks

    def json(self):
        return json.loads(self.body)

    def events(self):
        """The JSON of each data event before ``[DONE]``."""
        found = [block.removeprefix("data: ") for block in self.body.decode().split("\n\n") if block]
        return [json.loads(block) for block in found if block != "[DONE]"]


class RawClient:
    """One connection. Every wait is bounded."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port, **options):
        return cls(*await asyncio.open_connection("127.0.0.1", port, **options))

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(self.writer.wait_closed(), BOUND_S)

    def send(self, method, path, body=b"", headers=(), version="1.1"):
        if isinstance(body, dict):
            body = json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/{version}", "host: test", f"content-length: {len(body)}"]
        lines += (
            ["content-type: application/json"] if body and not any("content-type" in one for one in headers) else []
        )
        self.writer.write("\r\n".join([*lines, *headers, "", ""]).encode() + body)

    async def line(self):
        return (await asyncio.wait_for(self.reader.readline(), BOUND_S)).rstrip(b"\r\n")

    async def head(self):
        """(status, headers) of the next answer."""
        first = await self.line()
        if not first:
            raise ConnectionResetError("closed before an answer")
        headers = []
        while line := await self.line():
            name, _, value = line.decode("latin-1").partition(": ")
            headers.append((name.lower(), value))
        return int(first.split(b" ")[1]), headers

    async def chunk(self):
        """The next chunk of a chunked body; empty at its end."""
        size = await self.line()
        if not size:
            raise ConnectionResetError("closed in the middle of a body")
        data = await asyncio.wait_for(self.reader.readexactly(int(size, 16)), BOUND_S)
        await self.line()
        return data

    async def rest(self):
        """Every chunk up to the end of the body."""
        chunks = []
        while data := await self.chunk():
            chunks.append(data)
        return chunks

    async def answer(self):
        """The whole next answer."""
        status, headers = await self.head()
        named = dict(headers)
        chunks = []
        if named.get("transfer-encoding") == "chunked":
            chunks = await self.rest()
            body = b"".join(chunks)
        elif "content-length" in named:
            body = await asyncio.wait_for(self.reader.readexactly(int(named["content-length"])), BOUND_S)
        else:
            body = await asyncio.wait_for(self.reader.read(), BOUND_S)
        return RawAnswer(status, named, body, chunks)

    async def ask(self, method, path, body=b"", headers=()):
        self.send(method, path, body, headers)
        return await self.answer()

    async def closed(self):
        """Wait for the other side to close; what came before it."""
        try:
            return await asyncio.wait_for(self.reader.read(), BOUND_S)
        except ConnectionError:
            return b""


async def until(condition, bound_s=BOUND_S):
    """Wait, in turns of the loop, for something another party does."""
    async with asyncio.timeout(bound_s):
        while not condition():  # noqa: ASYNC110  (what is watched has no event)
            await asyncio.sleep(0.002)


def chat(**fields):
    """A chat body."""
    return {"messages": [{"role": "user", "content": "hello there"}], "max_tokens": 8, **fields}
