"""Keeps the books beside the gateway: drains its spool, drops old months, answers what the gateway wants to know.

Runs in a process of its own, so that nothing of a database is ever computed on the gateway's interpreter. ``step`` is
called again and again; a database that is away makes it wait longer between tries, and costs nothing but time.
"""

import datetime
import fcntl
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from service.ledger.book import Book, ChainConflictError
from service.ledger.database import open_database
from service.ledger.drain import BATCH, Drain
from service.ledger.query import read_hours, span_of
from service.ledger.tables import month_of
from service.slo.attainment import SLIS, sum_up

_log = logging.getLogger("sluice.clerk")

PAUSE_S = 1.0
"""Between two looks at a spool that had less than a batch. A longer pause makes fewer and larger transactions."""

_AWAY_S = (1.0, 2.0, 5.0)
_PRUNE_S = 3600.0


@dataclass(frozen=True, slots=True)
class ClerkConfig:
    """``retention_months``: how many whole calendar months before the present one keep their entries."""

    database: str
    spool: Path
    retention_months: int


class Clerk:
    """One spool and its database. ``wall`` gives seconds since 1970."""

    def __init__(self, config: ClerkConfig, wall: Callable[[], float]) -> None:
        self._config = config
        self._wall = wall
        self._engine = open_database(config.database)
        self._book = Book(self._engine)
        self._drain = Drain(config.spool, self._book)
        self._lock: BinaryIO | None = None
        self._ready = False
        self._failures = 0
        self._pruned_at = 0.0
        self._terms: list[tuple[str, str, int]] = []
        self.fault: str | None = None
        self.idle = False
        """The last step found nothing to do."""

    def note_terms(self, config_hash: str, document: str, since_us: int) -> None:
        """Terms that entries refer to from ``since_us`` on."""
        self._terms.append((config_hash, document, since_us))

    @property
    def status(self) -> dict[str, Any]:
        """What the gateway is told: how far the database is, and what is wrong, if anything."""
        return {"seq": self._drain.seq, "fault": self.fault}

    def step(self) -> float:
        """Do what there is to do, a little of it; the seconds until the next step is worth making."""
        if not self._take_lock():
            return 0.2
        try:
            taken = self._work()
        except (SQLAlchemyError, ChainConflictError, OSError) as error:
            self._note_fault(error)
            self._book.forget()
            self._drain.forget()
            pause_s = _AWAY_S[min(self._failures, len(_AWAY_S) - 1)]
            self._failures += 1
            return pause_s
        if self.fault is not None:
            _log.info("the ledger is written again")
        self._failures, self.fault = 0, None
        self.idle = taken == 0
        return 0.0 if taken >= BATCH or (taken and self._drain.behind) else PAUSE_S

    def close(self) -> None:
        """Let go of database and spool."""
        self._engine.dispose()
        if self._lock is not None:
            self._lock.close()

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """The answer to ``{"tenant": ID}``: tallies by tier of this month; ``{"fault": ...}`` if that is not known."""
        month = month_of(int(self._wall() * 1_000_000))
        try:
            with self._engine.connect() as connection:
                tiers: dict[str, list[Any]] = {}
                for hour in read_hours(connection, span_of(month), question["tenant"]):
                    tiers.setdefault(hour.tier, []).append(hour.tally)
        except SQLAlchemyError as error:
            return {"fault": _words_of(error)}
        told = {}
        for tier, tallies in tiers.items():
            total = sum_up(tallies)
            told[tier] = {
                "requests": total.requests,
                "good": dict(zip(SLIS, total.good, strict=True)),
                "bad": dict(zip(SLIS, total.bad, strict=True)),
                "excluded": total.excluded(),
            }
        return {"month": month, "tiers": told}

    # ---------------------------------------------------------------- inside

    def _take_lock(self) -> bool:
        """The clerk of a gateway that died may still be at work here."""
        if self._lock is None:
            self._config.spool.mkdir(parents=True, exist_ok=True)
            lock = (self._config.spool / "clerk.lock").open("wb")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.close()
                return False
            self._lock = lock
        return True

    def _work(self) -> int:
        wall_us = int(self._wall() * 1_000_000)
        if not self._ready:
            self._book.prepare()
            self._ready = True
        while self._terms:
            self._book.note_terms(*self._terms[0])
            del self._terms[0]
        if self._wall() - self._pruned_at > _PRUNE_S:
            self._prune(wall_us)
        return self._drain.step(wall_us)

    def _prune(self, wall_us: int) -> None:
        oldest = datetime.datetime.fromtimestamp(wall_us / 1_000_000, datetime.UTC).replace(day=1)
        for _ in range(self._config.retention_months):
            oldest = (oldest - datetime.timedelta(days=1)).replace(day=1)
        dropped = self._book.drop_months_before(oldest.strftime("%Y-%m"), wall_us)
        if dropped:
            _log.info("entries of %s were dropped: past their time", ", ".join(dropped))
        self._pruned_at = self._wall()

    def _note_fault(self, error: Exception) -> None:
        words = _words_of(error)
        if words != self.fault:
            _log.error("the ledger cannot be written, the spool keeps what comes: %s", words)
        self.fault = words


def _words_of(error: Exception) -> str:
    """One line, without the statement and its values."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    lines = str(cause).strip().splitlines()
    return f"{type(cause).__name__}: {lines[0] if lines else ''}"


def read_config(line: bytes) -> ClerkConfig:
    """The first thing a clerk is told."""
    told = json.loads(line)
    return ClerkConfig(told["database"], Path(told["spool"]), told["retention_months"])
