"""Has a worker looked at as soon as a request had trouble with it, rather than when its turn comes."""

from collections.abc import Callable
from typing import Protocol

from service.domain.outcome import Outcome
from service.domain.units import WorkerId

_COMPLETED = Outcome.COMPLETED
TROUBLE = frozenset(
    (
        Outcome.WORKER_UNREACHABLE,
        Outcome.WORKER_FAILED,
        Outcome.STREAM_STALLED,
        Outcome.STREAM_BROKEN,
        Outcome.FIRST_TOKEN_TIMEOUT,
    )
)


class Settled(Protocol):
    """What is read of a request that has ended."""

    @property
    def outcome(self) -> Outcome | None: ...
    @property
    def worker_id(self) -> WorkerId | None: ...


class Suspicion:
    """An accountant. Trade-offs: an attempt that failed and was saved by another worker is not seen."""

    def __init__(self, suspect: Callable[[WorkerId], None]) -> None:
        self._suspect = suspect

    def settle(self, settled: Settled) -> None:
        """Look at the outcome."""
        if settled.outcome is _COMPLETED:  # hashing a member of an Enum is a call of Python code
            return
        if settled.outcome in TROUBLE and settled.worker_id is not None:
            self._suspect(settled.worker_id)
