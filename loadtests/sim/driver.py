"""Drives one flow controller in virtual time: the simulator's shell, beside the gateway's ``service.runtime.driver``.

It holds a heap of what is to happen and lets it happen in order of moments; at equal moments an alarm of the core comes
first, then what was scheduled first. Like the other shell it compares no loads, tiers or deadlines, never re-enters
the core, and hands every event with its commands to the observers.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from service.domain.command import Command
from service.domain.errors import InvariantError
from service.domain.event import Event, Woken
from service.flow.config import Reconfigured
from service.runtime.journal import Journal, Record
from service.runtime.ports import Observer
from service.runtime.replay import replay as play


class Core(Protocol):
    """What is driven: the shipped flow controller, or another policy that is compared with it."""

    def handle(self, event: Event | Reconfigured, now: float) -> list[Command]:
        """Let ``event`` happen and return what follows."""
        ...

    def next_wake_at(self) -> float | None:
        """When a ``Woken`` event is due."""
        ...


OnCommand = Callable[[float, Command], None]
"""Told of each command at its moment; may schedule or submit what follows from it."""


def ignore_command(now: float, command: Command) -> None:
    """For runs in which nobody answers."""


class VirtualDriver:
    """One controller, one heap, one time. ``now`` is the moment of what happens at present."""

    def __init__(
        self,
        controller: Core,
        on_command: OnCommand = ignore_command,
        observers: Sequence[Observer] = (),
        now: float = 0.0,
    ) -> None:
        self.now = now
        self._controller = controller
        self._on_command = on_command
        self._observers = tuple(observers)
        self._heap: list[tuple[float, int, Event | Reconfigured | Callable[[], None]]] = []
        self._scheduled = 0
        self._inbox: deque[Event | Reconfigured] = deque()
        self._busy = False
        self._stopped = False

    def schedule(self, at: float, what: Event | Reconfigured | Callable[[], None]) -> None:
        """Let an event happen, or call a function, at ``at``.

        Raises:
            ValueError: that moment is over.
        """
        if not at >= self.now:
            raise ValueError(f"{at} is before {self.now}")
        self._scheduled += 1
        heapq.heappush(self._heap, (at, self._scheduled, what))

    def submit(self, event: Event | Reconfigured) -> None:
        """Let ``event`` happen at this moment, at once unless the driver is in the middle of another."""
        self._inbox.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            while self._inbox:
                self._step(self._inbox.popleft())
        finally:
            self._busy = False

    def replace(self, controller: Core) -> None:
        """From here on drive another controller, as after a restart of the gateway."""
        self._controller = controller

    def stop(self) -> None:
        """End :meth:`run` after what happens at present."""
        self._stopped = True

    def run(self, until: float = math.inf) -> None:
        """Let happen all that is due up to ``until``, alarms of the core included.

        Raises:
            InvariantError: the core wants to be woken at a moment at which it has just been woken.
        """
        self._stopped = False
        heap = self._heap
        while not self._stopped:
            controller = self._controller
            at = heap[0][0] if heap else math.inf
            wake_at = controller.next_wake_at()
            if wake_at is not None and wake_at <= at and wake_at <= until:
                self.now = max(self.now, wake_at)
                self.submit(Woken())
                again_at = controller.next_wake_at()
                if again_at is not None and again_at <= self.now:
                    raise InvariantError(f"woken at {self.now}, the core wants to be woken at {again_at}")
            elif heap and at <= until:
                what = heapq.heappop(heap)[2]
                self.now = at
                if callable(what):
                    what()
                else:
                    self.submit(what)
            else:
                break
        if not self._stopped and until < math.inf:
            self.now = max(self.now, until)

    def _step(self, event: Event | Reconfigured) -> list[Command]:
        now = self.now
        commands = self._controller.handle(event, now)
        for observer in self._observers:
            observer.observe(now, event, commands)
        for command in commands:
            self._on_command(now, command)
        return commands


def replay(journal: Journal, on_command: OnCommand = ignore_command) -> Iterator[Record]:
    """Play a journal's events at their moments through a fresh controller and yield what it orders.

    Raises:
        ValueError: events are missing from the journal, so that it says nothing of what follows.
    """
    for at, event, commands in play(journal):
        for command in commands:
            on_command(at, command)
        yield at, event, commands
