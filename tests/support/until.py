"""Waiting for something to become true, with a bound, without blind sleeps longer than a moment."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool], bound_s: float = 5.0, what: str = "condition") -> float:
    """Wait until ``condition()``; how long it took. Looks every 5 ms, so it also sees what sends no signal."""
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    while not condition():
        if loop.time() - began_at > bound_s:
            raise AssertionError(f"{what} did not become true within {bound_s} s")
        await asyncio.sleep(0.005)
    return loop.time() - began_at


async def holds(condition: Callable[[], bool], length_s: float, what: str = "condition") -> None:
    """``condition()`` stays true for ``length_s``."""
    loop = asyncio.get_running_loop()
    end_at = loop.time() + length_s
    while loop.time() < end_at:
        assert condition(), f"{what} did not stay true"
        await asyncio.sleep(0.005)
