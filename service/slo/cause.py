"""Attributes a miss to what would have prevented it: more capacity, better workers, a gentler rollout, a sound gateway.

Only want of capacity may buy workers: else a crash loop buys GPUs.

*Trade-offs*: an answer that came late or slowly is laid to capacity though a sick worker may have been the reason; such
a worker is found by its health, and what it costs until then is less than capacity that nobody adds.
"""

from enum import StrEnum

from service.domain.outcome import Fault, Outcome
from service.slo.verdict import Reason, Result, Verdict


class Cause(StrEnum):
    """What a miss was for want of."""

    CAPACITY = "capacity"
    WORKER = "worker"
    DEPLOY = "deploy"
    GATEWAY = "gateway"


_BAD, _OF_CAPACITY = Result.BAD, Fault.CAPACITY
_SLOW = frozenset((Reason.LATE.value, Reason.SLOW.value))
_DEPLOY = frozenset((Outcome.DRAINING.label, Outcome.DRAIN_CUT.label))
_GATEWAY = frozenset((Outcome.GATEWAY_FAULT.label, Outcome.BYTES_EXHAUSTED.label))


def attribute(verdict: Verdict) -> Cause | None:
    """The cause of a miss; ``None`` if nothing was missed."""
    if verdict.met_all is not _BAD:
        return None
    if verdict.reason in _GATEWAY:
        return Cause.GATEWAY
    if verdict.reason in _DEPLOY:
        return Cause.DEPLOY
    if verdict.fault is _OF_CAPACITY or verdict.reason in _SLOW:
        return Cause.CAPACITY
    return Cause.WORKER
