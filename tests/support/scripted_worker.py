"""A worker that does to each request exactly what the test says, byte by byte, on a raw socket."""

import asyncio
import contextlib
import json
import socket
import struct

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
STOP = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
ABORT = {"choices": [{"index": 0, "delta": {}, "finish_reason": "abort"}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}}


def token(text="x"):
    return {"choices": [{"index": 0, "delta": {"content": text}}]}


def event(data, name=None):
    line = data if isinstance(data, str) else json.dumps(data)
    return (f"event: {name}\n" if name else "").encode() + f"data: {line}\n\n".encode()


class Seat:
    """One request at the worker. ``closed`` is set when the gateway closes the connection it came by."""

    def __init__(self, connection, head, body):
        self.connection = connection
        self.writer = connection.writer
        self.head = head
        self.body = body
        self.closed = connection.closed

    @property
    def path(self):
        return self.head.split(b" ")[1].decode()

    def raw(self, data):
        self.writer.write(data)

    def begin(self):
        self.raw(HEAD)

    def chunk(self, data):
        self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    def say(self, *data):
        """One chunk for each event."""
        for one in data:
            self.chunk(one if isinstance(one, bytes) else event(one))

    def end(self):
        self.raw(b"0\r\n\r\n")

    def done(self):
        self.say("[DONE]")
        self.end()

    def json(self, status, body, headers=()):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = "".join(f"{line}\r\n" for line in headers).encode()
        self.raw(
            b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b\r\n%b"
            % (status, len(data), lines, data)
        )

    def reset(self):
        """RST: what was not read at the other side is lost."""
        self.connection.reset()

    def finish(self):
        """FIN."""
        self.writer.close()

    async def flushed(self):
        """Give the other side a moment to take what was sent."""
        with contextlib.suppress(ConnectionError):
            await self.writer.drain()
        await asyncio.sleep(0.03)


class _Connection:
    def __init__(self, worker, reader, writer):
        self.worker = worker
        self.reader = reader
        self.writer = writer
        self.closed = asyncio.Event()

    def reset(self):
        sock = self.writer.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def serve(self):
        scripts = set()
        try:
            while True:
                head = await self.reader.readuntil(b"\r\n\r\n")
                length = 0
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                body = await self.reader.readexactly(length) if length else b""
                seat = Seat(self, head, body)
                self.worker.seats.append(seat)
                task = asyncio.create_task(self.worker.script(seat))
                scripts.add(task)
                task.add_done_callback(scripts.discard)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.closed.set()
            for task in scripts:
                task.cancel()
            self.worker.open.discard(self)
            self.writer.close()
            with contextlib.suppress(ConnectionError):
                await self.writer.wait_closed()


class ScriptedWorker:
    """``script(seat)`` answers each request; it may be exchanged at any time."""

    def __init__(self, script):
        self.script = script
        self.seats = []
        self.open = set()
        self.accepted = 0
        self.port = 0

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**22, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        await self.stop()

    async def stop(self):
        self._server.close()
        for connection in list(self.open):
            connection.reset()
        await self._server.wait_closed()
        await asyncio.sleep(0)

    async def _serve(self, reader, writer):
        connection = _Connection(self, reader, writer)
        self.open.add(connection)
        self.accepted += 1
        await connection.serve()

    async def seat(self, number=0, bound_s=5.0):
        """The request of that number, once it has come."""
        async with asyncio.timeout(bound_s):
            while len(self.seats) <= number:  # noqa: ASYNC110 - what is watched has no event
                await asyncio.sleep(0.002)
        return self.seats[number]


async def silent(seat):
    """Never answers."""
    await seat.closed.wait()


async def serve(seat):
    """An ordinary answer."""
    if b'"stream":true' in seat.body.replace(b" ", b""):
        seat.begin()
        seat.say(ROLE, token("a"), token("b"), token("c"), STOP, USAGE)
        seat.done()
    else:
        usage = USAGE["usage"]
        seat.json(200, {"choices": [{"message": {"content": "abc"}, "finish_reason": "stop"}], "usage": usage})


async def drip(seat):
    """A stream without end, a token each 10 ms."""
    seat.begin()
    seat.say(ROLE)
    while True:
        seat.say(token())
        await asyncio.sleep(0.01)
