"""Names the outcome of a request whose last attempt failed."""

from typing import assert_never

from service.domain.event import FailureCause
from service.domain.outcome import Outcome


def outcome_of(cause: FailureCause) -> Outcome:
    """How a request ends when nothing was sent to the client and no other worker may try."""
    match cause:
        case FailureCause.UNREACHABLE:
            return Outcome.WORKER_UNREACHABLE
        case FailureCause.BROKEN | FailureCause.FAULTY | FailureCause.REVOKED:
            return Outcome.WORKER_FAILED
        case FailureCause.BUSY:
            return Outcome.WORKER_BUSY
        case FailureCause.TIMEOUT:
            return Outcome.FIRST_TOKEN_TIMEOUT
        case _:
            assert_never(cause)
