"""The one record made of each request, whatever became of it."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from service.domain.maintenance import MaintenanceWindow
from service.domain.mark import UNMARKED, Mark
from service.domain.outcome import Outcome
from service.domain.tier import Tier
from service.domain.units import RequestId, TenantId, TierName, WorkerId
from service.flow.quota import Reservation
from service.runtime.guard import tell
from service.slo.verdict import Verdict, judge

PATIENCE = 16
"""Looks at the time by which a request gives up waiting for the store. Counted in looks rather than in time: when our
own loop is late the answer may long be there, and it would be wrong to blame the store."""


class Settlement:
    """Who asked for what, when things happened, and how it ended.

    Filled in on the way and settled once. Moments are monotonic seconds, ``None`` for what did not happen. Token
    counts come from the worker's usage; ``output_estimated`` marks a count of stream events instead, which stands in
    for streams that were cut before their usage came (with speculation an event may carry several tokens, so it is a
    lower bound). ``reservation`` is what it was charged when it was let in, ``excess`` whether it runs above its
    contract, ``limits`` the header lines that tell its tenant what is left; ``patience`` counts down while it waits for
    the shared store's word. ``client_request_id`` is the client's own id, the one it was shown. ``kind`` is the route's
    name. ``tier`` is the one it was served in, ``tier_asked`` the one of its contract where that is another.
    ``verdict`` is there once it is settled.
    Defaults live in the class: most requests set few of them.
    """

    outcome: Outcome | None = None
    status: int | None = None
    tenant_id: TenantId | None = None
    tier: TierName | None = None
    stream: bool = False
    prompt_bytes: int = 0
    admitted_at: float | None = None
    dispatched_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    settled_at: float | None = None
    worker_id: WorkerId | None = None
    attempts: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    output_estimated: bool = False
    client_request_id: str | None = None
    tier_asked: TierName | None = None
    marks: frozenset[Mark] = UNMARKED
    verdict: Verdict | None = None
    reservation: Reservation | None = None
    excess: bool = False
    patience: int = PATIENCE
    limits: bytes = b""

    def __init__(self, request_id: RequestId, kind: str, arrived_at: float) -> None:
        self.request_id = request_id
        self.kind = kind
        self.arrived_at = arrived_at

    @property
    def ttft_s(self) -> float | None:
        """The customer's time to first token: from arrival."""
        return None if self.first_token_at is None else self.first_token_at - self.arrived_at

    @property
    def queue_s(self) -> float | None:
        """Time in the queue."""
        if self.dispatched_at is None or self.admitted_at is None:
            return None
        return self.dispatched_at - self.admitted_at

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; needs two tokens of a stream."""
        first, last, tokens = self.first_token_at, self.last_token_at, self.output_tokens
        if not self.stream or first is None or last is None or tokens is None or tokens < 2:
            return None
        return (last - first) / (tokens - 1)


_MAINTAINED = frozenset((Mark.MAINTENANCE,))
_NO_TIERS: Mapping[TierName, Tier] = {}


class Accountant(Protocol):
    """Takes settled requests."""

    def settle(self, settlement: Settlement) -> None:
        """Called once per request, on the loop: must not block."""
        ...


class Accounts:
    """Settles each request once with every accountant; all are told the same verdict. ``tiers`` are the promises in
    force, and may be replaced while requests are under way; so may be the announced ``maintenance``, of which moments
    are seconds since 1970, ``wall_offset_s`` ahead of those of requests."""

    def __init__(self, accountants: Sequence[Accountant], tiers: Mapping[TierName, Tier] = _NO_TIERS) -> None:
        self._settle = tuple(accountant.settle for accountant in accountants)
        self.tiers = tiers
        self.maintenance: Sequence[MaintenanceWindow] = ()
        self.wall_offset_s = 0.0

    def settle(self, settlement: Settlement, outcome: Outcome, now: float) -> None:
        """Close the record; a second call for the same record changes nothing."""
        if settlement.outcome is not None:
            return
        settlement.outcome = outcome
        settlement.settled_at = now
        tier = settlement.tier
        if self.maintenance and self.is_maintained(settlement.arrived_at):
            settlement.marks |= _MAINTAINED
        settlement.verdict = judge(settlement, None if tier is None else self.tiers.get(tier))
        tell(self._settle, None, "an accountant", settlement)

    def is_maintained(self, moment: float) -> bool:
        """Whether announced maintenance is in force then; monotonic seconds."""
        return any(window.covers(moment + self.wall_offset_s) for window in self.maintenance)
