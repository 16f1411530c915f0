"""Lets heavy work through piece by piece, so much and no more in one turn of the loop.

A body of megabytes is received, read and sent on in the same thread as every other request's bytes, and the sockets
of loopback and of fast networks hand out and take megabytes at once: ten large prompts that come together would hold
the loop for hundreds of milliseconds. Here they wait in one line, and between two turns everybody else is served.
"""

from collections import deque
from collections.abc import Callable

from service.runtime.guard import guard

PIECE_BYTES = 256 * 1024
"""What one step reads or writes at most; the read buffer of uvloop has this size too."""

_TURN_BYTES = 512 * 1024
"""Where a turn ends. Receiving, parsing, and sending a mebibyte take 1 to 2 ms each (CPython 3.11, AMD EPYC)."""


class Turnstile:
    """Steps in the order they came, each with the bytes it will handle. ``soon`` calls a function in the loop's next
    turn.

    Trade-offs: one line for all, so a large prompt waits for as many pieces as there are other large ones; a step
    that handles more than a turn's bytes is not cut, it only has its turn for itself.
    """

    __slots__ = ("_asked", "_soon", "_waiting")

    def __init__(self, soon: Callable[[Callable[[], None]], object]) -> None:
        self._soon = soon
        self._asked = False
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def enter(self, size: int, step: Callable[[], None]) -> None:
        """Call ``step``, which handles ``size`` bytes, when its turn has come: never at once."""
        self._waiting.append((size, step))
        self._ask()

    def _ask(self) -> None:
        if not self._asked:
            self._asked = True
            self._soon(self._turn)

    def _turn(self) -> None:
        waiting = self._waiting
        there, handled = len(waiting), 0  # what enters meanwhile waits for another turn
        while there and (not handled or handled + waiting[0][0] <= _TURN_BYTES):
            size, step = waiting.popleft()
            there -= 1
            handled += size
            guard(None, "a piece of a large body", step)
        self._asked = False
        if waiting:
            self._ask()
