"""A large request body on its way to a worker: handed to the socket in pieces, as fast as the socket takes them."""

import asyncio
from collections.abc import Callable, Sequence

Pace = Callable[[int, Callable[[], None]], object]
"""Calls a step that handles so many bytes when its turn has come, never at once."""

_PIECE_BYTES = 256 * 1024


class Upload:
    """What of one request is not written yet. A socket takes megabytes in one call and copies them in our thread, so
    each piece waits for its turn; what the socket does not take at once is the transport's to keep, and holds the next
    piece back."""

    __slots__ = ("_clogged", "_pace", "_parts", "_transport")

    def __init__(self, transport: asyncio.Transport, parts: Sequence[bytes | memoryview], pace: Pace) -> None:
        self._transport = transport
        self._parts = list(reversed(parts))
        self._pace = pace
        self._clogged = False
        self._await_turn()

    @property
    def done(self) -> bool:
        """The transport has all of it."""
        return not self._parts

    def pause(self) -> None:
        """The transport has enough."""
        self._clogged = True

    def resume(self) -> None:
        """The transport takes more."""
        self._clogged = False
        self._await_turn()

    def _await_turn(self) -> None:
        if self._parts:
            self._pace(_PIECE_BYTES, self._step)

    def _step(self) -> None:
        if self._transport.is_closing():
            return
        self._transport.writelines(self._take())
        if not self._clogged:
            self._await_turn()

    def _take(self) -> list[bytes | memoryview]:
        parts, left = self._parts, _PIECE_BYTES
        taken: list[bytes | memoryview] = []
        while parts and left > 0:
            part = parts.pop()
            if len(part) > left:
                view = memoryview(part)
                parts.append(view[left:])
                part = view[:left]
            taken.append(part)
            left -= len(part)
        return taken
