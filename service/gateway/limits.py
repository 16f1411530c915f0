"""Says in words and in time why a request is above its contract."""

from collections.abc import Callable
from typing import assert_never

from service.domain.contract import Contract
from service.domain.outcome import Outcome
from service.flow.quota import Limit, Passage, Shortfall
from service.gateway.refusal import Refused
from service.runtime.advice import compute_retry_after_s


def check_passage(
    passage: Passage | Shortfall, contract: Contract, now: float, month_ends_in_s: Callable[[], float]
) -> None:
    """Whether a request may go on; what to tell its client if not, and when it may try again.

    Raises:
        Refused: it may not.
    """
    if passage is Passage.CLOSED:
        raise Refused(Outcome.SHED, "Best effort is not served while limits cannot be checked.")
    if not isinstance(passage, Shortfall):
        return
    if not passage.certain:
        raise Refused(Outcome.QUOTA_UNKNOWN)
    wait_s = 0.0 if passage.frees_at is None else max(passage.frees_at - now, 0.0)
    wait_s = compute_retry_after_s(now, wait_s)
    match passage.limit:
        case Limit.REQUESTS:
            reached = f"{contract.requests_per_minute} requests per minute"
        case Limit.TOKENS:
            reached = f"{contract.tokens_per_minute} tokens per minute"
        case Limit.CONCURRENCY:
            reached, wait_s = f"{contract.concurrency} requests at once", wait_s + 1.0
        case Limit.MONTH:
            reached, wait_s = f"{contract.tokens_per_month} tokens per month", month_ends_in_s()
        case _:
            assert_never(passage.limit)
    message = f"The contract's limit of {reached} is reached. Retry after the given time."
    raise Refused(Outcome.RATE_LIMITED, message, None, max(wait_s, 0.001))
