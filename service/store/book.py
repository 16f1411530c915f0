"""The leases of all gateways in one process: the twin of the script that Redis runs, rule by rule the same."""

from dataclasses import dataclass, field

from service.flow.lease import LEASE_S, Amounts, Ask, Grant, Report, Share
from service.flow.window import GRAIN_S, SPAN_S

KEPT_SLOTS = int(SPAN_S / GRAIN_S)
COARSE = 4
"""Slots that are told as one: a whole minute in 31 pairs. They leave when the youngest of them does."""


@dataclass(slots=True)
class _Holder:
    """One gateway's part. What it held when its lease ran out was ``charged`` in a slot, until it is heard of again."""

    requests: int = 0
    tokens: int = 0
    running: int = 0
    expires_at: float = 0.0
    number: int = 0
    charged: tuple[int, int, int] | None = None


@dataclass(slots=True)
class _Page:
    """One tenant. ``known``: requests and tokens that gateways have recalled to it."""

    requests: dict[int, int] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    holders: dict[str, _Holder] = field(default_factory=dict)
    known: list[int] = field(default_factory=lambda: [0, 0])


class LeaseBook:
    """Every method takes the time, so it works under any clock."""

    def __init__(self) -> None:
        self._pages: dict[str, _Page] = {}
        self._months: dict[tuple[str, int], int] = {}

    def forget_all(self) -> None:
        """As a store that was flushed."""
        self._pages.clear()
        self._months.clear()

    def used(self, tenant_id: str, now: float) -> tuple[int, int]:
        """Requests and tokens of the last minute, as they were reported."""
        page = self._pages.get(tenant_id, _Page())
        return _sum_up(page.requests, now), _sum_up(page.tokens, now)

    def exchange(self, gateway: str, tenant_id: str, report: Report, now: float) -> Grant:
        """Take a report in, answer it."""
        page = self._pages.setdefault(tenant_id, _Page())
        mine = page.holders.get(gateway)
        if mine is None and not report.fresh:
            return Grant(lost=True)
        if mine is None:
            mine = page.holders[gateway] = _Holder()
        slot = int(now // GRAIN_S)
        if mine.charged is not None:  # it lives, and says itself what it spent
            charged_slot, requests, tokens = mine.charged
            _add(page.requests, charged_slot, -requests)
            _add(page.tokens, charged_slot, -tokens)
            mine.charged = None
        if report.requests is not None:
            page.known[0] = _recall(page.requests, page.known[0], slot, report.requests.recall)
        if report.tokens is not None:
            page.known[1] = _recall(page.tokens, page.known[1], slot, report.tokens.recall)
        month = (tenant_id, report.month)
        self._months.setdefault(month, 0)
        if report.number > mine.number:
            mine.number = report.number
            self._months[month] += report.month_spent
            _take_in(page, report, slot)
        held_requests, held_tokens, running = _look_at_others(page, mine, now)
        mine.expires_at = now + LEASE_S
        requests_share = _share_out(report.requests, page.requests, held_requests, slot)
        tokens_share = _share_out(report.tokens, page.tokens, held_tokens, slot)
        mine.requests = 0 if requests_share is None else requests_share.held
        mine.tokens = 0 if tokens_share is None else tokens_share.held
        mine.running = 0
        if report.limit_running is not None:
            free = report.limit_running - running
            mine.running = max(min(report.want_running, free), report.running)
        return Grant(False, requests_share, tokens_share, mine.running, self._months[month])


def _add(slots: dict[int, int], slot: int, amount: int) -> None:
    slots[slot] = max(slots.get(slot, 0) + amount, 0)


def _take_in(page: _Page, report: Report, present: int) -> None:
    for ask, slots in ((report.requests, page.requests), (report.tokens, page.tokens)):
        for ago, amount in [] if ask is None else ask.spent:
            _add(slots, present - ago, amount)


def _look_at_others(page: _Page, mine: _Holder, now: float) -> tuple[int, int, int]:
    """What the others hold. A lease that has run out is taken for spent at its end, until its holder is heard of."""
    requests = tokens = running = 0
    for name, other in list(page.holders.items()):
        if other is mine:
            continue
        if other.expires_at <= now and other.charged is None:
            slot = int(other.expires_at // GRAIN_S)
            other.charged = (slot, other.requests, other.tokens)
            _add(page.requests, slot, other.requests)
            _add(page.tokens, slot, other.tokens)
            other.requests = other.tokens = other.running = 0
        elif other.expires_at + 2 * SPAN_S <= now:
            del page.holders[name]
        requests += other.requests
        tokens += other.tokens
        running += other.running
    return requests, tokens, running


def _recall(slots: dict[int, int], known: int, present: int, recall: Amounts) -> int:
    """Each gateway tells what it knew, in slots that need not be the others': whoever knew most is right, so only what
    one knew beyond those before it is added, its youngest first. The answer is how much is known so far."""
    total = sum(amount for _, amount in recall)
    missing = total - known
    for ago, amount in reversed(recall):
        if missing > 0:
            _add(slots, present - ago, min(amount, missing))
            missing -= amount
    return max(total, known)


def _share_out(ask: Ask | None, slots: dict[int, int], held_by_others: int, present: int) -> Share | None:
    if ask is None:
        return None
    coarse: dict[int, tuple[int, int]] = {}
    used = 0
    for slot in sorted(slots):
        if slot < present - KEPT_SLOTS:
            del slots[slot]
        else:
            used += slots[slot]
            _, before = coarse.get(slot // COARSE, (0, 0))
            coarse[slot // COARSE] = (present - slot, before + slots[slot])
    free = max(ask.limit - used - held_by_others, 0)
    held = min(ask.want, free)
    return Share(held, free - held, [coarse[group] for group in sorted(coarse)])


def _sum_up(slots: dict[int, int], now: float) -> int:
    oldest = int(now // GRAIN_S) - KEPT_SLOTS
    return sum(amount for slot, amount in slots.items() if slot >= oldest)
