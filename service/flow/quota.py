"""Decides whether a request is within its tenant's limits, and keeps what it was charged until it has ended.

Reserve before, settle after: a request is charged what it is foreseen to cost when it is let in, and what it did cost
once that is known. Requests, tokens, concurrency and the month are counted apart; a request takes of all or of none.

*Trade-offs*: a request foreseen to cost more than the whole minute is let in when the minute is untouched, and leaves a
debt: a contract of any size serves requests of any size, only more rarely.
"""

from dataclasses import dataclass
from enum import Enum
from math import ceil

from service.domain.contract import Contract
from service.domain.value import value
from service.flow.budget import Budget


class Limit(Enum):
    """What of a contract a request came up against."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    CONCURRENCY = "concurrency"
    MONTH = "month"


@value
class Shortfall:
    """There is not enough left. ``certain``: whoever were asked, nobody could find more. ``frees_at`` is when there may
    be, ``None`` where nobody can know (somebody has to finish)."""

    limit: Limit
    certain: bool
    frees_at: float | None


@dataclass(slots=True)
class Reservation:
    """What one request was charged. ``prompt_tokens`` and ``output_tokens`` are what was foreseen, the second as it is
    raised while an answer goes on; ``counted`` is whether it stands in the minute, or runs beyond it."""

    account: "Account"
    prompt_tokens: int
    output_tokens: int
    charged_tokens: int
    slot: int
    month: int
    counted: bool
    settled: bool = False


class Account:
    """One tenant's limits at one gateway.

    ``leased_until``: until then what is held was taken out of the fleet's quota for this gateway. ``replicas``: by how
    many the quota is divided when nobody can be asked.
    """

    __slots__ = (
        "_month", "_month_spent", "contract", "held_running", "leased_until", "month_known", "replicas", "requests",
        "running", "tokens", "touched_at",
    )  # fmt: skip

    def __init__(self, contract: Contract, replicas: int = 1) -> None:
        self.contract = contract
        self.requests = None if contract.requests_per_minute is None else Budget(contract.requests_per_minute)
        self.tokens = None if contract.tokens_per_minute is None else Budget(contract.tokens_per_minute)
        self.running = 0
        self.held_running = 0
        self.replicas = replicas
        self.leased_until = float("-inf")
        self.month_known = 0
        self._month = 0
        self._month_spent = 0
        self.touched_at = 0.0

    def reconfigure(self, contract: Contract) -> None:
        """Another contract: what was spent stays spent."""
        self.contract = contract
        self.requests = _renew(self.requests, contract.requests_per_minute)
        self.tokens = _renew(self.tokens, contract.tokens_per_minute)

    def reserve(self, prompt_tokens: int, output_tokens: int, now: float, month: int) -> Reservation | Shortfall:
        """Charge a request that is foreseen to take so many tokens, or say what is missing. ``month``: any number that
        is another one in every calendar month."""
        self.touched_at = now
        self._turn_to(month)
        tokens = prompt_tokens + output_tokens
        short = self._find_shortfall(tokens, now, month)
        if short is not None:
            return short
        slot = 0
        if self.requests is not None:
            slot = self.requests.charge(1, now)
        if self.tokens is not None:
            slot = self.tokens.charge(tokens, now)
        self.running += 1
        self._month_spent += tokens
        return Reservation(self, prompt_tokens, output_tokens, tokens, slot, month, True)

    def admit_beyond(self, prompt_tokens: int, output_tokens: int, now: float, month: int) -> Reservation:
        """Let a request run beyond the contract: of all that is counted, only the month takes note of it."""
        self._turn_to(month)
        self._month_spent += prompt_tokens + output_tokens
        return Reservation(self, prompt_tokens, output_tokens, prompt_tokens + output_tokens, 0, month, False)

    def extend(self, reservation: Reservation, output_tokens: int, now: float) -> None:
        """An answer has become longer than it was foreseen: charge what it has by now."""
        more = output_tokens - reservation.output_tokens
        reservation.output_tokens = output_tokens
        self._charge_late(reservation, more, now)

    def settle(self, reservation: Reservation, tokens: int, keep_request: bool, now: float) -> None:
        """The request has ended and took so many tokens; ``keep_request``: it counts as one. Once only."""
        if reservation.settled:
            return
        reservation.settled = True
        difference = tokens - reservation.charged_tokens
        if difference >= 0:
            self._charge_late(reservation, difference, now)
        else:
            if reservation.counted and self.tokens is not None:
                self.tokens.give_back(-difference, reservation.slot, now)
            if reservation.month == self._month:
                self._month_spent += difference
        if not reservation.counted:
            return
        self.running -= 1
        if not keep_request and self.requests is not None:
            self.requests.give_back(1, reservation.slot, now)

    def is_leased(self, now: float) -> bool:
        """Whether what is held is still this gateway's own."""
        return now < self.leased_until

    def month_left(self, month: int) -> int:
        """Tokens that the month's budget still has."""
        self._turn_to(month)
        return (self.contract.tokens_per_month or 0) - self.month_known - self._month_spent

    def take_month_spent(self, month: int) -> int:
        """What was spent of the month since this was asked last."""
        self._turn_to(month)
        spent, self._month_spent = self._month_spent, 0
        self.month_known += spent
        return spent

    def running_max(self, now: float) -> int:
        """How many requests may wait or run here; only for contracts that bound it."""
        bound = self.contract.concurrency or 0
        return self.held_running if now < self.leased_until else ceil(bound / self.replicas)

    def _find_shortfall(self, tokens: int, now: float, month: int) -> Shortfall | None:
        leased, contract = now < self.leased_until, self.contract
        if contract.concurrency is not None and self.running >= self.running_max(now):
            return Shortfall(Limit.CONCURRENCY, self.running >= contract.concurrency, None)
        if self.requests is not None and self.requests.free(leased, self.replicas, now) < 1:
            return _miss(Limit.REQUESTS, self.requests, 1, now)
        if self.tokens is not None:
            need = min(tokens, self.tokens.limit)
            if self.tokens.free(leased, self.replicas, now) < need:
                return _miss(Limit.TOKENS, self.tokens, need, now)
        if contract.tokens_per_month is not None and self.month_left(month) < tokens:
            return Shortfall(Limit.MONTH, True, None)
        return None

    def _charge_late(self, reservation: Reservation, tokens: int, now: float) -> None:
        reservation.charged_tokens += tokens
        self._month_spent += tokens
        if reservation.counted and self.tokens is not None and tokens:
            self.tokens.charge(tokens, now)

    def _turn_to(self, month: int) -> None:
        if month != self._month:
            self._month, self._month_spent, self.month_known = month, 0, 0


def _miss(limit: Limit, budget: Budget, need: int, now: float) -> Shortfall:
    return Shortfall(limit, budget.is_spent(need, now), budget.frees_at(need, now))


def _renew(budget: Budget | None, limit: int | None) -> Budget | None:
    if limit is None:
        return None
    if budget is None:
        return Budget(limit)
    budget.limit = limit
    return budget
