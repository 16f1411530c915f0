"""Offers one run to an engine, open loop, and stamps every token that comes back.

Requests are sent when their moment has come, whatever became of the others, and every length counts from the moment a
request was *meant* to be sent. How late the client was itself stands beside the figures.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

import uvloop

from loadtests.calibration.machine import Meter, Usage
from loadtests.calibration.replay import Question, Times
from loadtests.calibration.texts import Ask
from loadtests.live.open_loop import IDLE_LIMIT_S, Connection
from loadtests.live.stream_reader import StreamReader
from loadtests.live.verdicts import Sighting

CONNECT_AHEAD = 8
"""Connections opened before the run: few requests pay for opening one, as behind a gateway with a pool."""


class RunFailedError(Exception):
    """The engine did not do all of what it was asked; the run says nothing."""

    def __init__(self, message: str, usage: Usage) -> None:
        super().__init__(message)
        self.usage = usage


class StampingReader(StreamReader):
    """Keeps the moment of every piece that carried tokens."""

    __slots__ = ("stamps",)

    def __init__(self) -> None:
        super().__init__()
        self.stamps: list[float] = []

    def feed(self, piece: bytes, now_s: float) -> None:
        super().feed(piece, now_s)
        if self.last_s == now_s:
            self.stamps.append(now_s)


class StampingConnection(Connection):
    """A connection whose reader keeps stamps."""

    reader_type = StampingReader

    def read_stamps(self) -> list[float]:
        """Those of the request it carries, or carried last; the list goes on growing."""
        reader = self._reader
        return reader.stamps if isinstance(reader, StampingReader) else []


@dataclass(slots=True)
class Measured:
    """A run as it was seen. ``questions`` is what a prediction may know of it."""

    name: str
    questions: list[Question]
    times: list[Times]
    stamps: list[list[float]] = field(repr=False)
    send_lag_s: float
    usage: Usage


class _Offer:
    def __init__(self, host: str, port: int, asks: Sequence[Ask]) -> None:
        self._host, self._port, self._asks = host, port, asks
        self._loop = asyncio.get_running_loop()
        self._head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        self._zero = 0.0
        self._idle: list[StampingConnection] = []
        self._all: list[StampingConnection] = []
        self._left = len(asks)
        self._done = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.sightings = [Sighting(ask.call.at_s, 0, counted=True) for ask in asks]
        self.stamps: list[list[float]] = [[] for _ in asks]

    def _now_s(self) -> float:
        return time.perf_counter() - self._zero

    async def run(self, limit_s: float) -> None:
        for _ in range(min(CONNECT_AHEAD, len(self._asks))):
            self._idle.append(await self._connect())
        requests = [self._build_request(ask.body) for ask in self._asks]
        self._zero = time.perf_counter()
        for connection in self._idle:
            connection.idle_since_s = 0.0
        try:
            for index in sorted(range(len(self._asks)), key=lambda one: self._asks[one].call.at_s):
                while (wait_s := self._asks[index].call.at_s - self._now_s()) > 0:  # noqa: ASYNC110 - the moment itself
                    await asyncio.sleep(wait_s)
                self._send(index, requests[index])
            with contextlib.suppress(TimeoutError):  # what has not ended is seen by its missing end
                await asyncio.wait_for(self._done.wait(), limit_s)
        finally:
            for task in self._tasks:
                task.cancel()
            for connection in self._all:
                connection.close()

    def _build_request(self, body: bytes) -> bytes:
        return self._head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body

    def _send(self, index: int, request: bytes) -> None:
        sighting = self.sightings[index]
        sighting.sent_s = self._now_s()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and sighting.sent_s - connection.idle_since_s < IDLE_LIMIT_S:
                self._carry(connection, index, request)
                return
            connection.close()
        task = self._loop.create_task(self._open(index, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open(self, index: int, request: bytes) -> None:
        try:
            connection = await self._connect()
        except OSError as error:
            self.sightings[index].failure = f"connect: {error}"
            self._count_down()
            return
        self._carry(connection, index, request)

    async def _connect(self) -> StampingConnection:
        _, connection = await self._loop.create_connection(
            lambda: StampingConnection(self._now_s, self._free), self._host, self._port
        )
        self._all.append(connection)
        return connection

    def _carry(self, connection: StampingConnection, index: int, request: bytes) -> None:
        connection.send(self.sightings[index], request)
        self.stamps[index] = connection.read_stamps()

    def _free(self, connection: Connection) -> None:
        if isinstance(connection, StampingConnection) and connection.is_open:
            connection.idle_since_s = self._now_s()
            self._idle.append(connection)
        self._count_down()

    def _count_down(self) -> None:
        self._left -= 1
        if not self._left:
            self._done.set()


def measure(name: str, asks: Sequence[Ask], address: tuple[str, int], limit_s: float, meter: Meter) -> Measured:
    """Offer a run and wait for its end; raises ``RunFailedError`` unless every request was answered in full."""
    gc.collect()
    gc.disable()
    try:
        offer, usage = uvloop.run(_measure(asks, address, limit_s, meter))
    finally:
        gc.enable()
    for ask, sighting in zip(asks, offer.sightings, strict=True):
        if (why := _find_failure(ask, sighting)) is not None:
            raise RunFailedError(f"{name}: {why}", usage)
    times = [
        Times(one.at_s, one.first_s or 0.0, one.last_s or 0.0, ask.call.output_tokens)
        for ask, one in zip(asks, offer.sightings, strict=True)
    ]
    lag_s = max((one.sent_s or 0.0) - one.at_s for one in offer.sightings)
    questions = [Question(ask.call.at_s, ask.prompt_tokens, ask.call.output_tokens, ask.block_hashes) for ask in asks]
    return Measured(name, questions, times, offer.stamps, lag_s, usage)


async def _measure(asks: Sequence[Ask], address: tuple[str, int], limit_s: float, meter: Meter) -> tuple[_Offer, Usage]:
    offer = _Offer(*address, asks)
    stop: Callable[[], Usage] = meter.start()
    await offer.run(limit_s)
    return offer, stop()


def _find_failure(ask: Ask, sighting: Sighting) -> str | None:
    """Why a request says nothing; ``None`` where it was answered in full."""
    if sighting.end_s is None:
        return "a request had not ended when the time was over"
    if sighting.status != 200 or sighting.failure is not None:
        return f"a request failed: status {sighting.status}, {sighting.failure or 'no reason'}"
    if sighting.tokens != ask.call.output_tokens or sighting.first_s is None or sighting.last_s is None:
        return f"{sighting.tokens} tokens came where {ask.call.output_tokens} were asked for"
    return None


def dump_rows(run: Measured) -> dict[str, object]:
    """A run as it goes into JSON."""
    return {
        "name": run.name,
        "foreign_cores": run.usage.foreign_cores,
        "questions": [asdict(one) for one in run.questions],
        "first_s": [one.first_s for one in run.times],
        "last_s": [one.last_s for one in run.times],
        "stamps": run.stamps[:1],
    }
