"""Keeps the leases of quota: reports to the shared store in the background, and asks it at once for those who wait.

Nobody awaits this: requests that need the store's word leave a callback, which is called when it has come, or when it
will not come. While the store is away nothing is asked for, and gateways decide by their shares.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service.domain.condition import Condition, StoreError
from service.domain.units import TenantId
from service.flow.quota import Account, Needed
from service.runtime.guard import guard
from service.runtime.ports import Clock, LeaseSource

_log = logging.getLogger("sluice.store")

PACE_S = 0.25
"""Between two reports of a tenant that sends."""
_RENEWAL_S = 1.0
"""Between two of one that only holds something: a third of the length of a lease."""
_RETRY_S = 0.25
_COUNT_S = 1.0
ALIVE_S = 5.0
"""A gateway that was not heard of for so long is not counted."""
_BATCH = 256
"""Tenants in one call: some 10 ms of Redis at most, so that none waits long behind the others."""


@dataclass(slots=True)
class _Entry:
    """One tenant that has something to say: when, and what waits for the answer."""

    account: Account
    due_at: float
    requests: int = 0
    tokens: int = 0
    running: int = 0

    def take_needed(self) -> Needed:
        """What waits; from now on nothing does."""
        needed = Needed(self.requests, self.tokens, self.running)
        self.requests = self.tokens = self.running = 0
        return needed


class Leasing:
    """One gateway's dealings with the store. ``on_word`` hears which tenants were answered, or will not be."""

    def __init__(self, source: LeaseSource, clock: Clock, month: Callable[[], int]) -> None:
        self._source = source
        self._now = clock.now
        self._month = month
        self._entries: dict[TenantId, _Entry] = {}
        self._wake = asyncio.Event()
        self._counted_at = float("-inf")
        self._tried_at = float("-inf")
        self.condition = Condition.FINE
        self.replicas = 1
        self.calls: Counter[tuple[str, Condition]] = Counter()
        self.on_word: Callable[[Sequence[TenantId]], None] = _hear_nothing

    @property
    def away(self) -> bool:
        """Nothing can be had from the store now."""
        return self.condition is not Condition.FINE

    def touch(self, tenant_id: TenantId, account: Account) -> None:
        """Something changed: report it within the pace."""
        if tenant_id not in self._entries:
            self._entries[tenant_id] = _Entry(account, self._now() + PACE_S)

    def want(self, tenant_id: TenantId, account: Account, tokens: int) -> None:
        """The store had not enough for a request of so many tokens: ask again within the pace."""
        self.touch(tenant_id, account)
        entry = self._entries[tenant_id]
        entry.requests, entry.tokens = max(entry.requests, 1), max(entry.tokens, tokens)
        entry.running = max(entry.running, 1)

    def ask(self, tenant_id: TenantId, account: Account, tokens: int) -> None:
        """A request of so many tokens waits for the store's word."""
        entry = self._entries.get(tenant_id)
        if entry is None:
            entry = self._entries[tenant_id] = _Entry(account, 0.0)
        entry.due_at = 0.0
        entry.requests += 1
        entry.tokens += tokens
        entry.running += 1
        self._wake.set()

    async def run(self) -> None:
        """Go on until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s()):
                    await self._wake.wait()
            self._wake.clear()
            await self.turn()

    async def turn(self) -> None:
        """Say what is due to be said; while the store is away, find out whether it is back."""
        now = self._now()
        if self.away and now < self._tried_at + _RETRY_S:
            return
        self._tried_at = now
        if self.away or now >= self._counted_at + _COUNT_S:
            try:
                self.replicas = await self._source.count_gateways(ALIVE_S)
            except StoreError as error:
                self._note("count", error.condition, error)
            else:
                self._counted_at = now
                self._note("count", Condition.FINE)
        if not self.away:
            await self._exchange(now)

    async def _exchange(self, now: float) -> None:
        due = [tenant_id for tenant_id, entry in self._entries.items() if entry.due_at <= now][:_BATCH]
        if not due:
            return
        entries = [self._entries[tenant_id] for tenant_id in due]
        month = self._month()
        for entry in entries:
            entry.account.replicas = self.replicas
        reports = [entry.account.draw_up(entry.take_needed(), now, month) for entry in entries]
        try:
            grants = await self._source.exchange(list(zip(due, reports, strict=True)))
        except StoreError as error:
            for entry in entries:
                entry.due_at = 0.0
            self._note("exchange", error.condition, error)
            self.on_word(list(self._entries))
            return
        heard_at = self._now()
        lost = False
        for tenant_id, entry, report, grant in zip(due, entries, reports, grants, strict=True):
            entry.account.accept(report, grant, now, heard_at)
            if grant.lost:  # say all of it again, for those who wait too
                lost = True
                entry.requests += 0 if report.requests is None else report.requests.needed
                entry.tokens += 0 if report.tokens is None else report.tokens.needed
                entry.running += max(report.want_running - report.running, 0)
                continue
            if entry.requests or entry.due_at > now:  # more has come meanwhile
                continue
            if not entry.account.holds:
                del self._entries[tenant_id]
                continue
            spoke = any(ask is not None and (ask.spent or ask.needed) for ask in (report.requests, report.tokens))
            entry.due_at = now + (PACE_S if spoke else _RENEWAL_S)
        self._note("exchange", Condition.EMPTY if lost else Condition.FINE)
        if lost:
            self._wake.set()
        self.on_word([name for name, grant in zip(due, grants, strict=True) if not grant.lost])

    def _pause_s(self) -> float:
        now = self._now()
        if self.away:
            return max(self._tried_at + _RETRY_S - now, 0.0)
        next_at = min([entry.due_at for entry in self._entries.values()], default=now + _COUNT_S)
        return max(min(next_at, self._counted_at + _COUNT_S) - now, 0.001)

    def note_fault(self) -> None:
        """A turn failed in our own code."""
        self._note("exchange", Condition.FAILED, StoreError(Condition.FAILED, "a fault of our own, see above"))

    def _note(self, call: str, condition: Condition, error: StoreError | None = None) -> None:
        """Count it; one line in the log when the state changes."""
        self.calls[call, condition] += 1
        if condition is Condition.FINE or condition is Condition.EMPTY:
            if self.away:
                _log.warning("the store is back, was %s", self.condition.value)
                self.condition = Condition.FINE
            return
        if not self.away:
            _log.error("the store does not answer: quotas go on from shares of %d gateways: %s", self.replicas, error)
        self.condition = condition


def _hear_nothing(tenants: Sequence[TenantId]) -> None:
    """Nobody waits."""


def resume(callbacks: Sequence[Callable[[], None]]) -> None:
    """Let requests that waited go on, each by itself."""
    for callback in callbacks:
        guard(None, "a request that waited for its quota", callback)
