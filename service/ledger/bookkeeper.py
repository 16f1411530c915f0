"""Takes settled requests on the loop and has them written by a thread: an append to a list is all a request waits for.

``flush`` is called some twenty times a second; it hands over what has come since, if the thread is free. A disk that
fails or is full keeps entries in memory, up to ``pending_max``; what comes after that is counted as lost, and an entry
says so in the chain when there is room again.

Trade-offs: a request that comes and goes between two commits is not in the register of those under way, so a death in
that moment leaves no trace of it; the thread shares the interpreter (measured in ``tests/unit/ledger/test_cost.py``).
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from service.domain.mark import Mark
from service.domain.outcome import Outcome
from service.ledger.entry import Row, Settled, Terms, build_gap, build_row
from service.ledger.spool import Spool, SpoolFullError
from service.slo.verdict import Verdict

_log = logging.getLogger("sluice.ledger")

COMMIT_S = 0.05
"""Pace of ``flush``; with the time that a disk takes to sync, commits stay less than 100 ms apart."""

_PIECE = 2000
_RETRY_S = 1.0


class Bookkeeper:
    """An accountant, on top of ``spool``. ``now`` is the clock of the settlements' moments, ``wall`` seconds since
    1970."""

    def __init__(
        self,
        spool: Spool,
        terms: Terms,
        now: Callable[[], float],
        wall: Callable[[], float],
        pending_max: int = 200_000,
    ) -> None:
        self._spool = spool
        self._now = now
        self._wall = wall
        self._pending_max = pending_max
        self._opened: list[Settled] = []
        self._settled: list[Settled] = []
        self._overflowed = 0
        self._writing: Future[None] | None = None
        self._writer = ThreadPoolExecutor(1, "ledger")
        self._unregistered: list[Settled] = []  # these four belong to the thread
        self._waiting: list[Row] = [_bury(one, terms) for one in spool.died]
        self._unmarked = 0
        self._retry_at = 0.0
        self.terms = terms
        self.lost = 0
        """Entries that found no room and are in no chain but as a number."""
        self.fault: str | None = None
        """Why nothing can be written at this moment, or ``None``."""
        if spool.died:
            _log.warning("%d requests were under way when this gateway died: judged as our fault", len(spool.died))

    @property
    def chain(self) -> str:
        """The name of the chain it writes."""
        return self._spool.head.chain

    @property
    def seq(self) -> int:
        """The number of the last entry that is safe."""
        return self._spool.head.seq

    @property
    def spool_bytes(self) -> int:
        """What the spool takes on the disk."""
        return self._spool.bytes

    @property
    def pending(self) -> int:
        """Entries that are only in memory."""
        return len(self._settled) + len(self._waiting)

    # ---------------------------------------------------------------- on the loop

    def open(self, settlement: Settled) -> None:
        """A request has come."""
        self._opened.append(settlement)

    def settle(self, settlement: Settled) -> None:
        """A request has ended."""
        self._settled.append(settlement)

    def flush(self) -> None:
        """Hand over what has come if the thread is free; returns at once."""
        if self._writing is not None and not self._writing.done():
            surplus = len(self._settled) - self._pending_max
            if surplus > 0:  # the disk hangs
                del self._settled[self._pending_max :]
                self._overflowed += surplus
            if len(self._opened) > self._pending_max:  # what has ended needs no beginning; the rest may be forgotten
                live = [one for one in self._opened if one.outcome is None]
                self._opened = live[-self._pending_max // 2 :]
            return
        if self._writing is not None:
            written, self._writing = self._writing, None
            written.result()
        if self._opened or self._settled or self._waiting or self._overflowed:
            self._hand_over()

    def close(self) -> None:
        """Write what there is and wait for it; what cannot be written is lost, and logged."""
        if self._writing is not None:
            self._writing.result()
        self._retry_at = 0.0
        self._hand_over()
        self._writer.shutdown()
        left = len(self._waiting) + self._unmarked
        if left:
            _log.error("ledger: %d entries are lost with this process: %s", left, self.fault)
        self._spool.close()

    def _hand_over(self) -> None:
        opened, settled, overflowed = self._opened, self._settled, self._overflowed
        self._opened, self._settled, self._overflowed = [], [], 0
        self._writing = self._writer.submit(self._write, opened, settled, overflowed)

    # ---------------------------------------------------------------- in the thread

    def _write(self, opened: list[Settled], settled: list[Settled], overflowed: int) -> None:
        now, wall = self._now(), self._wall()
        terms, offset_s = self.terms, wall - now
        waiting = self._waiting
        waiting += [build_row(one, terms, offset_s) for one in settled]
        surplus = len(waiting) - self._pending_max
        if surplus > 0:
            del waiting[self._pending_max :]
            overflowed += surplus
        self._unmarked += overflowed
        self.lost += overflowed
        live = [one for one in (*self._unregistered, *opened) if one.outcome is None]
        self._unregistered = live[-self._pending_max :]
        if now < self._retry_at:
            return
        try:
            self._write_pieces(terms, offset_s, wall)
        except (SpoolFullError, OSError) as error:
            if self.fault is None:
                _log.error("ledger: entries stay in memory, up to %d: %s", self._pending_max, error)
            self.fault = str(error)
            self._retry_at = now + _RETRY_S
        else:
            if self.fault is not None:
                _log.warning("ledger: entries are written again; %d were lost", self.lost)
            self.fault = None

    def _write_pieces(self, terms: Terms, offset_s: float, wall: float) -> None:
        while self._waiting or self._unregistered:
            piece = self._waiting[:_PIECE]
            self._spool.write([_describe(one, terms, offset_s) for one in self._unregistered], piece)
            del self._waiting[:_PIECE]
            self._unregistered = []
        if self._unmarked:
            self._spool.write([], [build_gap(self._unmarked, terms, wall)])
            self._unmarked = 0


def _describe(settlement: Settled, terms: Terms, offset_s: float) -> dict[str, Any]:
    """What an entry needs of a request that may never end."""
    return {
        "request_id": settlement.request_id,
        "client_request_id": settlement.client_request_id,
        "tenant": settlement.tenant_id,
        "tier": settlement.tier,
        "tier_asked": settlement.tier_asked,
        "kind": settlement.kind,
        "stream": settlement.stream,
        "prompt_bytes": settlement.prompt_bytes,
        "arrived_us": int((settlement.arrived_at + offset_s) * 1_000_000),
        "marks": [mark.value for mark in settlement.marks],
    }


class _Died:
    """A request of which only its beginning is known."""

    outcome: Outcome | None = None
    status: int | None = None
    worker_id: str | None = None
    attempts = 0
    admitted_at: float | None = None
    dispatched_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    settled_at: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    output_estimated = False
    verdict: Verdict | None = None

    def __init__(self, told: dict[str, Any]) -> None:
        self.request_id: str = told["request_id"]
        self.client_request_id: str | None = told["client_request_id"]
        self.tenant_id: str | None = told["tenant"]
        self.tier: str | None = told["tier"]
        self.tier_asked: str | None = told["tier_asked"]
        self.kind: str = told["kind"]
        self.stream: bool = told["stream"]
        self.prompt_bytes: int = told["prompt_bytes"]
        self.arrived_at: float = told["arrived_us"] / 1_000_000
        self.marks = frozenset(Mark(name) for name in told["marks"])


def _bury(told: dict[str, Any], terms: Terms) -> Row:
    """The entry of a request that died with its gateway: it has no end, and is our fault."""
    return build_row(_Died(told), terms, 0.0)
