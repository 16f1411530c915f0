"""An asyncio loop whose clock jumps to the next timer when nothing is ready, so that ten minutes pass in a moment.

Sockets work: they are looked at first, for a few real milliseconds; what was written on loopback is there at once.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any

_LOOK_S = 0.003


class _JumpingSelector(selectors.DefaultSelector):
    """Never waits for a timer."""

    def __init__(self) -> None:
        super().__init__()
        self.moment = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(timeout if timeout is None else min(timeout, _LOOK_S))
        if not found and timeout is not None:
            self.moment += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """Virtual seconds; ``time()`` is the only clock that what runs on it may look at."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.moment


def run_virtually(step: Coroutine[Any, Any, None]) -> None:
    """Run ``step`` to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(step)
