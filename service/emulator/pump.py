"""Decides when the engine steps in real time.

A step is due at its exact moment even where the event loop wakes a little late (libuv counts in milliseconds), so
lateness does not add up and the emulated rate is the model's. A loop that is far behind gives the lost time up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from service.emulator.engine import Engine
from service.emulator.steps import EngineRequest, StepResult

EARLY_S = 0.0006
"""A timer may fire this early: libuv rounds to milliseconds."""
LAG_LIMIT_S = 0.05
"""Beyond this the clock is considered stalled and the step happens late."""
STEPS_PER_TURN = 4
"""Steps made in one turn of the loop to catch up, before sockets get their turn."""


class EnginePump:
    """Runs one engine on one event loop."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop, on_step: Callable[[StepResult], None]) -> None:
        self._engine = engine
        self._loop = loop
        self._on_step = on_step
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None
        self._frozen = False

    def submit(self, request: EngineRequest) -> None:
        self._engine.submit(request, self._loop.time())
        if self._timer is None:
            self._arm()

    def abort(self, request_id: str) -> None:
        self._engine.abort(request_id, self._loop.time())
        if self._timer is None:
            self._arm()

    def freeze(self, frozen: bool) -> None:
        """Stop or resume stepping; what is in the engine stays there."""
        self._frozen = frozen
        if frozen:
            self.stop()
        elif self._timer is None:
            self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        due = self._engine.next_step_at()
        if due is None or self._frozen:
            return
        wait_s = due - self._loop.time()
        self._timer = (
            self._loop.call_soon(self._turn) if wait_s <= EARLY_S else self._loop.call_later(wait_s, self._turn)
        )

    def _turn(self) -> None:
        self._timer = None
        for _ in range(STEPS_PER_TURN):
            due = self._engine.next_step_at()
            now = self._loop.time()
            if due is None or due > now + EARLY_S:
                break
            self._on_step(self._engine.step(now if now - due > LAG_LIMIT_S else due))
        if self._timer is None:
            self._arm()
