"""What the tests of the ledger share: settled requests by the dozen, and a spool with its database."""

import random
from pathlib import Path

from sqlalchemy import text

from service.domain.mark import Mark
from service.domain.outcome import Outcome
from service.domain.tier import Tier
from service.ledger.book import Book
from service.ledger.database import open_database
from service.ledger.drain import BATCH, Drain
from service.ledger.entry import Terms, build_row
from service.ledger.spool import Spool
from service.runtime.account import Settlement
from service.slo.verdict import judge

PRIORITY = Tier(
    "priority", 0, availability=0.999, attainment=0.99, ttft_targets_s=((4096, 1.0), (32768, 3.0)), tpot_target_s=0.025
)
FLEX = Tier("flex", 2, best_effort=True)
TIERS = {"priority": PRIORITY, "flex": FLEX}
TERMS = Terms("M3.1", "c0ffee", TIERS, {"acme": "a1", "umbra": "b2"})
NOVEMBER_S = 1793491200.0
"""2026-11-01 00:00:00 UTC, in seconds since 1970."""
DAY_S = 86400.0
DOCUMENT = (
    '{"tiers": {"priority": {"availability": 0.999, "attainment": 0.99, "ttft": {"4096": 1.0, "32768": 3.0}, '
    '"tpot_s": 0.025}, "flex": {"availability": null, "attainment": null, "ttft": {}, "tpot_s": null}}, '
    '"tenants": {"acme": {"credits": [[0.999, 0.1], [0.99, 0.25], [0.95, 1.0]]}}, '
    '"maintenance": [[1793750400.0, 1793757600.0, "new <drivers>"], [0, 1, "long ago"]]}'
)


def build_settled(number, at_s, outcome=Outcome.COMPLETED, tenant="acme", tier="priority", **more):
    """A settled request that arrived at ``at_s`` since 1970; a stream within its targets unless said otherwise."""
    one = Settlement(f"r-{number}", "chat_completions", at_s)
    one.outcome, one.tenant_id, one.tier, one.stream = outcome, tenant, tier, True
    one.prompt_tokens, one.output_tokens, one.prompt_bytes = 1000, 11, 3200
    one.admitted_at, one.settled_at = at_s + 0.001, at_s + 2.0
    if outcome is Outcome.COMPLETED:
        one.dispatched_at, one.first_token_at, one.last_token_at = at_s + 0.002, at_s + 0.5, at_s + 0.7
        one.worker_id, one.status, one.attempts = "w-1", 200, 1
    for name, value in more.items():
        setattr(one, name, value)
    one.verdict = judge(one, TIERS.get(one.tier))
    return one


def build_row_of(settled):
    """Its entry."""
    return build_row(settled, TERMS, 0.0)


def build_random(number, at_s, chance: random.Random):
    """Any request at all."""
    outcome = chance.choice([Outcome.COMPLETED] * 12 + list(Outcome))
    tenant, tier = chance.choice([("acme", "priority"), ("umbra", "flex"), ("umbra", "priority"), (None, None)])
    one = build_settled(number, at_s, outcome, tenant, tier)
    one.prompt_tokens = chance.choice([None, 10, 5000, 40_000])
    one.output_tokens = chance.choice([None, 1, 20, 400])
    one.output_estimated = chance.random() < 0.1
    if outcome is Outcome.COMPLETED or chance.random() < 0.2:
        one.first_token_at = at_s + chance.lognormvariate(-1.0, 1.0)
        one.last_token_at = one.first_token_at + 0.02 * (one.output_tokens or 1)
    one.marks = frozenset(mark for mark in Mark if chance.random() < 0.03)
    one.verdict = judge(one, TIERS.get(tier))
    return one


class Books:
    """A spool and its database in ``folder``."""

    def __init__(self, folder: Path, url: str | None = None, segment_bytes: int = 1 << 20):
        self.folder = folder / "spool"
        self.url = url or f"sqlite:///{folder}/ledger.db"
        self.spool = Spool(self.folder, 1 << 30, segment_bytes)
        self.engine = open_database(self.url)
        self.book = Book(self.engine)
        self.book.prepare()
        self.book.note_terms("c0ffee", DOCUMENT, 0)
        self.drain = Drain(self.folder, self.book)

    @classmethod
    def take_over(cls, books):
        """Another connection to the same database, and a drain of its own."""
        other = cls.__new__(cls)
        other.engine = open_database(books.url)
        other.drain = Drain(books.folder, Book(other.engine))
        return other

    def record(self, settled):
        """Write entries of ``settled`` to the spool."""
        self.spool.write([], [build_row_of(one) for one in settled])

    def take_all(self):
        """Drain until nothing is left; how many entries that were."""
        total = 0
        while taken := self.drain.step(1):
            total += taken
            if taken < BATCH:
                total += self.drain.step(1)
        return total

    def rows(self, sql, **values):
        """What a query gives."""
        with self.engine.connect() as connection:
            return connection.execute(text(sql), values).all()

    def run(self, sql, **values):
        """Change something behind everybody's back."""
        with self.engine.begin() as connection:
            return connection.execute(text(sql), values).rowcount

    def close(self):
        self.spool.close()
        self.engine.dispose()
