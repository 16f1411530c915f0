"""Holds what one gateway remembers of the others that serve the same workers."""

from collections import deque
from dataclasses import dataclass, field

from service.domain.replica import ReplicaReport
from service.domain.units import ReplicaId, WorkerId
from service.flow.foreign import Foreign
from service.flow.shares import Capacity

READ_MAX = 256
"""Prompts that others are told of: more than one gateway sends in a second to the workers of a few machines, and some
3 KB of report. With more than that the latest are told of."""


@dataclass(slots=True)
class Peer:
    """Another gateway: what it told last, and when this one first saw that."""

    report: ReplicaReport
    seen_at: float


@dataclass(slots=True)
class Sharing:
    """All that is remembered of the others.

    ``peers`` are those that live, ``heard`` has the number of the latest report in the store of each, dead ones too.
    ``born_at`` is when it began. ``claims`` is what the latest report of this gateway said, ``sent_at`` when;
    ``contact_at`` is when the latest report that got through was sent, ``began_at`` the first of an unbroken row.
    ``read`` are prompts sent lately, each with the number of the report that was due then, its mark, and the worker.
    ``at_contact`` are the shares of then, ``known`` all gateways; ``alone`` says that the others cannot be asked.
    """

    replica_id: ReplicaId
    born_at: float
    peers: dict[ReplicaId, Peer] = field(default_factory=dict)
    heard: dict[ReplicaId, int] = field(default_factory=dict)
    claims: dict[WorkerId, int] = field(default_factory=dict)
    foreign: dict[WorkerId, Foreign] = field(default_factory=dict)
    capacities: dict[WorkerId, Capacity] = field(default_factory=dict)
    number: int = 0
    sent_at: float = 0.0
    contact_at: float | None = None
    began_at: float | None = None
    at_contact: dict[WorkerId, int] = field(default_factory=dict)
    known: tuple[ReplicaId, ...] = ()
    read: deque[tuple[int, int, WorkerId]] = field(default_factory=lambda: deque(maxlen=READ_MAX))
    alone: bool = True
