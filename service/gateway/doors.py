"""All clients' connections of the public listener: counted, looked at, closed."""

import asyncio
from collections.abc import Iterator
from typing import cast

from service.gateway.connection import ClientConnection, ListenerState


class Doors:
    """``state`` is what the listener's connections share."""

    def __init__(self, state: ListenerState) -> None:
        self._state = state

    def _connections(self) -> Iterator[ClientConnection]:
        return iter(cast("tuple[ClientConnection, ...]", tuple(self._state.connections)))

    @property
    def open(self) -> int:
        """Connections of clients."""
        return len(self._state.connections)

    @property
    def arriving(self) -> int:
        """Those that are sending a request."""
        return sum(connection.arriving for connection in self._connections())

    def sweep(self) -> None:
        """Let each look at the time."""
        now = asyncio.get_running_loop().time()
        for connection in self._connections():
            connection.on_sweep(now)

    def send_elsewhere(self) -> None:
        """From now on each answer says that its connection ends with it: whoever keeps connections asks elsewhere next
        time, before ours are closed under their hands."""
        self._state.leaving = True

    def close_idle(self) -> None:
        """Close what is idle; what serves a request closes after its answer."""
        for connection in self._connections():
            connection.shutdown()

    def cut_arriving(self) -> None:
        """Tell those that still send that the gateway goes away."""
        for connection in self._connections():
            connection.cut_arriving()

    def abort(self) -> None:
        """Nothing is open afterwards, whoever was still reading."""
        for connection in self._connections():
            connection.transport.abort()
