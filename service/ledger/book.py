"""Writes entries into the database with their rollups and the head of their chain: all of a batch, or nothing.

An entry is taken once: the head of its chain, stored in the same transaction, says which are in. Rollups are kept by
chain, so gateways that share a database never write the same row.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, Table, bindparam, func, insert, select, update

from service.ledger.database import migrate
from service.ledger.entry import FIELDS, FIRST_HASH, weigh
from service.ledger.rollup import Key, decode_tally, encode_tally, key_of
from service.ledger.segment import Head, Line
from service.ledger.tables import CHAINS, MONTHS, ROLLUPS, TERMS, entries_table, month_of
from service.slo.attainment import Tally

_KEPT_TALLIES = 20_000
_ASKED = 200
_KEY = ("chain", "hour", "tenant", "tier", "size_class")
_CHANGE = (
    update(ROLLUPS)
    .where(*(ROLLUPS.c[name] == bindparam(f"new_{name}") for name in _KEY))
    .values({column.name: bindparam(f"new_{column.name}") for column in ROLLUPS.c if column.name not in _KEY})
)


class ChainConflictError(Exception):
    """The spool and the database disagree about what was recorded."""


class Book:
    """The ledger's database, written by one process for one chain at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tallies: dict[Key, Tally] = {}
        self._hours: set[tuple[str, int]] = set()  # those of which every rollup is in ``_tallies``
        self._months: set[str] = set()

    def prepare(self) -> None:
        """Bring the tables to the present form."""
        with self._engine.begin() as connection:
            migrate(connection)

    def forget(self) -> None:
        """Nobody knows what came of the last transaction: read again what is in the database."""
        self._forget_tallies()
        self._months.clear()
        self._engine.dispose()

    def _forget_tallies(self) -> None:
        self._tallies.clear()
        self._hours.clear()

    def find_head(self, chain: str) -> Head | None:
        """How far the database is with ``chain``; ``None`` if it does not know it."""
        with self._engine.connect() as connection:
            row = connection.execute(select(CHAINS).where(CHAINS.c.chain == chain)).mappings().first()
        return None if row is None else Head(chain, row["seq"], bytes(row["hash"]))

    def begin_chain(self, head: Head, wall_us: int) -> None:
        """Take up ``head.chain`` from ``head`` on; what came before it, if anything, is not here."""
        with self._engine.begin() as connection:
            connection.execute(
                insert(CHAINS).values(
                    chain=head.chain, seq=head.seq, hash=head.digest, dropped_seq=head.seq, dropped_hash=head.digest,
                    drained_us=wall_us,
                )
            )  # fmt: skip

    def note_terms(self, config_hash: str, document: str, since_us: int) -> None:
        """Keep the terms that entries refer to. Those that are taken up once more, as after a change that was undone,
        are dated anew, since the latest are what reports go by."""
        with self._engine.begin() as connection:
            known_us = connection.scalar(select(TERMS.c.since_us).where(TERMS.c.config_hash == config_hash))
            if known_us is None:
                connection.execute(insert(TERMS).values(config_hash=config_hash, document=document, since_us=since_us))
            elif known_us < since_us:
                connection.execute(update(TERMS).where(TERMS.c.config_hash == config_hash).values(since_us=since_us))

    def take(self, chain: str, lines: Sequence[Line], wall_us: int) -> None:
        """Add ``lines``, which follow what the database has of ``chain``."""
        by_month: dict[str, list[tuple[Any, ...]]] = {}
        touched: dict[Key, list[dict[str, Any]]] = {}
        for line in lines:
            fields = dict(zip(FIELDS, line.row, strict=True))
            touched.setdefault(key_of(chain, fields), []).append(fields)
            row = (chain, line.seq, *line.row, line.digest)
            by_month.setdefault(month_of(fields["arrived_us"]), []).append(row)
        with self._engine.begin() as connection:
            for month, entries in by_month.items():
                table = self._open_month(connection, month)
                connection.exec_driver_sql(_render_insert(table, connection.dialect.name), entries)
            self._add_up(connection, touched)
            last = lines[-1]
            moved = connection.execute(
                update(CHAINS)
                .where(CHAINS.c.chain == chain, CHAINS.c.seq == lines[0].seq - 1)
                .values(seq=last.seq, hash=last.digest, drained_us=wall_us)
            )
            if moved.rowcount != 1:
                raise ChainConflictError(f"chain {chain} is not at entry {lines[0].seq - 1} any more")
        if len(self._tallies) > _KEPT_TALLIES:
            self._forget_tallies()

    def _open_month(self, connection: Connection, month: str) -> Table:
        table = entries_table(month)
        if month not in self._months:
            table.create(connection, checkfirst=True)
            if not connection.scalar(select(func.count()).where(MONTHS.c.month == month)):
                connection.execute(insert(MONTHS).values(month=month))
            self._months.add(month)
        return table

    def _add_up(self, connection: Connection, touched: Mapping[Key, Sequence[Mapping[str, Any]]]) -> None:
        self._load(connection, {(key.chain, key.hour) for key in touched})
        fresh: list[dict[str, Any]] = []
        changed: list[dict[str, Any]] = []
        for key, entries in touched.items():
            tally = self._tallies.get(key)
            stored = changed if tally is not None else fresh
            if tally is None:
                tally = self._tallies[key] = Tally()
            for fields in entries:
                tally.add(weigh(fields))
            stored.append(encode_tally(key, tally))
        if fresh:
            connection.execute(insert(ROLLUPS), fresh)
        if changed:
            connection.execute(_CHANGE, [{f"new_{name}": value for name, value in row.items()} for row in changed])

    def _load(self, connection: Connection, hours: set[tuple[str, int]]) -> None:
        """Have every rollup of these hours at hand."""
        wanted = sorted(hour for chain, hour in hours - self._hours)
        chains = {chain for chain, _ in hours}
        for start in range(0, len(wanted), _ASKED):
            rows = connection.execute(
                select(ROLLUPS).where(ROLLUPS.c.chain.in_(chains), ROLLUPS.c.hour.in_(wanted[start : start + _ASKED]))
            )
            for row in rows.mappings():
                fields = {str(name): value for name, value in row.items()}
                self._tallies[Key(*(fields[name] for name in _KEY))] = decode_tally(fields)
        self._hours |= hours

    def drop_months_before(self, month: str, wall_us: int) -> list[str]:
        """Drop the entries of all months before ``month``; their rollups stay. The months that were dropped."""
        old = select(MONTHS.c.month).where(MONTHS.c.month < month, MONTHS.c.dropped_us.is_(None)).with_for_update()
        with self._engine.begin() as connection:
            dropped = list(connection.scalars(old))
            for one in dropped:
                _drop_month(connection, one, wall_us)
        self._months.difference_update(dropped)
        return dropped


def _render_insert(table: Table, dialect: str) -> str:
    """A statement whose values are given by position: SQLAlchemy's own takes six times as long for each row."""
    mark = "?" if dialect == "sqlite" else "%s"
    columns = [column.name for column in table.columns]
    return f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES ({', '.join([mark] * len(columns))})"  # noqa: S608 - names of our own tables


def _drop_month(connection: Connection, month: str, wall_us: int) -> None:
    """Each chain keeps the number and hash of the last entry that went, so that what follows can still be verified."""
    table = entries_table(month)
    ends = connection.execute(select(table.c.chain, func.max(table.c.seq)).group_by(table.c.chain)).all()
    for chain, seq in ends:
        digest = connection.scalar(select(table.c.hash).where(table.c.chain == chain, table.c.seq == seq))
        connection.execute(
            update(CHAINS)
            .where(CHAINS.c.chain == chain, CHAINS.c.dropped_seq < seq)
            .values(dropped_seq=seq, dropped_hash=digest or FIRST_HASH)
        )
    table.drop(connection)
    connection.execute(update(MONTHS).where(MONTHS.c.month == month).values(dropped_us=wall_us))
