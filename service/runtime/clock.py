"""The one place that reads the machine's clock."""

import asyncio
import time


class MonotonicClock:
    """Seconds since an arbitrary start, never going back; the same scale as the event loop's timers."""

    __slots__ = ("now", "wall")

    def __init__(self) -> None:
        self.now = time.monotonic
        self.wall = time.time


async def sleep(length_s: float) -> None:
    """Wait ``length_s``; for loops that act on their own, never to wait for something that could be awaited."""
    await asyncio.sleep(length_s)
