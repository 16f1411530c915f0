"""Waits, beside a worker that is to be ended, until it has nothing left to do; or until a deadline.

A platform tells a worker to end before all gateways have heard that they should send it nothing. So there is a time in
which it serves as ever (``delay_s``), then one in which it becomes empty, judged by its own metrics page: requests
running and waiting inside of the engine, those of every gateway. What is left at the deadline is the engine's own to
finish (``--shutdown-timeout``).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import httpx

from service.workers.scrape import read_page


class Ending(Enum):
    """How the wait ended."""

    EMPTY = "empty"
    GONE = "gone"
    """Nobody listens there."""
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class EmptyingConfig:
    """``quiet_s``: for so long it must have been seen empty, since a request may be on its way between two looks.
    ``look_every_s``: time between two looks."""

    deadline_s: float
    delay_s: float = 5.0
    quiet_s: float = 1.0
    look_every_s: float = 0.25


@dataclass(frozen=True, slots=True)
class Emptied:
    """``left``: requests at the last look, ``None`` if the page could not be read."""

    ending: Ending
    left: int | None
    took_s: float


def fetch_requests(client: httpx.Client, url: str) -> int | None:
    """Requests inside of the worker, ``None`` if its page does not tell.

    Raises:
        httpx.ConnectError: nobody listens there.
    """
    try:
        answer = client.get(f"{url}/metrics")
    except httpx.ConnectError:
        raise
    except httpx.HTTPError:
        return None
    load = read_page(answer.content, 0.0).load if answer.is_success else None
    if load is None or load.running_requests is None:
        return None
    return load.running_requests + (load.waiting_requests or 0)


def wait_until_empty(
    config: EmptyingConfig, look: Callable[[], int | None], now: Callable[[], float], pause: Callable[[float], None]
) -> Emptied:
    """Return when ``look`` has found nothing for ``quiet_s``, nobody listens any more, or the deadline has come."""
    began_at = now()
    empty_since: float | None = None
    left: int | None = None
    while True:
        try:
            left = look()
        except httpx.ConnectError:
            return Emptied(Ending.GONE, 0, now() - began_at)
        looked_at = now()
        if left != 0:
            empty_since = None
        elif empty_since is None:
            empty_since = looked_at
        took_s = looked_at - began_at
        if empty_since is not None and took_s >= config.delay_s and looked_at - empty_since >= config.quiet_s:
            return Emptied(Ending.EMPTY, 0, took_s)
        if took_s >= config.deadline_s:
            return Emptied(Ending.DEADLINE, left, took_s)
        pause(min(config.look_every_s, max(config.deadline_s - took_s, 0.0)))
