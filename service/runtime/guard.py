"""Keeps a fault of our own code inside the request that has it: the only place of this room that catches everything."""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVarTuple

Given = TypeVarTuple("Given")
_log = logging.getLogger("sluice.fault")


class Victim(Protocol):
    """Whom a fault ends."""

    def on_fault(self) -> None:
        """Our own code failed it: end, whatever the state."""
        ...


def guard(victim: Victim | None, what: str, step: Callable[[*Given], object], *args: *Given) -> None:
    """Call ``step``; its fault is logged once, with its traceback, and ends ``victim`` and nobody else."""
    tell((step,), victim, what, *args)


def tell(steps: Sequence[Callable[[*Given], object]], victim: Victim | None, what: str, *args: *Given) -> None:
    """Call each of ``steps``; the fault of one keeps nothing from the others. Cheaper than a guard around each."""
    told = 0
    try:
        for step in steps:
            told += 1
            step(*args)
    except Exception as error:  # noqa: BLE001 - around one request: a fault of ours ends this one and no other
        contain(victim, what, error)
        tell(steps[told:], victim, what, *args)


def contain(victim: Victim | None, what: str, error: BaseException) -> None:
    """What :func:`guard` does with a fault that was caught elsewhere."""
    _log.error("%s failed", what, exc_info=error)
    if victim is not None:
        guard(None, "ending what had failed", victim.on_fault)
