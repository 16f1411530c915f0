"""Leads a gateway out of service: first no longer ready, then no longer listening, then empty, then gone.

| phase | ready | accepts | serves new requests | ends when |
|---|---|---|---|---|
| serving | yes | yes | yes | a signal or an operator says so |
| leaving | no | yes | yes, balancers need a moment to hear of it | ``drain_delay_s`` has passed |
| emptying | no | no | refused as draining | nothing is under way, or ``grace_s`` from the beginning has passed |
| ended | no | no | no | - |

A second word hurries: what is left is ended with an error event at once.
"""

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from service.runtime.clock import sleep

_LOOK_EVERY_S = 0.05
_FLUSH_S = 2.0
"""How long sockets get to send what was written last. A guess; a client that does not read is not worth more."""


class Phase(Enum):
    """Where the way out stands."""

    SERVING = "serving"
    LEAVING = "leaving"
    EMPTYING = "emptying"
    ENDED = "ended"


class Premises(Protocol):
    """What is being left."""

    def close_doors(self) -> None:
        """Stop listening, refuse new requests, close idle connections."""
        ...

    def under_way(self) -> int:
        """Requests that wait or run."""
        ...

    def open_connections(self) -> int:
        """Client connections that are open."""
        ...

    def cut(self) -> None:
        """End what is under way with an error."""
        ...


class Drain:
    """The way out of one gateway. ``begin`` may be called from a signal handler of the loop."""

    def __init__(self, premises: Premises, now: Callable[[], float]) -> None:
        self._premises = premises
        self._now = now
        self._begun = asyncio.Event()
        self._hurried = asyncio.Event()
        self.phase = Phase.SERVING
        self.began_at: float | None = None

    def begin(self) -> None:
        """Leave; called again, leave at once."""
        if self._begun.is_set():
            self._hurried.set()
            return
        self.phase = Phase.LEAVING
        self.began_at = self._now()
        self._begun.set()

    async def run(self, bounds: Callable[[], tuple[float, float]]) -> None:
        """Wait for ``begin``, then go all the way. ``bounds`` gives the delay and the grace in force by then."""
        await self._begun.wait()
        delay_s, grace_s = bounds()
        began_at = self._now()
        try:
            async with asyncio.timeout(delay_s):
                await self._hurried.wait()
        except TimeoutError:
            pass
        self.phase = Phase.EMPTYING
        self._premises.close_doors()
        while self._premises.under_way() and not self._hurried.is_set() and self._now() < began_at + grace_s:
            await sleep(_LOOK_EVERY_S)
        self._premises.cut()
        flush_until = self._now() + _FLUSH_S
        while self._premises.open_connections() and self._now() < flush_until:
            await sleep(_LOOK_EVERY_S)
        self.phase = Phase.ENDED
