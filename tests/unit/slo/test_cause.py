"""What a miss was for want of."""

import pytest

from service.domain.outcome import Fault, Outcome
from service.slo.cause import Cause, attribute
from service.slo.verdict import MET, Result, Standing, Verdict

BAD = Result.BAD


def miss(reason: str, fault: Fault) -> Verdict:
    return Verdict(Standing.MISSED, reason, fault, BAD, BAD, BAD, BAD)


@pytest.mark.parametrize(
    ("outcome", "cause"),
    [
        (Outcome.QUEUE_FULL, Cause.CAPACITY),
        (Outcome.EXPIRED, Cause.CAPACITY),
        (Outcome.WORKER_BUSY, Cause.CAPACITY),
        (Outcome.WORKER_FAILED, Cause.WORKER),
        (Outcome.STREAM_BROKEN, Cause.WORKER),
        (Outcome.NO_WORKERS, Cause.WORKER),
        (Outcome.DRAINING, Cause.DEPLOY),
        (Outcome.DRAIN_CUT, Cause.DEPLOY),
        (Outcome.BYTES_EXHAUSTED, Cause.GATEWAY),
        (Outcome.GATEWAY_FAULT, Cause.GATEWAY),
    ],
)
def test_refusals_and_failures_by_their_outcome(outcome: Outcome, cause: Cause) -> None:
    assert attribute(miss(outcome.label, outcome.fault)) is cause


def test_what_was_late_lacked_capacity() -> None:
    assert attribute(miss("late", Fault.US)) is Cause.CAPACITY
    assert attribute(miss("slow", Fault.US)) is Cause.CAPACITY


def test_what_was_met_has_no_cause() -> None:
    assert attribute(MET) is None
