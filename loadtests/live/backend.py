"""A worker that costs almost nothing: OpenAI-shaped answers over keep-alive HTTP/1.1, paced SSE chunks.

    python -m loadtests.live.backend --port 23000 --workers 2

listens on as many successive ports as there are workers, all in one process on one uvloop. A request turns its knobs:

* ``max_tokens`` (or ``max_completion_tokens``): number of chunks of a stream, or of words of a plain answer;
* ``stream``: whether to stream;
* ``seed``: milliseconds before each chunk, or before the plain answer. A negative seed *floods*: an endless stream, as
  fast as the peer takes it, until the connection closes;
* ``stream_options.include_usage``: whether a usage chunk precedes ``[DONE]``, as vLLM does it.

The protocol parses only what gateways send (no pipelining, no trailers) and uses timers instead of tasks, so that on
a machine with two cores nearly all CPU time is left to the gateway and the client. It heeds the transport's flow
control: a peer that does not read costs this process one buffer and no more.

Trade-offs: bodies are scanned with expressions instead of parsed, so a knob's name inside a message text would be
taken for the knob. The load generator beside it never writes such a text.
"""

import argparse
import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

import uvloop

MODEL = "MiniMax-M3.1-Flash"
FLOOD_SEED = -1
FLOOD_BURST_CHUNKS = 64  # about 16 KiB per turn of the loop: many turns, so other streams of the worker keep flowing

_CHUNK = (
    b'data: {"id":"chatcmpl-ae36b199d26afd93","object":"chat.completion.chunk","created":1796057567,'
    b'"model":"MiniMax-M3.1-Flash","choices":[{"index":0,"delta":{"content":" requests"},"logprobs":null,'
    b'"finish_reason":%s,"token_ids":null}]}\n\n'
)
_USAGE = (
    b'data: {"id":"chatcmpl-ae36b199d26afd93","object":"chat.completion.chunk","created":1796057567,'
    b'"model":"MiniMax-M3.1-Flash","choices":[],"usage":{"prompt_tokens":18,"total_tokens":%d,'
    b'"completion_tokens":%d}}\n\n'
)
_DONE = b"data: [DONE]\n\n"
_REPLY = (
    b'{"id":"chatcmpl-ae36b199d26afd93","object":"chat.completion","created":1796057567,"model":"MiniMax-M3.1-Flash",'
    b'"choices":[{"index":0,"message":{"role":"assistant","content":"%s"},"finish_reason":"length"}],'
    b'"usage":{"prompt_tokens":18,"completion_tokens":%d,"total_tokens":%d}}'
)
_MODELS = (
    b'{"object":"list","data":[{"id":"MiniMax-M3.1-Flash","object":"model","created":1796057567,"owned_by":"vllm",'
    b'"root":"MiniMax-M3.1-Flash","parent":null,"max_model_len":1048576}]}'
)
_METRICS = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="{model}"}} {running}.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="{model}"}} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0",model_name="{model}"}} 0.0
"""
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_TOKENS = re.compile(rb'"max_(?:completion_)?tokens": *(\d+)')
_SEED = re.compile(rb'"seed": *(-?\d+)')
_STREAM = re.compile(rb'"stream": *true')
_INCLUDE_USAGE = re.compile(rb'"include_usage": *true')


@dataclass(frozen=True)
class Knobs:
    """What one request asks of the worker."""

    tokens: int = 16
    pause_s: float = 0.0
    stream: bool = False
    flood: bool = False
    include_usage: bool = False


def frame_chunk(payload: bytes) -> bytes:
    """One chunk of a chunked HTTP body."""
    return b"%x\r\n%s\r\n" % (len(payload), payload)


def read_knobs(body: bytes) -> Knobs:
    """The knobs of a request body; missing ones have their defaults."""
    tokens, seed = _TOKENS.search(body), _SEED.search(body)
    pause_ms = int(seed.group(1)) if seed else 0
    return Knobs(
        tokens=int(tokens.group(1)) if tokens else Knobs.tokens,
        pause_s=max(pause_ms, 0) / 1e3,
        stream=_STREAM.search(body) is not None,
        flood=pause_ms < 0,
        include_usage=_INCLUDE_USAGE.search(body) is not None,
    )


def split_request(buffer: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Head, body and rest of the first complete request in ``buffer``; None while it is incomplete."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        return None
    head, start = buffer[:end], end + 4
    length = _LENGTH.search(head)
    if length is not None:
        stop = start + int(length.group(1))
        return (head, buffer[start:stop], buffer[stop:]) if len(buffer) >= stop else None
    if _CHUNKED.search(head) is None:
        return head, b"", buffer[start:]
    pieces = []
    while (line_end := buffer.find(b"\r\n", start)) >= 0:
        size = int(buffer[start:line_end].split(b";")[0], 16)
        stop = line_end + 2 + size
        if len(buffer) < stop + 2:
            return None
        pieces.append(buffer[line_end + 2 : stop])
        start = stop + 2
        if size == 0:
            return head, b"".join(pieces), buffer[start:]
    return None


_TOKEN_CHUNK = frame_chunk(_CHUNK % b"null")
_FINAL_CHUNK = frame_chunk(_CHUNK % b'"length"')
_DONE_CHUNKS = frame_chunk(_DONE) + b"0\r\n\r\n"


@dataclass
class WorkerState:
    """What all connections of one worker share: the requests in flight, as its metrics show them."""

    running_requests: int = 0


class WorkerProtocol(asyncio.Protocol):
    """One connection of one worker."""

    def __init__(self, state: WorkerState) -> None:
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._timer: asyncio.Handle | None = None
        self._knobs: Knobs | None = None
        self._left = 0
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not inherit from asyncio's

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._end()
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        while self._knobs is None and (request := split_request(self._buffer)) is not None:
            head, body, self._buffer = request
            self._answer(head, body)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._knobs is not None and self._knobs.stream and self._timer is None:
            self._send_next()

    def _answer(self, head: bytes, body: bytes) -> None:
        path = head.split(b" ", 2)[1]
        if b"completions" in path:
            self._begin(read_knobs(body))
        elif b"/models" in path:
            self._send(_MODELS)
        elif b"/metrics" in path:
            text = _METRICS.format(model=MODEL, running=self._state.running_requests)
            self._send(text.encode(), b"text/plain; version=0.0.4")
        elif path.startswith((b"/health", b"/ping")):
            self._send(b"")
        else:
            self._send(b'{"detail":"Not Found"}', status=b"404 Not Found")

    def _send(self, body: bytes, kind: bytes = b"application/json", status: bytes = b"200 OK") -> None:
        if self._transport is not None:
            head = b"HTTP/1.1 %s\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n" % (status, kind, len(body))
            self._transport.write(head + body)

    def _begin(self, knobs: Knobs) -> None:
        self._knobs, self._left = knobs, knobs.tokens
        self._state.running_requests += 1
        if knobs.stream:
            if self._transport is not None:
                self._transport.write(_STREAM_HEAD)
            self._schedule(self._send_next)
        elif knobs.pause_s:
            self._schedule(self._send_reply)
        else:
            self._send_reply()

    def _end(self) -> None:
        if self._knobs is not None:
            self._knobs = None
            self._state.running_requests -= 1

    def _schedule(self, step: Callable[[], None]) -> None:
        assert self._knobs is not None  # noqa: S101 - only called while a request runs
        if self._knobs.pause_s:
            self._timer = self._loop.call_later(self._knobs.pause_s, step)
        else:
            self._timer = self._loop.call_soon(step)

    def _send_reply(self) -> None:
        self._timer = None
        if self._knobs is not None:
            count = self._knobs.tokens
            self._end()
            self._send(_REPLY % (b"hello " * count, count, 18 + count))

    def _send_next(self) -> None:
        self._timer = None
        knobs, transport = self._knobs, self._transport
        if knobs is None or transport is None or self._paused:
            return
        if knobs.flood:
            transport.write(_TOKEN_CHUNK * FLOOD_BURST_CHUNKS)
            self._schedule(self._send_next)
            return
        batch = 1 if knobs.pause_s else FLOOD_BURST_CHUNKS
        for _ in range(min(batch, self._left)):
            self._left -= 1
            transport.write(_TOKEN_CHUNK if self._left else _FINAL_CHUNK)
        if self._left:
            self._schedule(self._send_next)
            return
        self._end()
        usage = frame_chunk(_USAGE % (18 + knobs.tokens, knobs.tokens)) if knobs.include_usage else b""
        transport.write(usage + _DONE_CHUNKS)
        self.data_received(b"")


async def serve(host: str, port: int, workers: int) -> None:
    """Listens until cancelled."""
    loop = asyncio.get_running_loop()
    servers = []
    for index in range(workers):
        state = WorkerState()
        servers.append(await loop.create_server(partial(WorkerProtocol, state), host, port + index, backlog=4096))
    print(f"ready on {host}:{port}..{port + workers - 1}", flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="a worker that costs almost nothing")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True, help="first port")
    parser.add_argument("--workers", type=int, default=1, help="workers on successive ports")
    options = parser.parse_args()
    try:
        uvloop.run(serve(options.host, options.port, options.workers))
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
