"""An event loop in virtual time, with as much of asyncio's as the driver of the core uses, and its clock."""

import heapq
from collections.abc import Callable


class FakeTimer:
    """What ``call_later`` returns."""

    def __init__(self, callback: Callable[..., object], args: tuple[object, ...]) -> None:
        self.callback = callback
        self.args = args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeLoop:
    """Timers in order of their moments, then of their setting. It is its own clock."""

    def __init__(self) -> None:
        self.moment = 0.0
        self._timers: list[tuple[float, int, FakeTimer]] = []
        self._count = 0

    def now(self) -> float:
        return self.moment

    def wall(self) -> float:
        return 1.7e9 + self.moment

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: object) -> FakeTimer:
        return self.call_at(self.moment + delay_s, callback, *args)

    def call_at(self, at: float, callback: Callable[..., object], *args: object) -> FakeTimer:
        self._count += 1
        timer = FakeTimer(callback, args)
        heapq.heappush(self._timers, (at, self._count, timer))
        return timer

    def run(self, until: float) -> None:
        """Let all timers up to ``until`` ring."""
        while self._timers and self._timers[0][0] <= until:
            at, _, timer = heapq.heappop(self._timers)
            if not timer.cancelled:
                self.moment = max(self.moment, at)
                timer.callback(*timer.args)
        self.moment = until
