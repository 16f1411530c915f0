"""The single writer of the flow core: carries events in, hands commands to the journeys they name, keeps its alarm."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Protocol, assert_never

from service.domain.command import Command, Dispatch, Enqueue, Refuse, Revoke
from service.domain.estimate import Estimate
from service.domain.event import Event, Woken
from service.domain.outcome import Outcome
from service.domain.replica import ReplicaReport
from service.domain.request import Request
from service.domain.units import RequestId, WorkerId
from service.flow.band import is_excess
from service.flow.config import Reconfigured
from service.flow.controller import FlowController
from service.flow.stats import DemandStats, FlowStats
from service.runtime.guard import guard, tell
from service.runtime.ports import Clock, Observer

_TIMER_GRAIN_S = 0.001
"""libuv counts whole milliseconds, so a timer of uvloop may ring early by as much; measured: 45 rings for one alarm
when each early ring sets the rest as a new timer, which uvloop rounds to "at once"."""


class Passenger(Protocol):
    """One request under way, as the driver sees it."""

    def on_enqueue(self) -> None:
        """It waits."""
        ...

    def on_dispatch(self, worker_id: WorkerId, attempt: int) -> None:
        """It has a permit on this worker."""
        ...

    def on_refuse(self, outcome: Outcome, retry_after_s: float | None) -> None:
        """It will not be served."""
        ...

    def on_excess(self) -> None:
        """It is above its contract."""
        ...

    def on_revoke(self, outcome: Outcome) -> None:
        """It must leave its worker; ``outcome`` is how it ends if its answer has begun."""
        ...

    def on_sweep(self, now: float) -> None:
        """Look at the time."""
        ...

    def on_drain_cut(self) -> None:
        """The gateway goes away now."""
        ...

    def on_fault(self) -> None:
        """Our own code failed it."""
        ...


class Driver:
    """Drives one controller on one event loop.

    Events submitted while commands are being carried out wait their turn, so the core is never re-entered and
    commands keep their order. A request that fails while it carries out a command ends, and no other: the one whose
    event gave rise to the command does not hear of it.
    """

    def __init__(
        self,
        controller: FlowController,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._controller = controller
        self._now = clock.now
        self._loop = loop
        self._observe = tuple(observer.observe for observer in observers)
        self._passengers: dict[RequestId, Passenger] = {}
        self._inbox: deque[Event | Reconfigured] = deque()
        self._busy = False
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at: float | None = None

    @property
    def travelling(self) -> int:
        """Requests that wait or run."""
        return len(self._passengers)

    def passengers(self) -> tuple[Passenger, ...]:
        """All requests that wait or run."""
        return tuple(self._passengers.values())

    def board(self, request_id: RequestId, passenger: Passenger) -> None:
        """From now on, commands for ``request_id`` go to ``passenger``."""
        self._passengers[request_id] = passenger

    def alight(self, request_id: RequestId) -> None:
        """The request has ended."""
        self._passengers.pop(request_id, None)

    def submit(self, event: Event | Reconfigured) -> None:
        """Let ``event`` happen now and carry out what follows, at once unless the driver is in the middle of that."""
        if self._busy:
            self._inbox.append(event)
            return
        self._busy = True
        try:
            self._step(event)
        finally:
            while self._inbox:
                guard(None, "what followed an event", self._step, self._inbox.popleft())
            self._busy = False
            wake_at = self._controller.next_wake_at()
            if wake_at != self._alarm_at:
                self._set_alarm(wake_at)

    def sweep(self) -> None:
        """Let every request under way look at the time: one pass a few times a second costs less than a timer for
        each."""
        now = self._now()
        for passenger in self.passengers():
            guard(passenger, "a request that looked at the time", passenger.on_sweep, now)

    def cut(self) -> None:
        """End every request under way, since the gateway goes away."""
        for passenger in self.passengers():
            guard(passenger, "a request cut by the end of the grace", passenger.on_drain_cut)

    def foresee(self, request: Request, level: float) -> Estimate:
        """What ``request`` will take at most, with so much certainty."""
        return self._controller.foresee(request, level)

    def report(self) -> ReplicaReport | None:
        """What other gateways should know."""
        return self._controller.report(self._now())

    def stats(self) -> FlowStats:
        """Snapshot of the core."""
        return self._controller.stats(self._now())

    def demand(self) -> DemandStats:
        """What is asked of the pool; O(requests that wait or run)."""
        return self._controller.demand()

    def choose_leaving(self) -> WorkerId | None:
        """Which worker should go when there is one too many."""
        return self._controller.choose_leaving()

    def _step(self, event: Event | Reconfigured) -> None:
        now = self._now()
        commands = self._controller.handle(event, now)
        tell(self._observe, None, "an observer", now, event, commands)
        for command in commands:
            passenger = self._passengers.get(command.request_id)
            if passenger is not None:  # else it ended while this command waited its turn
                tell(_CARRY_OUT, passenger, "a request under way", command, passenger)

    def _set_alarm(self, wake_at: float | None) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = wake_at
        self._alarm = None
        if wake_at is not None:
            delay_s = max(wake_at - self._now(), 0.0)
            self._alarm = self._loop.call_later(delay_s, self._ring)

    def _ring(self) -> None:
        if self._alarm_at is not None and self._now() < self._alarm_at:  # the core would only ask for it again
            self._alarm = self._loop.call_later(_TIMER_GRAIN_S, self._ring)
            return
        self._alarm = None
        self._alarm_at = None
        self.submit(Woken())


def _carry_out(command: Command, passenger: Passenger) -> None:
    match command:
        case Dispatch():
            if command.grounds is not None and is_excess(command.grounds.band):
                passenger.on_excess()
            passenger.on_dispatch(command.worker_id, command.attempt)
        case Enqueue():
            passenger.on_enqueue()
        case Refuse():
            if command.grounds is not None and is_excess(command.grounds.band):
                passenger.on_excess()
            passenger.on_refuse(command.outcome, command.retry_after_s)
        case Revoke():
            passenger.on_revoke(command.outcome)
        case _:
            assert_never(command)


_CARRY_OUT = (_carry_out,)
