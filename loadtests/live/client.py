"""Loads one gateway and prints, as JSON, what the load cost it.

    python -m loadtests.live.client --port 8080 --pid GATEWAY_PID --load json
    python -m loadtests.live.client --port 8080 --pid GATEWAY_PID --concurrency 50 --requests 300 --stream \
        --tokens 100 --pause-ms 5 --key sk-...

The loop is *closed*: a fixed number of connections, each sending its next request when the answer to the last one is
complete. Latency under load would be measured wrongly that way (a slow gateway is asked less often: coordinated
omission), so the figures for that come from the open-loop tests. For CPU time per request the closed loop is right:
the figure is a quotient of work and requests done, whatever their rate; no queue grows, so nothing but the path itself
is paid for; and every gateway gets the same number of requests over the same number of connections.

CPU time is user plus system of the given processes and their children over the run. The client measures itself too:
``client.busy_ratio`` is the share of one core it took and ``client.lag_ms`` how late its own timers fire. Where the
first is near one, ``rps`` is the client's figure, not the gateway's (CPU time per request stands all the same).

Trade-offs: one process, one core; above some 30,000 requests or 150,000 chunks per second the client is the bottleneck.
Children that end during the run are not counted.
"""

import argparse
import asyncio
import json
import os
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import cast

import httptools
import uvloop

from loadtests.live.backend import MODEL
from loadtests.live.figures import compute_spread_ms
from loadtests.live.process_cost import fetch_cpu_s, fetch_family, fetch_rss_kib

LAG_PERIOD_S = 0.01
REQUEST_LIMIT_S = 30.0
OK = "ok"


@dataclass(frozen=True)
class Load:
    """One closed-loop load: so many connections, so many requests in all, each of this shape."""

    concurrency: int
    requests: int
    stream: bool
    tokens: int
    pause_ms: int
    padding_words: int = 2


# The two standard loads: whole answers for CPU time per request, paced streams for CPU time per streamed chunk.
STANDARD_LOADS = {
    "json": Load(concurrency=16, requests=8000, stream=False, tokens=16, pause_ms=0),
    "stream": Load(concurrency=50, requests=300, stream=True, tokens=100, pause_ms=5),
}


@dataclass(frozen=True)
class Target:
    """Where the load goes and whose CPU time is counted."""

    port: int
    host: str = "127.0.0.1"
    path: str = "/v1/chat/completions"
    key: str = "sk-test"
    model: str = MODEL
    pids: tuple[int, ...] = ()


@dataclass
class Tally:
    """What the connections of one run have seen, in the order of completion."""

    first_byte_s: list[float] = field(default_factory=list)
    total_s: list[float] = field(default_factory=list)
    chunks: int = 0
    errors: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class LoadResult:
    """What one run measured; a figure that cannot be had (no process given, no stream) is None."""

    load: Load
    took_s: float
    rps: float
    chunks: int
    cpu_us_per_request: float | None
    cpu_us_per_chunk: float | None
    busy_ratio: float | None
    rss_peak_kib: int | None
    ttfb_ms: dict[str, float | None]
    e2e_ms: dict[str, float | None]
    errors: dict[str, int]
    client: dict[str, object]


def build_request(load: Load, target: Target) -> bytes:
    """The request all connections send, head and body."""
    body = json.dumps(
        {
            "model": target.model,
            "messages": [{"role": "user", "content": " ".join(["hello world"] * max(load.padding_words // 2, 1))}],
            "max_tokens": load.tokens,
            "stream": load.stream,
            "seed": load.pause_ms,
        }
    ).encode()
    head = (
        f"POST {target.path} HTTP/1.1\r\nhost: {target.host}:{target.port}\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {target.key}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class EventCounter:
    """Counts ``data:`` lines in a stream cut anywhere, and keeps its end."""

    _MARK = b"data: "
    _KEPT = 32

    def __init__(self) -> None:
        self.events = 0
        self.tail = b""

    def feed(self, piece: bytes) -> None:
        """Takes the next piece of the body."""
        overlap = self.tail[-(len(self._MARK) - 1) :]
        self.events += (overlap + piece).count(self._MARK)
        self.tail = piece[-self._KEPT :] if len(piece) >= self._KEPT else (self.tail + piece)[-self._KEPT :]

    @property
    def is_done(self) -> bool:
        """Whether the stream has ended as OpenAI's do."""
        return b"data: [DONE]" in self.tail


class ClientProtocol(asyncio.Protocol):
    """One connection: sends a request when told to and tells how its answer ended."""

    def __init__(self, request: bytes, *, stream: bool) -> None:
        self._request = request
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._verdict: asyncio.Future[str] | None = None
        self._counter = EventCounter()
        self.started_at = 0.0
        self.first_byte_at: float | None = None
        self.chunks = 0

    @property
    def is_open(self) -> bool:
        """Whether another request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not inherit from asyncio's

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._finish("connection lost")

    def send(self) -> asyncio.Future[str]:
        """Sends the request; the future holds ``OK`` or the kind of failure."""
        self._verdict = self._loop.create_future()
        self._counter = EventCounter()
        self._parser = httptools.HttpResponseParser(self)
        self.first_byte_at, self.chunks = None, 0
        self.started_at = time.perf_counter()
        if self._transport is None:
            self._finish("connection lost")
        else:
            self._transport.write(self._request)
        return self._verdict

    def close(self) -> None:
        """Drops the connection."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._finish("malformed response")
            self.close()

    def on_body(self, body: bytes) -> None:
        if self.first_byte_at is None:
            self.first_byte_at = time.perf_counter()
        if self._stream:
            self._counter.feed(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status != 200:
            self._finish(f"status {status}")
        elif self._stream and not self._counter.is_done:
            self._finish("no [DONE]")
        else:
            self._finish(OK)
        if not self._parser.should_keep_alive():
            self.close()

    def _finish(self, verdict: str) -> None:
        if self._verdict is not None and not self._verdict.done():
            self.chunks = self._counter.events
            self._verdict.set_result(verdict)


class LagMeter:
    """Measures how late this process's own timers fire: its scheduling lag."""

    def __init__(self) -> None:
        self.lags_s: list[float] = []

    async def run(self) -> None:
        """Measures until cancelled."""
        while True:
            due_at = time.perf_counter() + LAG_PERIOD_S
            await asyncio.sleep(LAG_PERIOD_S)
            self.lags_s.append(max(0.0, time.perf_counter() - due_at))


class RequestSource:
    """The requests still to be sent, shared by all connections."""

    def __init__(self, requests: int) -> None:
        self._left = requests

    def take(self) -> bool:
        """Takes one; False if none is left."""
        self._left -= 1
        return self._left >= 0


async def _run_connection(target: Target, load: Load, request: bytes, source: RequestSource, tally: Tally) -> None:
    loop = asyncio.get_running_loop()
    protocol: ClientProtocol | None = None
    while source.take():
        try:
            if protocol is None or not protocol.is_open:
                _, protocol = await loop.create_connection(
                    lambda: ClientProtocol(request, stream=load.stream), target.host, target.port
                )
        except OSError as error:
            tally.errors[f"connect: {error.strerror or type(error).__name__}"] += 1
            continue
        limit_s = REQUEST_LIMIT_S + 4 * load.tokens * load.pause_ms / 1e3
        verdict_future = protocol.send()
        watchdog = loop.call_later(limit_s, protocol.close)
        verdict = await verdict_future
        watchdog.cancel()
        ended_at = time.perf_counter()
        if verdict != OK:
            tally.errors[verdict] += 1
        else:
            tally.total_s.append(ended_at - protocol.started_at)
            tally.first_byte_s.append((protocol.first_byte_at or ended_at) - protocol.started_at)
        tally.chunks += protocol.chunks
    if protocol is not None:
        protocol.close()


async def run_load(target: Target, load: Load) -> LoadResult:
    """Runs the load to its end and tells what it cost the processes of the target."""
    request, tally, lag = build_request(load, target), Tally(), LagMeter()
    source = RequestSource(load.requests)
    pids = fetch_family(list(target.pids)) if target.pids else []
    lag_task = asyncio.ensure_future(lag.run())
    cpu_before_s, own_before_s, began_at = fetch_cpu_s(pids), time.process_time(), time.perf_counter()
    await asyncio.gather(
        *(_run_connection(target, load, request, source, tally) for _ in range(min(load.concurrency, load.requests)))
    )
    took_s = time.perf_counter() - began_at
    used_s, own_used_s = fetch_cpu_s(pids) - cpu_before_s, time.process_time() - own_before_s
    lag_task.cancel()
    return LoadResult(
        load=load,
        took_s=round(took_s, 3),
        rps=round(load.requests / took_s, 1),
        chunks=tally.chunks,
        cpu_us_per_request=round(1e6 * used_s / load.requests, 2) if pids else None,
        cpu_us_per_chunk=round(1e6 * used_s / tally.chunks, 2) if pids and tally.chunks else None,
        busy_ratio=round(used_s / took_s, 3) if pids else None,
        rss_peak_kib=fetch_rss_kib(pids, peak=True),
        ttfb_ms=compute_spread_ms(tally.first_byte_s),
        e2e_ms=compute_spread_ms(tally.total_s),
        errors=dict(tally.errors),
        client={
            "busy_ratio": round(own_used_s / took_s, 3),
            "cpu_us_per_request": round(1e6 * own_used_s / load.requests, 2),
            "lag_ms": compute_spread_ms(lag.lags_s),
        },
    )


def build_load(options: argparse.Namespace) -> Load:
    """The load of a command line: a standard one, with any of its parts set anew."""
    standard = STANDARD_LOADS[options.load]
    return Load(
        concurrency=options.concurrency or standard.concurrency,
        requests=options.requests or standard.requests,
        stream=standard.stream or options.stream,
        tokens=options.tokens or standard.tokens,
        pause_ms=standard.pause_ms if options.pause_ms is None else options.pause_ms,
        padding_words=options.padding_words,
    )


def build_parser() -> argparse.ArgumentParser:
    """The command line's options."""
    parser = argparse.ArgumentParser(description="loads one gateway and prints what the load cost it, as JSON")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pid", type=int, action="append", default=[], help="gateway process (children are found)")
    parser.add_argument("--load", choices=sorted(STANDARD_LOADS), default="json", help="standard load to start from")
    parser.add_argument("--concurrency", type=int)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--pause-ms", type=int)
    parser.add_argument("--padding-words", type=int, default=2, help="words of the prompt")
    parser.add_argument("--path", default=Target.path)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--key", default=os.environ.get("KEY", Target.key), help="default: environment KEY")
    return parser


def main() -> None:
    """The command line."""
    options = build_parser().parse_args()
    target = Target(
        port=options.port,
        host=options.host,
        path=options.path,
        key=options.key,
        model=options.model,
        pids=tuple(options.pid),
    )
    print(json.dumps(asdict(uvloop.run(run_load(target, build_load(options))))))


if __name__ == "__main__":
    main()
