"""Each cause of a failed attempt has an outcome."""

import pytest

from service.domain.event import FailureCause
from service.domain.outcome import Outcome
from service.flow.failure import outcome_of

EXPECTED = {
    FailureCause.UNREACHABLE: Outcome.WORKER_UNREACHABLE,
    FailureCause.BROKEN: Outcome.WORKER_FAILED,
    FailureCause.FAULTY: Outcome.WORKER_FAILED,
    FailureCause.REVOKED: Outcome.WORKER_FAILED,
    FailureCause.BUSY: Outcome.WORKER_BUSY,
    FailureCause.TIMEOUT: Outcome.FIRST_TOKEN_TIMEOUT,
}


@pytest.mark.parametrize("cause", FailureCause)
def test_outcome_of_cause(cause):
    assert outcome_of(cause) is EXPECTED[cause]
