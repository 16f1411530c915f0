"""Leads a gateway out of service: first no longer ready, then no longer listening, then empty, then gone.

| phase | ready | accepts | serves new requests | ends when |
|---|---|---|---|---|
| serving | yes | yes | yes | a signal or an operator says so |
| leaving | no | yes | yes, till balancers have heard; no connection is kept | ``drain_delay_s`` has passed |
| emptying | no | no | those whose body was on its way | nothing is under way, or most of the grace is over |
| ended | no | no | no | - |

A second signal hurries: what is left is ended with an error event at once. An operator's word may be said as often as
one likes, and before a signal too: a platform drains first and signals then, and means one leaving by both.

``grace_s`` is when the process must be gone (whoever started it kills it then), so the end of it is kept for the last
bytes and for closing: what is under way is cut at ``grace_s`` - flush - margin from the beginning.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from service.runtime.clock import sleep

_LOOK_EVERY_S = 0.05
_FLUSH_S = 2.0
"""How long sockets get to send what was written last. A guess; a client that does not read is not worth more."""
_MARGIN_S = 1.6
"""For what comes after: the admin port ends within 1 s, the rest of the process within some 0.1 s (measured)."""
_RESERVED_RATIO_MAX = 0.5
"""Of a grace too short for both; they are then kept in proportion."""


class Phase(Enum):
    """Where the way out stands."""

    SERVING = "serving"
    LEAVING = "leaving"
    EMPTYING = "emptying"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Timetable:
    """Lengths from the beginning of the way out. ``delay_s``: to the closing of the doors; ``cut_s``: to the cut of
    what is under way; ``flush_s``: how long the last bytes may take from then on."""

    delay_s: float
    cut_s: float
    flush_s: float


def compute_timetable(delay_s: float, grace_s: float) -> Timetable:
    """cut = grace - flush - margin, where flush + margin <= ``_RESERVED_RATIO_MAX`` x grace."""
    reserved_s = min(_FLUSH_S + _MARGIN_S, grace_s * _RESERVED_RATIO_MAX)
    cut_s = grace_s - reserved_s
    return Timetable(min(delay_s, cut_s), cut_s, reserved_s * _FLUSH_S / (_FLUSH_S + _MARGIN_S))


class Premises(Protocol):
    """What is being left."""

    def send_elsewhere(self) -> None:
        """Serve as ever, but keep no connection."""
        ...

    def close_doors(self) -> None:
        """Stop listening, close idle connections."""
        ...

    def under_way(self) -> int:
        """Requests that wait, run or still arrive."""
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
        self._signalled = False
        self.phase = Phase.SERVING
        self.began_at: float | None = None

    def signal(self) -> None:
        """A signal came: leave; a second one: leave at once."""
        if self._signalled:
            self._hurried.set()
        self._signalled = True
        self.begin()

    def begin(self) -> None:
        """Leave, unless that has begun."""
        if self._begun.is_set():
            return
        self.phase = Phase.LEAVING
        self.began_at = self._now()
        self._begun.set()

    async def run(self, bounds: Callable[[], tuple[float, float]]) -> None:
        """Wait for ``begin``, then go all the way. ``bounds`` gives the delay and the grace in force by then."""
        await self._begun.wait()
        times = compute_timetable(*bounds())
        began_at = self._now()
        self._premises.send_elsewhere()
        try:
            async with asyncio.timeout(times.delay_s):
                await self._hurried.wait()
        except TimeoutError:
            pass
        self.phase = Phase.EMPTYING
        self._premises.close_doors()
        while self._premises.under_way() and not self._hurried.is_set() and self._now() < began_at + times.cut_s:
            await sleep(_LOOK_EVERY_S)
        self._premises.cut()
        flush_until = self._now() + times.flush_s
        while self._premises.open_connections() and self._now() < flush_until:
            await sleep(_LOOK_EVERY_S)
        self.phase = Phase.ENDED
