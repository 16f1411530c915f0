"""Plays a recorded history of the core again, to the same commands, and finds where it comes to others."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from service.domain.command import Command
from service.domain.event import Event
from service.flow.config import FlowConfig, Reconfigured
from service.flow.controller import FlowController
from service.runtime.journal import Journal, Record

Told = Callable[[int], None]
"""Hears how many records have been played, now and then."""

TELL_EVERY = 20_000


def tell_nobody(played: int) -> None:
    """For those who do not wait."""


def replay(journal: Journal, told: Told = tell_nobody) -> Iterator[Record]:
    """Play a journal's events at their moments through a fresh controller and yield what it orders.

    Raises:
        ValueError: events are missing from the journal, so that it says nothing of what follows.
    """
    if journal.dropped:
        raise ValueError(f"{journal.dropped} events are missing from the journal")
    controller = build_controller(journal, journal.header.config)
    for number, (at, event, _) in enumerate(journal.records, 1):
        yield at, event, controller.handle(event, at)
        if number % TELL_EVERY == 0:
            told(number)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first record, counted from 1, after which other commands came than were recorded."""

    number: int
    at: float
    event: Event | Reconfigured
    recorded: Sequence[Command]
    replayed: Sequence[Command]


def find_difference(journal: Journal, told: Told = tell_nobody) -> Difference | None:
    """Whether the shipped controller still decides as the recorded one did; raises as :func:`replay` does."""
    for number, (record, (_, _, commands)) in enumerate(zip(journal.records, replay(journal, told), strict=True), 1):
        at, event, recorded = record
        if list(recorded) != list(commands):
            return Difference(number, at, event, recorded, commands)
    return None


def build_controller(journal: Journal, config: FlowConfig) -> FlowController:
    """A fresh controller with the chance of the recorded one."""
    return FlowController(config, random.Random(journal.header.seed))  # noqa: S311 - repeatable on purpose
