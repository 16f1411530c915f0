"""The tables of the ledger: entries by month, rollups by hour, chains, and the terms that entries refer to.

A month of entries is a table of its own, so that a month past its time is dropped and not deleted row by row. The fixed
tables are made by the migrations beside this module, the monthly ones by the clerk when a month's first entry comes.
"""

import datetime
import functools

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, MetaData, SmallInteger, String, Table, Text

from service.ledger.entry import FIELDS

METADATA = MetaData()

_TEXTS = frozenset(
    ("request_id", "client_request_id", "tenant", "contract", "tier_asked", "tier", "model", "kind", "worker",
     "outcome", "standing", "reason", "fault", "slis", "marks", "config_hash")
)  # fmt: skip
_SMALL = frozenset(("stream", "prompt_estimated", "output_estimated", "status"))
_REQUIRED = frozenset(("request_id", "kind", "outcome", "standing", "reason", "fault", "slis", "marks", "arrived_us"))

CHAINS = Table(
    "chains", METADATA,
    Column("chain", String(32), primary_key=True, comment="one gateway's record, from the making of its spool on"),
    Column("seq", BigInteger, nullable=False, comment="number of its last entry here"),
    Column("hash", LargeBinary(32), nullable=False, comment="hash of its last entry here"),
    Column("dropped_seq", BigInteger, nullable=False, comment="entries up to this one went with their month"),
    Column("dropped_hash", LargeBinary(32), nullable=False, comment="hash of the entry with that number"),
    Column("drained_us", BigInteger, nullable=False, comment="when the last entry came"),
)  # fmt: skip

TERMS = Table(
    "terms", METADATA,
    Column("config_hash", String(64), primary_key=True),
    Column("document", Text, nullable=False, comment="JSON: tiers with their promises, tenants with their contracts"),
    Column("since_us", BigInteger, nullable=False, comment="when a gateway last took it up"),
)  # fmt: skip

MONTHS = Table(
    "months", METADATA,
    Column("month", String(7), primary_key=True, comment="as 2026-11, UTC"),
    Column("dropped_us", BigInteger, comment="when its entries were dropped; its rollups stay"),
)  # fmt: skip

ROLLUPS = Table(
    "rollups", METADATA,
    Column("chain", String(32), primary_key=True),
    Column("hour", Integer, primary_key=True, autoincrement=False, comment="hours since 1970 UTC"),
    Column("tenant", String(64), primary_key=True, comment="empty where nobody knew"),
    Column("tier", String(32), primary_key=True, comment="as served; empty where nobody knew"),
    Column("size_class", Integer, primary_key=True, autoincrement=False,
           comment="upper edge in prompt tokens, 0 where the tier has none for it"),
    Column("entries", BigInteger, nullable=False, comment="requests, and entries that stand for lost ones"),
    Column("requests", BigInteger, nullable=False),
    Column("met", BigInteger, nullable=False),
    Column("missed", BigInteger, nullable=False),
    Column("excluded", BigInteger, nullable=False),
    Column("sums", Text, nullable=False, comment="JSON: the rest of a tally, see rollup.encode_tally"),
    Index("rollups_by_tenant", "tenant", "tier", "hour"),
)  # fmt: skip


def month_of(arrived_us: int) -> str:
    """The calendar month (UTC) of a moment, as ``2026-11``."""
    return _month_of_hour(arrived_us // 3_600_000_000)


@functools.lru_cache(maxsize=4096)
def _month_of_hour(hour: int) -> str:
    return datetime.datetime.fromtimestamp(hour * 3600, datetime.UTC).strftime("%Y-%m")


@functools.cache
def entries_table(month: str) -> Table:
    """The entries of a month."""
    return Table(
        f"entries_{month.replace('-', '_')}", MetaData(),
        Column("chain", String(32), primary_key=True),
        Column("seq", BigInteger, primary_key=True, autoincrement=False),
        *(_column(name) for name in FIELDS),
        Column("hash", LargeBinary(32), nullable=False),
    )  # fmt: skip


def _column(name: str) -> Column[str] | Column[int]:
    if name in _TEXTS:
        return Column(name, Text, nullable=name not in _REQUIRED)
    return Column(name, SmallInteger if name in _SMALL else BigInteger, nullable=name not in _REQUIRED)
