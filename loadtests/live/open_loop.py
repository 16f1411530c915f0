"""Offers traffic at its own pace, whatever becomes of it, and judges every request against its tier's targets.

    echo '{"ports": [8080], "mix": {...}, "schedule": {...}}' | python -m loadtests.live.open_loop

The loop is *open*: all moments of sending are computed beforehand, a request is sent when its moment has come and never
waits for an answer or for a free connection, and its latency is counted from that moment. A slow gateway is therefore
asked as often as a fast one (no coordinated omission). Connections are kept for a short while and opened as needed.
How late the generator itself was stands beside the figures; a run in which it was late measures the machine.

With ``concurrency`` the loop is *closed* instead: so many requests at once, the next sent when one ends. That finds an
engine's peak. (Little's law, N / mean time, was tried for it: 5 % too high, because the first requests, begun one by
one, meet an engine that is not full.)

The run ends when the last counted request has ended or can no longer become good; what is still in flight then is cut.
A request is never sent twice. SIGTERM ends the sending early: what was sent until then is judged as ever.

Trade-offs: one process, one core; good for some thousands of chunks per second. No client here gives up waiting, as
real ones do: work done too late is the server's to avoid.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import random
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from typing import cast

import httptools
import uvloop

from loadtests.live.backend import MODEL
from loadtests.live.client import LagMeter
from loadtests.live.figures import compute_spread_ms
from loadtests.live.stream_reader import StreamReader
from loadtests.live.traffic import Mix, Schedule, build_prompt, compute_arrivals, dump_mix, load_mix
from loadtests.live.verdicts import (
    Sighting,
    Verdict,
    add_up,
    compute_goodput_rps,
    is_settled,
    judge,
    summarise,
)

IDLE_LIMIT_S = 2.0  # below the 5 s after which vLLM closes idle connections: a reused one is never a dying one
SETTLE_PERIOD_S = 0.05
_START_DELAY_S = 0.2


@dataclass(frozen=True)
class Plan:
    """What one process of the generator is to do; several ports are used in turn, as a client with a list would."""

    ports: tuple[int, ...]
    mix: Mix
    schedule: Schedule
    host: str = "127.0.0.1"
    path: str = "/v1/chat/completions"
    model: str = MODEL
    headers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    bodies: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    concurrency: int = 0
    requests_max: int = 20_000
    connections_max: int = 4_000
    limit_s: float = 120.0
    keep_rows: bool = False

    def dump(self) -> str:
        """As JSON."""
        return json.dumps({**asdict(self), "mix": dump_mix(self.mix)})

    @classmethod
    def load(cls, text: str) -> Plan:
        """From JSON; what is missing has its default."""
        raw = json.loads(text)
        raw["mix"], raw["schedule"] = load_mix(raw["mix"]), Schedule(**raw["schedule"])
        return cls(**{**raw, "ports": tuple(raw["ports"])})


def build_request(plan: Plan, shape_index: int, chance: random.Random) -> bytes:
    """One request, head and body."""
    shape = plan.mix.shapes[shape_index]
    body = json.dumps(
        {
            "model": plan.model,
            "messages": [{"role": "user", "content": build_prompt(shape.prompt_tokens, chance)}],
            "max_tokens": shape.tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **plan.bodies.get(shape.tier, {}),
        }
    ).encode()
    extra = "".join(f"{name}: {value}\r\n" for name, value in plan.headers.get(shape.tier, {}).items())
    head = (
        f"POST {plan.path} HTTP/1.1\r\nhost: {plan.host}\r\ncontent-type: application/json\r\n{extra}"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Connection(asyncio.Protocol):
    """One connection: carries one request at a time and notes what comes back."""

    reader_type = StreamReader

    def __init__(self, now: Callable[[], float], freed: Callable[[Connection], None]) -> None:
        self._now = now
        self._freed = freed
        self._transport: asyncio.Transport | None = None
        self._sighting: Sighting | None = None
        self._reader = self.reader_type()
        self._parser = httptools.HttpResponseParser(self)
        self.idle_since_s = 0.0

    @property
    def is_open(self) -> bool:
        """Whether a request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not inherit from asyncio's

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._end("connection lost")

    def send(self, sighting: Sighting, request: bytes) -> None:
        """Sends a request."""
        self._sighting, self._reader = sighting, self.reader_type()
        self._parser = httptools.HttpResponseParser(self)
        if self._transport is None:
            self._end("connection lost")
        else:
            self._transport.write(request)

    def close(self) -> None:
        """Drops the connection; what it carried stays as it was seen."""
        self._sighting = None
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._end("malformed response")
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._sighting is not None and name.lower() == b"retry-after" and value.isdigit():
            self._sighting.retry_after_s = float(value)

    def on_headers_complete(self) -> None:
        if self._sighting is not None:
            self._sighting.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        sighting, reader = self._sighting, self._reader
        if sighting is not None:
            reader.feed(body, self._now())
            sighting.first_s, sighting.last_s = reader.first_s, reader.last_s

    def on_message_complete(self) -> None:
        sighting, reader = self._sighting, self._reader
        if sighting is None:
            return
        sighting.tokens = reader.read_tokens()
        keeps = self._parser.should_keep_alive()
        if sighting.status == 200 and (reader.has_error or not reader.is_done):
            self._end("error event" if reader.has_error else "no [DONE]")
        else:
            self._end(None)
        if not keeps:
            self.close()

    def _end(self, failure: str | None) -> None:
        sighting, self._sighting = self._sighting, None
        if sighting is not None:
            sighting.end_s, sighting.failure = self._now(), failure
            self._freed(self)


class Generator:
    """Sends the requests of one plan and keeps what was seen of them."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._loop = asyncio.get_running_loop()
        self._zero = 0.0
        self._idle: dict[int, list[Connection]] = {port: [] for port in plan.ports}
        self._ports: dict[Connection, int] = {}
        self._opening: set[asyncio.Task[None]] = set()
        self._on_end: Callable[[], None] = lambda: None
        self._turn = 0
        self._stopped = asyncio.Event()
        self.open_connections = 0
        self.connections_peak = 0
        self.sightings: list[Sighting] = []

    def now_s(self) -> float:
        """Seconds from the start of the counted window."""
        return time.perf_counter() - self._zero

    def submit(self, sighting: Sighting, request: bytes) -> None:
        """Sends a request at once: on an idle connection, else on a fresh one."""
        self.sightings.append(sighting)
        sighting.sent_s = self.now_s()
        port = self._plan.ports[self._turn % len(self._plan.ports)]
        self._turn += 1
        idle = self._idle[port]
        while idle:
            connection = idle.pop()
            if connection.is_open and sighting.sent_s - connection.idle_since_s < IDLE_LIMIT_S:
                connection.send(sighting, request)
                return
            self._drop(connection)
        if self.open_connections >= self._plan.connections_max:
            sighting.end_s, sighting.failure = self.now_s(), "no connection left"
            return
        self.open_connections += 1
        self.connections_peak = max(self.connections_peak, self.open_connections)
        task = self._loop.create_task(self._open(port, sighting, request))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, port: int, sighting: Sighting, request: bytes) -> None:
        try:
            _, connection = await self._loop.create_connection(
                lambda: Connection(self.now_s, self._free), self._plan.host, port
            )
        except OSError as error:
            self.open_connections -= 1
            sighting.end_s, sighting.failure = self.now_s(), f"connect: {error.strerror or type(error).__name__}"
            self._on_end()
            return
        self._ports[connection] = port
        connection.send(sighting, request)

    def _free(self, connection: Connection) -> None:
        if connection.is_open:
            connection.idle_since_s = self.now_s()
            self._idle[self._ports[connection]].append(connection)
        else:
            self._drop(connection)
        self._on_end()

    def _drop(self, connection: Connection) -> None:
        if self._ports.pop(connection, None) is not None:
            self.open_connections -= 1
            connection.close()

    def send_no_more(self) -> None:
        """Ends an open loop's sending."""
        self._stopped.set()

    async def _wait(self, length_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(length_s):
                await self._stopped.wait()

    async def run_open(self) -> None:
        """Sends every arrival at its moment, then waits until all counted ones are settled."""
        plan, chance = self._plan, random.Random(self._plan.schedule.seed)  # noqa: S311 - a reproducible load
        arrivals = compute_arrivals(plan.mix, plan.schedule)
        if len(arrivals) > plan.requests_max:
            raise SystemExit(f"{len(arrivals)} requests are more than {plan.requests_max}")
        requests = deque(build_request(plan, arrival.shape, chance) for arrival in arrivals)
        gc.collect()
        gc.freeze()
        self._zero = time.perf_counter() + _START_DELAY_S + plan.schedule.warm_up_s
        for arrival in arrivals:
            # Again, because uvloop's timers may fire up to a millisecond early.
            while (wait_s := arrival.at_s - self.now_s()) > 0 and not self._stopped.is_set():
                await self._wait(wait_s)
            if self._stopped.is_set():
                break
            self.submit(Sighting(arrival.at_s, arrival.shape, arrival.counted), requests.popleft())
        open_ones = [sighting for sighting in self.sightings if sighting.counted]
        while open_ones and self.now_s() < plan.limit_s:
            now_s = self.now_s()
            open_ones = [one for one in open_ones if not self._is_settled(one, now_s)]
            await asyncio.sleep(SETTLE_PERIOD_S)

    def _is_settled(self, sighting: Sighting, now_s: float) -> bool:
        shape = self._plan.mix.shapes[sighting.shape]
        return is_settled(sighting, shape, self._plan.mix.choose_targets(shape.tier), now_s)

    async def run_closed(self) -> None:
        """Keeps ``concurrency`` requests in flight; begins them spread over the warm-up, so that they do not march."""
        plan, chance = self._plan, random.Random(self._plan.schedule.seed)  # noqa: S311 - a reproducible load
        weights = [shape.share for shape in plan.mix.shapes]
        until_s = plan.schedule.seconds
        self._zero = time.perf_counter() + plan.schedule.warm_up_s

        def send_next() -> None:
            now_s = self.now_s()
            if now_s >= until_s or len(self.sightings) >= plan.requests_max:
                return
            (shape,) = chance.choices(range(len(weights)), weights)
            self.submit(Sighting(now_s, shape, False), build_request(plan, shape, chance))

        self._on_end = send_next
        for _ in range(plan.concurrency):
            send_next()
            await asyncio.sleep(0.7 * plan.schedule.warm_up_s / plan.concurrency)
        await asyncio.sleep(max(0.0, until_s - self.now_s()))
        self._on_end = lambda: None
        for sighting in self.sightings:
            sighting.counted = sighting.end_s is not None and 0.0 <= sighting.end_s < until_s

    def stop(self) -> None:
        """Drops every connection."""
        for task in self._opening:
            task.cancel()
        for connection in list(self._ports):
            self._drop(connection)


def compute_closed_goodput(plan: Plan, sightings: Sequence[Sighting]) -> dict[str, float]:
    """Goodput of a closed loop: good requests that ended in the window, per second of it; and their mean time."""
    done = [one for one in sightings if one.counted and one.end_s is not None]
    good = 0
    for one in done:
        shape = plan.mix.shapes[one.shape]
        good += judge(one, shape, plan.mix.choose_targets(shape.tier)) is Verdict.GOOD
    return {
        "concurrency": float(plan.concurrency),
        "goodput_rps": good / plan.schedule.seconds,
        "good_ratio": good / len(done) if done else 0.0,
        "mean_s": sum((one.end_s or 0.0) - one.at_s for one in done) / max(len(done), 1),
    }


async def run_plan(plan: Plan) -> dict[str, object]:
    """Runs a plan to its end; the result as JSON."""
    generator, lag = Generator(plan), LagMeter()
    lag_task = asyncio.ensure_future(lag.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, generator.send_no_more)
    began_at, cpu_before_s = time.perf_counter(), time.process_time()
    try:
        await (generator.run_closed() if plan.concurrency else generator.run_open())
    finally:
        lag_task.cancel()
        generator.stop()
    took_s = time.perf_counter() - began_at
    figures = add_up(plan.mix, generator.sightings)
    send_lags_s = [(one.sent_s or 0.0) - one.at_s for one in generator.sightings]
    result: dict[str, object] = {
        "offered": sum(one.offered for one in figures.values()),
        "sent": len(generator.sightings),
        "tiers": {tier: summarise(one) for tier, one in figures.items()},
        "goodput_rps": compute_goodput_rps(figures.values(), plan.schedule.seconds),
        "took_s": round(took_s, 2),
        "client": {
            "lag_ms": compute_spread_ms(lag.lags_s),
            "send_lag_ms": compute_spread_ms(send_lags_s),
            "busy_ratio": round((time.process_time() - cpu_before_s) / took_s, 3),
            "connections_peak": generator.connections_peak,
        },
    }
    if plan.concurrency:
        result["closed"] = compute_closed_goodput(plan, generator.sightings)
    if plan.keep_rows:
        result["rows"] = [astuple(one) for one in generator.sightings]
    return result


def main() -> None:
    """The command line: a plan on standard input, the result on standard output."""
    parser = argparse.ArgumentParser(description="offers the traffic of a plan (JSON on standard input), prints JSON")
    parser.add_argument("--nice", type=int, default=0, help="priority of this process, where it may set it")
    options = parser.parse_args()
    if options.nice:
        os.setpriority(os.PRIO_PROCESS, 0, options.nice)
    print(json.dumps(uvloop.run(run_plan(Plan.load(sys.stdin.read())))))


if __name__ == "__main__":
    main()
