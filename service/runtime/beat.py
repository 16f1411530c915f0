"""Calls functions again and again at fixed paces; a fault of one call ends neither its beat nor the others."""

import logging
from collections.abc import Callable

from service.runtime.ports import Later

_log = logging.getLogger("sluice.beat")


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
        try:
            self._step()
        except Exception:  # noqa: BLE001 - around one loop turn: the beat goes on
            _log.exception("a periodic step failed; going on")
        self._later(self._pace_s, self._turn)
