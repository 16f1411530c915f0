"""Serves the admin application with uvicorn, whose handling of signals is left out: the gateway has its own."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn


class _QuietServer(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield


class AdminServer:
    """One admin listener, from ``start`` to ``stop``."""

    def __init__(self, app: Any, listener: socket.socket) -> None:  # noqa: ANN401 - an ASGI application
        self._server = _QuietServer(
            uvicorn.Config(
                app,
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=64,
                timeout_graceful_shutdown=1,
            )
        )
        self._listener = listener
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Listen."""
        self._task = asyncio.ensure_future(self._server.serve(sockets=[self._listener]))

    async def stop(self) -> None:
        """Finish what is being answered, then close."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task
