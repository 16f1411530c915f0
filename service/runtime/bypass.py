"""Sends calls that do not occupy the engine straight to the one worker they are about, past queue and permits."""

from typing import Protocol

from service.domain.event import AttemptFailed, Event, RequestArrived
from service.domain.outcome import Outcome
from service.domain.units import RequestId, WorkerId
from service.flow.config import Reconfigured
from service.flow.failure import outcome_of
from service.runtime.driver import Passenger


class Dispatcher(Protocol):
    """What a journey needs of whoever decides about it."""

    def board(self, request_id: RequestId, passenger: Passenger) -> None:
        """The request is under way."""
        ...

    def alight(self, request_id: RequestId) -> None:
        """The request has ended."""
        ...

    def submit(self, event: Event | Reconfigured) -> None:
        """Something happened to it."""
        ...


class Bypass:
    """Dispatches the one request that boards to ``worker_id``, once; nothing waits and nothing is tried again.

    It boards at ``driver`` too, which lets it look at the time and ends it with the house; the core never hears of it.
    """

    def __init__(self, worker_id: WorkerId, driver: Dispatcher) -> None:
        self._worker_id = worker_id
        self._driver = driver
        self._passenger: Passenger | None = None

    def board(self, request_id: RequestId, passenger: Passenger) -> None:
        """Remember the request."""
        self._passenger = passenger
        self._driver.board(request_id, passenger)

    def alight(self, request_id: RequestId) -> None:
        """Forget it."""
        self._passenger = None
        self._driver.alight(request_id)

    def submit(self, event: Event | Reconfigured) -> None:
        """Dispatch on arrival, refuse after a failure; permits mean nothing here."""
        if self._passenger is None:
            return
        match event:
            case RequestArrived():
                self._passenger.on_dispatch(self._worker_id, 1)
            case AttemptFailed():
                self._passenger.on_refuse(outcome_of(event.cause), self._advice(event))
            case _:
                pass

    @staticmethod
    def _advice(event: AttemptFailed) -> float | None:
        outcome: Outcome = outcome_of(event.cause)
        return (event.retry_after_s or 1.0) if outcome.retryable else None
