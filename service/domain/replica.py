"""What one gateway tells the others that serve the same workers: a small report, a few times a second."""

from dataclasses import dataclass
from enum import IntEnum

from service.domain.units import ReplicaId, WorkerId

GENERATION_MARK = "~"
"""Stands between a worker's place and how many processes this gateway has seen there (``workers.monitor``)."""


def find_place(worker_id: WorkerId) -> WorkerId:
    """Where the worker is: what all gateways call it, however many of its forerunners each of them has seen."""
    return WorkerId(worker_id.partition(GENERATION_MARK)[0])


class Certainty(IntEnum):
    """How much is known of what a worker carries."""

    NOTHING = 0
    """It has told nothing yet: the operator's cap stands for it."""

    SEARCHED = 1
    """It carries this much, and perhaps more."""

    FOUND = 2
    """A bound was met."""


@dataclass(frozen=True, slots=True)
class WorkerUse:
    """One worker as one gateway sees and uses it; ``worker_id`` is its place.

    ``limit`` is how many requests of all gateways it is thought to carry, 0 where it takes none. ``claim`` is how many
    permits the gateway holds or may take before its next report. ``held`` of its requests are there, ``decoding`` of
    them have their first token, ``backlog_tokens`` prompt tokens wait for theirs, and ``sent_tokens`` were sent in all.
    ``widened`` counts by how many first tokens the limit was raised. ``promises`` counts requests by the seconds per
    token that they were promised, ``slack_s`` is what those can bear, ``None`` where nothing was promised.
    """

    worker_id: WorkerId
    limit: int
    certainty: Certainty
    claim: int
    held: int = 0
    decoding: int = 0
    backlog_tokens: int = 0
    sent_tokens: int = 0
    widened: int = 0
    promises: tuple[tuple[float, int], ...] = ()
    slack_s: float | None = None


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """``number`` grows with each report of one life of a gateway. ``demand`` are the permits that each band could use:
    what arrives, by Little's law, and what waits. ``read`` are whole prompts that were sent to workers lately: the mark
    of each (``domain.request``), and which of ``workers`` has it."""

    replica_id: ReplicaId
    number: int
    demand: tuple[tuple[int, float], ...] = ()
    workers: tuple[WorkerUse, ...] = ()
    read: tuple[tuple[int, int], ...] = ()
