"""Reads the ledger: rollups of a span of hours, chains, terms, and single entries."""

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select

from service.ledger.entry import FIELDS
from service.ledger.rollup import decode_tally
from service.ledger.tables import CHAINS, MONTHS, ROLLUPS, TERMS, entries_table
from service.slo.attainment import Tally

_FETCHED = 2000


@dataclass(frozen=True, slots=True)
class Hour:
    """One rollup as it is read."""

    chain: str
    hour: int
    tenant: str
    tier: str
    size_class: int
    tally: Tally


@dataclass(frozen=True, slots=True)
class Chain:
    """Where a chain stands in the database."""

    chain: str
    seq: int
    digest: bytes
    dropped_seq: int
    dropped_digest: bytes
    drained_us: int


def span_of(month: str) -> tuple[int, int]:
    """First hour of a calendar month (UTC, as ``2026-11``) and of the one after it, since 1970.

    Raises:
        ValueError: it is no month.
    """
    first = datetime.datetime.strptime(f"{month}-01", "%Y-%m-%d").replace(tzinfo=datetime.UTC)
    if first.strftime("%Y-%m") != month:
        raise ValueError(f"{month!r} is not a month such as 2026-11")
    after = (first + datetime.timedelta(days=32)).replace(day=1)
    return int(first.timestamp()) // 3600, int(after.timestamp()) // 3600


def count_rollups(connection: Connection, hours: tuple[int, int], tenant: str | None) -> int:
    """How many rollups :func:`read_hours` will give."""
    wanted = _within(hours, tenant)
    return connection.scalar(select(func.count()).select_from(ROLLUPS).where(*wanted)) or 0


def read_hours(connection: Connection, hours: tuple[int, int], tenant: str | None) -> Iterator[Hour]:
    """Rollups of ``hours`` (first, and first not any more), of one tenant or of all, ordered by tenant, tier and hour;
    never many in memory."""
    wanted = select(ROLLUPS).where(*_within(hours, tenant)).order_by(ROLLUPS.c.tenant, ROLLUPS.c.tier, ROLLUPS.c.hour)
    rows = connection.execution_options(yield_per=_FETCHED).execute(wanted)
    for row in rows.mappings():
        fields: Mapping[str, Any] = {str(name): value for name, value in row.items()}
        yield Hour(
            fields["chain"], fields["hour"], fields["tenant"], fields["tier"], fields["size_class"],
            decode_tally(fields),
        )  # fmt: skip


def _within(hours: tuple[int, int], tenant: str | None) -> list[Any]:
    wanted = [ROLLUPS.c.hour >= hours[0], ROLLUPS.c.hour < hours[1]]
    return wanted if tenant is None else [*wanted, ROLLUPS.c.tenant == tenant]


def read_chains(connection: Connection) -> list[Chain]:
    """All chains, by name."""
    rows = connection.execute(select(CHAINS).order_by(CHAINS.c.chain)).mappings()
    return [
        Chain(
            row["chain"], row["seq"], bytes(row["hash"]), row["dropped_seq"], bytes(row["dropped_hash"]),
            row["drained_us"],
        )
        for row in rows
    ]  # fmt: skip


def read_terms(connection: Connection) -> dict[str, str]:
    """Documents of terms by their hash, the oldest first."""
    rows = connection.execute(select(TERMS).order_by(TERMS.c.since_us, TERMS.c.config_hash)).mappings()
    return {row["config_hash"]: row["document"] for row in rows}


def read_months(connection: Connection) -> dict[str, bool]:
    """Months of which there were entries, and whether those are still here."""
    rows = connection.execute(select(MONTHS).order_by(MONTHS.c.month)).mappings()
    return {row["month"]: row["dropped_us"] is None for row in rows}


def read_entries(connection: Connection, month: str, chain: str) -> Iterator[tuple[int, tuple[Any, ...], bytes]]:
    """Number, fields and hash of each entry of a chain in a month, in order; never many in memory."""
    table = entries_table(month)
    columns = [table.c.seq, *(table.c[name] for name in FIELDS), table.c.hash]
    wanted = select(*columns).where(table.c.chain == chain).order_by(table.c.seq)
    for row in connection.execution_options(yield_per=_FETCHED).execute(wanted):
        yield row[0], tuple(row[1:-1]), bytes(row[-1])
