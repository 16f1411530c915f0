"""Starts and stops an emulated worker: in-process for tests, or as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from itertools import count

from service.emulator.config import EmulatorConfig
from service.emulator.connection import Connection
from service.emulator.exchange import Exchange
from service.emulator.inspection import Record
from service.emulator.routes import Router
from service.emulator.worker import EmulatedWorker

BACKLOG = 2048


class ServedWorker(EmulatedWorker):
    """A worker whose requests go through the router and the log."""

    def __init__(self, config: EmulatorConfig, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(config, loop)
        self._router = Router(self)
        self._logged = count()

    def receive(self, exchange: Exchange) -> None:
        if self.config.request_log and not exchange.target.startswith(("/emulator/", "/health", "/metrics")):
            headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in exchange.headers]
            record = Record(
                serial=next(self._logged),
                at=self.loop.time(),
                peer=exchange.connection.peer,
                method=exchange.method,
                target=exchange.target,
                headers=headers,
                body=exchange.body,
            )
            exchange.record = record
            exchange.connection.track(record)
            self.log.add(record)
        self._router.answer(exchange)


class RunningWorker:
    """A worker that listens. ``async with`` stops it."""

    def __init__(self, worker: ServedWorker, server: asyncio.Server) -> None:
        self.worker = worker
        self._server = server
        self.port: int = server.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://{self.worker.config.host}:{self.port}"

    async def stop(self) -> None:
        """As SIGTERM: drain if the options say so, then close every socket."""
        await self.worker.shut_down()
        self._server.close()
        await self._server.wait_closed()

    async def __aenter__(self) -> RunningWorker:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


async def start_worker(config: EmulatorConfig) -> RunningWorker:
    """Listen on the running event loop; returns when requests are taken."""
    loop = asyncio.get_running_loop()
    worker = ServedWorker(config, loop)
    sock = socket.create_server((config.host, config.port), backlog=BACKLOG)
    server = await loop.create_server(lambda: Connection(worker, loop), sock=sock, backlog=BACKLOG)
    return RunningWorker(worker, server)


async def serve(config: EmulatorConfig) -> None:
    """Run until SIGINT or SIGTERM; a second signal cuts at once."""
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    again = asyncio.Event()

    def on_signal() -> None:
        (again if asked.is_set() else asked).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    if config.startup_delay > 0:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asked.wait(), config.startup_delay)
            return
    running = await start_worker(config)
    sys.stdout.write(f"emulated worker ready: {running.url} model={config.model} profile={config.profile}\n")
    sys.stdout.flush()
    await asked.wait()
    stopping = asyncio.ensure_future(running.stop())
    hurry = asyncio.ensure_future(again.wait())
    await asyncio.wait({stopping, hurry}, return_when=asyncio.FIRST_COMPLETED)
    for task in (stopping, hurry):
        task.cancel()
    await asyncio.gather(stopping, hurry, return_exceptions=True)


def run(config: EmulatorConfig) -> None:
    """The process: its own uvloop until a signal comes."""
    import uvloop

    uvloop.run(serve(config))
