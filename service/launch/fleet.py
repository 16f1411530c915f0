"""Keeps as many workers running on this machine as are desired, and lets none go that still has work.

A worker that is wanted is started and listed at once, so that whoever counts sees it starting. One too many is chosen
by the gateway, which gives it no new work; when it is empty it is taken off the list, and only then ended.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from service.launch.family import Child

_PATIENCE_S = 15.0


class Roll(Protocol):
    """The gateway, as far as it has to know who is there."""

    def relist(self, ports: Sequence[int]) -> bool:
        """These are all workers; ``False`` if it could not be told."""
        ...

    def let_go(self) -> int | None:
        """The port of a worker that gets no new work from here on; ``None`` if none may go."""
        ...

    def count_in_flight(self, port: int) -> int | None:
        """Requests on a worker; ``None`` if nobody knows."""
        ...


@dataclass(slots=True)
class Fleet:
    """Workers by port. ``start`` begins one on a port, ``find_port`` names a free one, ``say`` tells the operator."""

    start: Callable[[int], Child]
    find_port: Callable[[], int]
    roll: Roll
    say: Callable[[str], None]
    workers: dict[int, Child] = field(default_factory=dict)
    leaving: dict[int, Child] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.workers)

    def children(self) -> list[Child]:
        """All that run, those that leave among them."""
        return [*self.workers.values(), *self.leaving.values()]

    def move(self, desired: int) -> None:
        """Start what lacks; let one go if there are too many. To be called again until it is so."""
        lacking = desired - len(self.workers)
        for _ in range(lacking):
            port = self.find_port()
            self.workers[port] = self.start(port)
            self.say(f"starting a worker on port {port}: {len(self.workers)} of {desired}")
        if lacking > 0:
            self._relist()
        elif lacking < 0 and not self.leaving:
            self._let_go()

    def look(self) -> None:
        """End whoever is empty; forget whoever died, so that another is started in its place."""
        dead = [port for port, child in self.workers.items() if child.process.poll() is not None]
        for port in dead:
            child = self.workers.pop(port)
            self.say(f"{child.name} ended (exit code {child.process.returncode}); {child.log}")
        if dead:
            self._relist()
        for port, child in tuple(self.leaving.items()):
            gone = child.process.poll() is not None
            if (gone or self.roll.count_in_flight(port) == 0) and self._relist(without=port):
                del self.leaving[port]
                child.end(_PATIENCE_S)
                self.say(f"{child.name} was empty and is gone: {len(self.workers)} are left")

    def _let_go(self) -> None:
        port = self.roll.let_go()
        child = None if port is None else self.workers.pop(port, None)
        if port is not None and child is not None:
            self.leaving[port] = child
            self.say(f"{child.name} gets no new work")

    def _relist(self, without: int | None = None) -> bool:
        return self.roll.relist([port for port in (*self.workers, *self.leaving) if port != without])
