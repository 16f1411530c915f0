"""Calls functions again and again at fixed paces; a fault of one call ends neither its beat nor the others."""

from collections.abc import Callable

from service.runtime.ports import Later


class Beat:
    """One function, called every ``pace_s`` from ``start`` to ``stop``."""

    def __init__(self, pace_s: float, step: Callable[[], None], later: Later) -> None:
        self._pace_s = pace_s
        self._step = step
        self._later = later
        self._running = False

    def start(self) -> None:
        """First call after one pace."""
        self._running = True
        self._later(self._pace_s, self._turn)

    def stop(self) -> None:
        """No more calls."""
        self._running = False

    def _turn(self) -> None:
        if not self._running:
            return
        self._later(self._pace_s, self._turn)  # before the step: a fault in it goes to the loop, which logs it
        self._step()
