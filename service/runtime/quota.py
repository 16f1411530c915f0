"""Lets requests of limited tenants in or not, on the loop and without waiting, and settles what they were charged.

One account per tenant that sends something, made at its first request and forgotten when it has long been idle, so
that a tenant which sends nothing costs nothing here. Where gateways share their quotas, a request for which the lease
does not suffice is put aside until the store has spoken, for 45 ms at most.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Protocol

from service.domain.contract import Contract, Excess
from service.domain.estimate import Estimate
from service.domain.mark import Mark
from service.domain.request import Request
from service.domain.tenant import Tenant
from service.domain.units import TenantId
from service.flow.budget import Budget
from service.flow.charge import Spending, compute_charge
from service.flow.quota import Account, Passage, Reservation, Shortfall
from service.flow.window import SPAN_S
from service.runtime.account import PATIENCE, Settlement
from service.runtime.leasing import Leasing, resume
from service.runtime.ports import Clock, Later

WAIT_S = 0.045
"""The longest that a request waits for the store's word; what follows is decided at once: 50 ms are never reached."""

RESERVED_LEVEL = 0.9
"""Output is reserved so that nine answers in ten stay within it. A guess: the mean lets a burst run over its limit by
what long answers take beyond it, the client's own bound starves whoever asks for 128k and uses 300."""

_FORGOTTEN_AFTER_S = 2 * SPAN_S
_LOOKED_AT = 512
"""Accounts looked at in one beat, whether they can be forgotten."""

_RUN = Excess.RUN
_EXCESS = frozenset((Mark.EXCESS,))


class Foresight(Protocol):
    """Knows what requests take."""

    def foresee(self, request: Request, level: float) -> Estimate:
        """What ``request`` will take at most, with so much certainty."""
        ...


class Quotas:
    """All accounts of one gateway. Also an accountant: it settles what a request was charged when it has ended."""

    def __init__(self, foresight: Foresight, clock: Clock, later: Later, leasing: Leasing | None = None) -> None:
        self._foresee = foresight.foresee
        self._clock = clock
        self._later = later
        self._leasing = leasing
        if leasing is not None:
            leasing.on_word = self._hear
        self._waiting: dict[TenantId, list[tuple[Settlement, Callable[[], None]]]] = {}
        self._accounts: dict[TenantId, Account] = {}
        self._visits: Iterator[TenantId] = iter(())
        self._month = 0
        self._month_ends_at = 0.0
        self._turn_month()
        self.counts = dict.fromkeys(Passage, 0)

    # ---------------------------------------------------------------- one request

    def admit(
        self,
        tenant: Tenant,
        contract: Contract,
        request: Request,
        settlement: Settlement,
        metered: tuple[bool, bool],
        best_effort: bool = False,
    ) -> Passage | Shortfall:
        """Charge ``request``. ``metered``: whether its prompt and its output are counted. What its tenant is to be told
        of its limits is left in ``settlement``; a shortfall is what to refuse it for. After ``LATER`` the request is to
        be put aside by :meth:`put_aside` and to be admitted again."""
        now = settlement.arrived_at if settlement.patience == PATIENCE else self._clock.now()
        account = self._accounts.get(tenant.tenant_id)
        if account is None:
            account = self._accounts[tenant.tenant_id] = Account(contract)
        elif account.contract is not contract:
            account.reconfigure(contract)
        leasing = self._leasing
        if leasing is not None:
            account.replicas = leasing.replicas
            account.by_share = leasing.away or not settlement.patience
            if account.by_share and best_effort:
                return self._count(Passage.CLOSED)
        prompt = output = 0
        if metered[0]:
            foreseen = self._foresee(request, RESERVED_LEVEL)
            prompt, output = foreseen.prompt_tokens, foreseen.output_tokens if metered[1] else 0
        charged = account.reserve(prompt, output, now, self._month)
        if isinstance(charged, Reservation):
            settlement.reservation = charged
            self.counts[Passage.WITHIN] += 1
        else:
            if leasing is not None:
                if not charged.certain and not account.by_share:
                    leasing.ask(tenant.tenant_id, account, prompt + output)
                    return self._count(Passage.LATER)
                leasing.want(tenant.tenant_id, account, prompt + output)
            if contract.excess is not _RUN:
                self._count(Passage.REFUSED if charged.certain else Passage.UNKNOWN)
                settlement.limits = render_limits(account, now)
                return charged
            settlement.reservation = account.admit_beyond(prompt, output, now, self._month)
            settlement.excess = True
            settlement.marks |= _EXCESS
            self.counts[Passage.BEYOND] += 1
        if leasing is not None:
            leasing.touch(tenant.tenant_id, account)
        settlement.limits = render_limits(account, now)
        return Passage.BEYOND if settlement.excess else Passage.WITHIN

    def put_aside(self, settlement: Settlement, again: Callable[[], None]) -> None:
        """Call ``again`` when the store has spoken, or has been silent for too long."""
        tenant_id = settlement.tenant_id
        if tenant_id is None:
            return
        if not self._waiting:
            self._later(WAIT_S / PATIENCE, self._look)
        self._waiting.setdefault(tenant_id, []).append((settlement, again))

    @property
    def put_aside_now(self) -> int:
        """Requests that wait for the store's word."""
        return sum([len(waiting) for waiting in self._waiting.values()])

    def _hear(self, tenants: Sequence[TenantId]) -> None:
        for tenant_id in tenants:
            waiting = self._waiting.pop(tenant_id, None)
            if waiting is not None:
                resume([again for _, again in waiting])

    def _look(self) -> None:
        """Those who have waited for long enough are decided by what is known here."""
        waiting, self._waiting = self._waiting, {}
        tired: list[Callable[[], None]] = []
        for tenant_id, those in waiting.items():
            for settlement, again in those:
                settlement.patience -= 1
                if settlement.patience:
                    self._waiting.setdefault(tenant_id, []).append((settlement, again))
                else:
                    tired.append(again)
        if self._waiting:
            self._later(WAIT_S / PATIENCE, self._look)
        resume(tired)

    def _count(self, passage: Passage) -> Passage:
        self.counts[passage] += 1
        return passage

    def settle(self, settlement: Settlement) -> None:
        """Charge what a request took, once it has ended."""
        reservation, outcome, now = settlement.reservation, settlement.outcome, settlement.settled_at
        if reservation is None or outcome is None or now is None:
            return
        began = settlement.first_token_at is not None or settlement.last_token_at is not None
        spending = Spending(
            reservation.prompt_tokens, reservation.output_tokens, settlement.prompt_tokens, settlement.output_tokens,
            settlement.dispatched_at is not None, began,
        )  # fmt: skip
        tokens, keep_request = compute_charge(outcome, spending)
        reservation.account.settle(reservation, tokens, keep_request, now)
        if self._leasing is not None and settlement.tenant_id is not None:
            self._leasing.touch(settlement.tenant_id, reservation.account)

    def month_ends_in_s(self) -> float:
        """Until the month's budget is whole again."""
        return max(self._month_ends_at - self._clock.wall(), 1.0)

    # ---------------------------------------------------------------- now and then

    def beat(self) -> None:
        """Look at the calendar, and forget some of those that have long been idle; called a few times a second."""
        if self._clock.wall() >= self._month_ends_at:
            self._turn_month()
        now = self._clock.now()
        for _ in range(_LOOKED_AT):
            tenant_id = next(self._visits, None)
            if tenant_id is None:
                self._visits = iter(tuple(self._accounts))
                return
            account = self._accounts[tenant_id]
            idle = not account.running and now - account.touched_at > _FORGOTTEN_AFTER_S
            if idle and not account.holds and (self._leasing is not None or account.contract.tokens_per_month is None):
                del self._accounts[tenant_id]

    @property
    def month(self) -> int:
        """The calendar month as accounts know it."""
        return self._month

    @property
    def accounts(self) -> int:
        """How many tenants have one."""
        return len(self._accounts)

    def _turn_month(self) -> None:
        today = datetime.fromtimestamp(self._clock.wall(), UTC)
        self._month = today.year * 12 + today.month
        after = datetime(today.year + today.month // 12, today.month % 12 + 1, 1, tzinfo=UTC)
        self._month_ends_at = after.timestamp()


def render_limits(account: Account, now: float) -> bytes:
    """Header lines that say what is left of requests and tokens, and in how long all of it will be there again."""
    lines = b""
    if account.requests is not None:
        lines = _render_limit(b"requests", account.requests, account, now)
    if account.tokens is not None:
        lines += _render_limit(b"tokens", account.tokens, account, now)
    return lines


def _render_limit(name: bytes, budget: Budget, account: Account, now: float) -> bytes:
    left = budget.remaining(not account.by_share, account.replicas, now)
    return b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %d\r\nx-ratelimit-reset-%b: %b\r\n" % (
        name, budget.limit, name, left, name, render_duration(budget.resets_at(now) - now),
    )  # fmt: skip


def render_duration(length_s: float) -> bytes:
    """As ``1s`` or ``6m0s``, whole seconds, rounded up."""
    seconds = int(-(-length_s // 1))
    return _DURATIONS[seconds] if 0 <= seconds < len(_DURATIONS) else _spell(seconds)


def _spell(seconds: int) -> bytes:
    if seconds < 60:
        return b"%ds" % seconds
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return b"%dm%ds" % (minutes, seconds)
    return b"%dh%dm%ds" % (minutes // 60, minutes % 60, seconds)


_DURATIONS = tuple(_spell(seconds) for seconds in range(64))
