"""Calls functions again and again at fixed paces; a fault of one call ends neither its beat nor the others."""

from collections.abc import Callable

from service.runtime.ports import Later

Punctuality = Callable[[float, float], None]
"""Told when a call was due and when it came."""


class Beat:
    """One function, called every ``pace_s`` from ``start`` to ``stop``."""

    def __init__(
        self,
        pace_s: float,
        step: Callable[[], None],
        later: Later,
        now: Callable[[], float],
        punctuality: Punctuality | None = None,
    ) -> None:
        self._pace_s = pace_s
        self._step = step
        self._later = later
        self._now = now
        self._punctuality = punctuality
        self._due_at = 0.0
        self._running = False

    def start(self) -> None:
        """First call after one pace."""
        self._running = True
        self._wait()

    def stop(self) -> None:
        """No more calls."""
        self._running = False

    def _wait(self) -> None:
        self._due_at = self._now() + self._pace_s
        self._later(self._pace_s, self._turn)

    def _turn(self) -> None:
        if not self._running:
            return
        if self._punctuality is not None:
            self._punctuality(self._due_at, self._now())
        self._wait()  # before the step: a fault in it goes to the loop, which logs it
        self._step()
