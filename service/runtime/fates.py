"""Folds a history of the core into what became of each request."""

from collections.abc import Sequence
from dataclasses import dataclass

from service.domain.command import Command, Dispatch, Refuse, Revoke
from service.domain.event import Event, FirstTokenSeen, PermitEnded, RequestAbandoned, RequestArrived
from service.domain.outcome import Outcome
from service.domain.permit import PermitEnding
from service.domain.request import Request
from service.domain.units import RequestId
from service.flow.config import Reconfigured


@dataclass(slots=True)
class Fate:
    """What became of one request: ``outcome`` is how it ended in the core."""

    request: Request
    outcome: str = "waiting at the end"
    dispatched_at: float | None = None
    due_at: float | None = None
    first_token_at: float | None = None
    revoked: bool = False

    @property
    def wait_s(self) -> float | None:
        """From arrival to the first dispatch."""
        return None if self.dispatched_at is None else self.dispatched_at - self.request.arrived_at

    @property
    def kept(self) -> bool | None:
        """Whether its first token came in time; ``None`` where nothing was promised, or it came to no token."""
        if self.due_at is None or self.first_token_at is None:
            return None
        return self.first_token_at <= self.due_at


class Fates:
    """Observer that folds a history into the fate of each request."""

    def __init__(self) -> None:
        self.by_id: dict[RequestId, Fate] = {}

    def observe(self, now: float, event: Event | Reconfigured, commands: Sequence[Command]) -> None:
        """Take one event in."""
        match event:
            case RequestArrived():
                self.by_id[event.request.request_id] = Fate(event.request)
            case FirstTokenSeen() if (fate := self.by_id.get(event.request_id)) is not None:
                fate.first_token_at = now if fate.first_token_at is None else fate.first_token_at
            case PermitEnded() if (fate := self.by_id.get(event.request_id)) is not None:
                fate.outcome = _name_ending(event.ending, fate.revoked)
            case RequestAbandoned() if (fate := self.by_id.get(event.request_id)) is not None:
                fate.outcome = "client left"
            case _:
                pass
        for command in commands:
            found = self.by_id.get(command.request_id)
            if found is not None:
                _follow(found, command, now)


def _name_ending(ending: PermitEnding, revoked: bool) -> str:
    match ending:
        case PermitEnding.SERVED:
            return "served"
        case PermitEnding.IGNORED:
            return "client left or was wrong"
        case _:
            return "revoked" if revoked else "broken"


def _follow(fate: Fate, command: Command, now: float) -> None:
    match command:
        case Dispatch():
            fate.outcome = "running at the end"
            fate.revoked = False
            if fate.dispatched_at is None:
                fate.dispatched_at = now
            if command.grounds is not None:
                fate.due_at = command.grounds.due_at
        case Refuse():
            fate.outcome = command.outcome.label
        case Revoke():
            fate.revoked = command.outcome is Outcome.REVOKED
        case _:
            fate.outcome = "waiting at the end"
