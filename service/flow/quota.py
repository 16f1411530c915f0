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
from service.flow.lease import LEASE_S, Grant, Report


class Limit(Enum):
    """What of a contract a request came up against."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    CONCURRENCY = "concurrency"
    MONTH = "month"


class Passage(Enum):
    """Whether a request may go on."""

    WITHIN = "within"
    """It is within the contract."""

    BEYOND = "beyond"
    """It is above the contract, and runs as excess."""

    REFUSED = "refused"
    """It is above the contract, which does not want it to run."""

    UNKNOWN = "unknown"
    """Nobody can say, and this gateway's share is spent."""

    CLOSED = "closed"
    """Best effort has no share while nobody can say."""

    LATER = "later"
    """The store is asked."""


@value
class Shortfall:
    """There is not enough left. ``certain``: whoever were asked, nobody could find more. ``frees_at`` is when there may
    be, ``None`` where nobody can know (somebody has to finish)."""

    limit: Limit
    certain: bool
    frees_at: float | None


@value
class Needed:
    """What requests that wait for the store's word come up to."""

    requests: int = 0
    tokens: int = 0
    running: int = 0


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

    ``by_share``: there is no store, or it cannot be asked, so the limit is divided by ``replicas``; else only what is
    leased is spent, and ``leased_until`` is until when it is this gateway's own.
    """

    __slots__ = (
        "_fresh", "_month", "_month_spent", "_number", "_said", "by_share", "contract", "held_running", "leased_until",
        "month_known", "replicas", "requests", "running", "running_exhausted", "tokens", "touched_at",
    )  # fmt: skip

    def __init__(self, contract: Contract, replicas: int = 1) -> None:
        self.contract = contract
        self.requests = None if contract.requests_per_minute is None else Budget(contract.requests_per_minute)
        self.tokens = None if contract.tokens_per_minute is None else Budget(contract.tokens_per_minute)
        self.running = 0
        self.held_running = 0
        self.by_share = True
        self.replicas = replicas
        self.leased_until = float("-inf")
        self.month_known = 0
        self.running_exhausted = False
        self.touched_at = 0.0
        self._month = 0
        self._month_spent = 0
        self._said: int | None = None  # of the month, told to the store, which has not said that it heard
        self._fresh = True
        self._number = 0

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

    def month_left(self, month: int) -> int:
        """Tokens that the month's budget still has."""
        self._turn_to(month)
        return (self.contract.tokens_per_month or 0) - self.month_known - self._month_spent - (self._said or 0)

    def draw_up(self, needed: Needed, now: float, month: int) -> Report:
        """Tell the store what was spent and ask for what is ``needed``."""
        self._turn_to(month)
        if self._said is None:
            self._number = max(self._number + 1, int(now * 1000.0))  # an account begun anew never repeats a number
            self._said, self._month_spent = self._month_spent, 0
        bound = self.contract.concurrency
        spare = 0 if bound is None else min(max(needed.running, 1), bound // (4 * self.replicas) + 1)
        wanted = self.running + needed.running + spare
        self.held_running = min(self.held_running, wanted)
        requests, tokens = self.requests, self.tokens
        return Report(
            self._number,
            self._fresh,
            None if requests is None else requests.ask(needed.requests, self.replicas, self._fresh, now),
            None if tokens is None else tokens.ask(min(needed.tokens, tokens.limit), self.replicas, self._fresh, now),
            self.running,
            wanted if self.running or needed.running else 0,
            bound,
            self._month,
            self._said,
        )

    def accept(self, report: Report, grant: Grant, asked_at: float, now: float) -> None:
        """The store's word to ``report``, which left at ``asked_at``."""
        if grant.lost:
            self._fresh = True
            return
        self._fresh, self._said = False, None
        self.leased_until = asked_at + LEASE_S
        if self.requests is not None and grant.requests is not None and report.requests is not None:
            self.requests.accept(grant.requests, report.requests.needed, now)
        if self.tokens is not None and grant.tokens is not None and report.tokens is not None:
            self.tokens.accept(grant.tokens, report.tokens.needed, now)
        self.held_running = grant.held_running
        self.running_exhausted = grant.held_running < report.want_running and grant.held_running <= report.running
        if report.month == self._month:
            self.month_known = grant.month_spent

    @property
    def holds(self) -> bool:
        """Whether anything is held that the store must hear of from time to time."""
        held = [budget.held for budget in (self.requests, self.tokens) if budget is not None]
        return self.running > 0 or self.held_running > 0 or any(amount != 0 for amount in held)

    def running_max(self) -> int:
        """How many requests may wait or run here; only for contracts that bound it."""
        return ceil((self.contract.concurrency or 0) / self.replicas) if self.by_share else self.held_running

    def _find_shortfall(self, tokens: int, now: float, month: int) -> Shortfall | None:
        leased, contract = not self.by_share, self.contract
        if leased and now >= self.leased_until:
            return Shortfall(Limit.REQUESTS, False, None)
        if contract.concurrency is not None and self.running >= self.running_max():
            certain = self.running >= contract.concurrency or (leased and self.running_exhausted)
            return Shortfall(Limit.CONCURRENCY, certain, None)
        if self.requests is not None and self.requests.free(leased, self.replicas, now) < 1:
            return _miss(Limit.REQUESTS, self.requests, 1, leased, now)
        if self.tokens is not None:
            need = min(tokens, self.tokens.limit)
            if self.tokens.free(leased, self.replicas, now) < need:
                return _miss(Limit.TOKENS, self.tokens, need, leased, now)
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
            self._said = None if self._said is None else 0


def _miss(limit: Limit, budget: Budget, need: int, leased: bool, now: float) -> Shortfall:
    return Shortfall(limit, budget.is_spent(need, leased, now), budget.frees_at(need, now))


def _renew(budget: Budget | None, limit: int | None) -> Budget | None:
    if limit is None:
        return None
    if budget is None:
        return Budget(limit)
    budget.limit = limit
    return budget
