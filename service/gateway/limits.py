"""Says in words and in time why a request is above its contract."""

from typing import assert_never

from service.domain.contract import Contract
from service.domain.outcome import Outcome
from service.flow.quota import Limit, Shortfall
from service.gateway.refusal import Refused
from service.runtime.advice import compute_retry_after_s


def refuse_short(shortfall: Shortfall, contract: Contract, now: float, month_ends_in_s: float) -> Refused:
    """What to tell a client whose request is above the contract, and when it may try again."""
    if not shortfall.certain:
        return Refused(Outcome.QUOTA_UNKNOWN, None, None, compute_retry_after_s(now))
    wait_s = 0.0 if shortfall.frees_at is None else max(shortfall.frees_at - now, 0.0)
    match shortfall.limit:
        case Limit.REQUESTS:
            reached = f"{contract.requests_per_minute} requests per minute"
        case Limit.TOKENS:
            reached = f"{contract.tokens_per_minute} tokens per minute"
        case Limit.CONCURRENCY:
            reached, wait_s = f"{contract.concurrency} requests at once", compute_retry_after_s(now)
        case Limit.MONTH:
            reached, wait_s = f"{contract.tokens_per_month} tokens per month", month_ends_in_s
        case _:
            assert_never(shortfall.limit)
    message = f"The contract's limit of {reached} is reached. Retry after the given time."
    return Refused(Outcome.RATE_LIMITED, message, None, max(wait_s, 0.001))
