"""The closed sets from which label values are taken: nothing that a client wrote can be in them.

Tiers come from the configuration and workers from discovery; both are bounded by the operator.
"""

from enum import Enum
from typing import assert_never

from service.domain.kind import GENERATING_KINDS
from service.domain.outcome import Outcome, Phase
from service.flow.stats import WorkerStats

NO_TIER = "none"
"""Tier of requests that ended before anybody knew whose they were."""

STORED_KIND = "responses_stored"
"""Reads of stored answers: past queue and permits, and their usage was counted when the answer was made."""

KINDS = (*GENERATING_KINDS, "messages_count_tokens", "embeddings", "tokenize", "detokenize", STORED_KIND)
"""The kinds of the gateway's routes; a test holds the two lists together."""

OTHER_KIND = "other"
"""A route that this room was not told of. Its series appears only if that happens."""

STORE_CALL_KINDS = ("count", "exchange", "directory", "load")
"""What the shared store is asked: how many gateways there are, leases of quota, tenants and keys, load."""

_RESPONSE_KINDS = ("responses", STORED_KIND)


class Stage(Enum):
    """A length on a request's way, as a label. The wait in the queue has its own metric."""

    EDGE = "edge"
    """Arrival to admission: authentication, peek, and the body where its head announced a large one."""

    PREFILL = "prefill"
    """Last dispatch to the first token of a stream: connect, the worker's own queue, prefill."""

    GENERATION = "generation"
    """First token to the last byte of a stream, however it ended."""


class WorkerPhase(Enum):
    """What a worker is good for; each worker is in exactly one, the first that fits from the bottom up."""

    READY = "ready"
    RESTING = "resting"
    DRAINING = "draining"
    STARTING = "starting"
    """It has never been healthy yet."""
    UNHEALTHY = "unhealthy"
    LEAVING = "leaving"
    """No longer listed, but still busy with requests."""


def phase_of(worker: WorkerStats) -> WorkerPhase:
    """Where ``worker`` stands."""
    if not worker.listed:
        return WorkerPhase.LEAVING
    if not worker.healthy:
        return WorkerPhase.STARTING if worker.starting else WorkerPhase.UNHEALTHY
    if worker.draining:
        return WorkerPhase.DRAINING
    return WorkerPhase.RESTING if worker.resting else WorkerPhase.READY


def can_occur(outcome: Outcome, kind: str, known: bool) -> bool:
    """Whether requests of ``kind`` are expected to end like this; ``known``: their tenant (hence tier) is known.

    Series of what can occur exist from the start, because Prometheus' ``increase`` misses the first event of a series
    that is born at 1. What is wrongly excluded here is still counted when it happens.
    """
    match outcome.phase:
        case Phase.REQUEST:
            return True
        case Phase.AUTH:
            return known is (outcome is not Outcome.UNAUTHENTICATED)
        case Phase.PEEK:
            return known and (outcome is not Outcome.UNKNOWN_RESPONSE or kind in _RESPONSE_KINDS)
        case Phase.ADMIT | Phase.QUEUE:
            return known and kind != STORED_KIND
        case Phase.DISPATCH | Phase.RELAY:
            return known or outcome is Outcome.GATEWAY_FAULT
        case _:
            assert_never(outcome.phase)
