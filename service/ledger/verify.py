"""Looks for entries that were altered, taken out or put elsewhere: follows each chain from hash to hash.

Each entry's hash is computed again from its fields and the hash before it; numbers must follow each other; the last
entry must be the one that the chain's head names; and what the rollups say must be what the entries add up to.

Trade-offs: whoever can write the database and computes all hashes anew is only found by a chain head that someone else
has kept, which is why each report names them.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, func, inspect, select

from service.ledger.entry import FIELDS, FIRST_HASH, chain_hash, encode_payload
from service.ledger.query import Chain, read_chains, read_entries, read_months, span_of
from service.ledger.tables import ROLLUPS, entries_table, month_of

FAULTS_MAX = 100
_STANDING, _ARRIVED = FIELDS.index("standing"), FIELDS.index("arrived_us")
_TENANT, _TIER = FIELDS.index("tenant"), FIELDS.index("tier")

Sums = Counter[tuple[str, int, str, str, str]]
"""Entries by chain, hour, tenant, tier and standing."""


@dataclass(slots=True)
class Verification:
    """What was found. ``entries`` were looked at; of ``faults`` no more than a hundred are told."""

    entries: int = 0
    chains: int = 0
    faults: list[str] = field(default_factory=list)
    more: int = 0

    def blame(self, fault: str) -> None:
        """Something is not as it was written."""
        if len(self.faults) < FAULTS_MAX:
            self.faults.append(fault)
        else:
            self.more += 1


def verify(connection: Connection, progress: Callable[[int, int], None] = lambda done, of: None) -> Verification:
    """Follow every chain through all months that are here."""
    found = Verification()
    present = [month for month, kept in read_months(connection).items() if kept]
    here = set(inspect(connection).get_table_names())
    months = []
    for month in present:
        if entries_table(month).name in here:
            months.append(month)
        else:
            found.blame(f"the entries of {month} are gone")
    total = sum(_count(connection, month) for month in months)
    sums: Sums = Counter()
    chains = read_chains(connection)
    known = {chain.chain for chain in chains}
    for month in months:
        table = entries_table(month)
        for name in connection.scalars(select(table.c.chain).distinct()):
            if name not in known:
                known.add(name)
                found.blame(f"chain {name} has entries and no head")
                chains.append(Chain(name, 0, FIRST_HASH, 0, FIRST_HASH, 0))
    for chain in chains:
        found.chains += 1
        _follow(connection, chain, months, found, sums, lambda: progress(found.entries, total))
    progress(total, total)
    _compare_rollups(connection, months, sums, found)
    return found


def _count(connection: Connection, month: str) -> int:
    return connection.scalar(select(func.count()).select_from(entries_table(month))) or 0


def _follow(
    connection: Connection, chain: Chain, months: list[str], found: Verification, sums: Sums, tick: Callable[[], None]
) -> None:
    seq, digest = chain.dropped_seq, chain.dropped_digest
    for number, row, said, month in _merge(connection, chain.chain, months):
        found.entries += 1
        if found.entries % 10_000 == 0:
            tick()
        sums[_key(chain.chain, row)] += 1
        if month_of(row[_ARRIVED]) != month:
            found.blame(f"chain {chain.chain}: entry {number} stands in the wrong month, {month}")
        if number <= chain.dropped_seq:
            continue  # what it follows went with an older month
        if number != seq + 1:
            missing = f"entry {seq + 1} is" if number == seq + 2 else f"entries {seq + 1} to {number - 1} are"
            found.blame(f"chain {chain.chain}: {missing} missing")
        elif chain_hash(digest, encode_payload(number, row)) != said:
            found.blame(f"chain {chain.chain}: entry {number} is not what was recorded")
        seq, digest = number, said
    if (seq, digest) != (chain.seq, chain.digest) and chain.seq:
        found.blame(f"chain {chain.chain}: it ends with entry {seq}, its head names entry {chain.seq}")


def _merge(connection: Connection, chain: str, months: list[str]) -> Iterator[tuple[int, tuple[Any, ...], bytes, str]]:
    """Entries of a chain in order of their numbers: at a turn of the month they lie in two tables."""
    return heapq.merge(*(_read(connection, chain, month) for month in months), key=lambda one: one[0])


def _read(connection: Connection, chain: str, month: str) -> Iterator[tuple[int, tuple[Any, ...], bytes, str]]:
    for seq, row, digest in read_entries(connection, month, chain):
        yield seq, row, digest, month


def _key(chain: str, row: tuple[Any, ...]) -> tuple[str, int, str, str, str]:
    return chain, row[_ARRIVED] // 3_600_000_000, row[_TENANT] or "", row[_TIER] or "", row[_STANDING]


def _compare_rollups(connection: Connection, months: list[str], sums: Sums, found: Verification) -> None:
    """Whether what is billed on is what was recorded."""
    for month in months:
        first, after = span_of(month)
        columns = (ROLLUPS.c.chain, ROLLUPS.c.hour, ROLLUPS.c.tenant, ROLLUPS.c.tier)
        standings = ("met", "missed", "excluded")
        rows = connection.execute(
            select(*columns, *(func.sum(ROLLUPS.c[name]) for name in standings))
            .where(ROLLUPS.c.hour >= first, ROLLUPS.c.hour < after)
            .group_by(*columns)
        )
        for *key, met, missed, excluded in rows:
            for standing, counted in zip(standings, (met, missed, excluded), strict=True):
                chain, hour, tenant, tier = key
                recorded = sums.pop((chain, hour, tenant, tier, standing), 0)
                if recorded != counted:
                    found.blame(
                        f"chain {chain}, hour {hour}, {tenant or 'nobody'}, {tier or 'no tier'}: "
                        f"{counted} {standing} were added up, {recorded} are recorded"
                    )
    for (chain, hour, tenant, tier, standing), recorded in sums.items():
        if standing != "lost":
            found.blame(
                f"chain {chain}, hour {hour}, {tenant or 'nobody'}, {tier or 'no tier'}: "
                f"{recorded} {standing} are recorded and in no sum"
            )
