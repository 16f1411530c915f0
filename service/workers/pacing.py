"""How long to wait between two turns of a loop, and the waiting itself."""

import asyncio
from typing import Protocol


class Chance(Protocol):
    """The part of ``random.Random`` needed here; passed in seeded."""

    def random(self) -> float:
        """A number in [0, 1)."""
        ...


async def wait_until_set(event: asyncio.Event, bound_s: float) -> bool:
    """Wait for ``event``, but no longer than ``bound_s``; whether it was set. Clears it."""
    try:
        async with asyncio.timeout(bound_s):
            await event.wait()
    except TimeoutError:
        return False
    event.clear()
    return True


def spread(length_s: float, ratio: float, chance: Chance) -> float:
    """``length_s`` drawn evenly from ``length_s`` x (1 +- ``ratio``), so that loops do not march in step."""
    return length_s * (1.0 + ratio * (2.0 * chance.random() - 1.0))


def compute_backoff_s(first_s: float, longest_s: float, tries: int) -> float:
    """First short, then longer by half with every try: 0.1, 0.15, 0.23 ... up to ``longest_s``."""
    return float(min(longest_s, first_s * 1.5 ** min(tries, 64)))
