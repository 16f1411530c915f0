"""Builds the SLA report of a calendar month (UTC): what each tenant was promised in each tier, and what came of it.

Everything is made of rollups, so ten million entries are read as some thousand rows; one tenant and tier is in memory
at a time. A month that is not over is reported up to the present hour.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, func, select

from service.ledger.query import Chain, Hour, count_rollups, read_chains, read_hours, read_months, read_terms, span_of
from service.ledger.tables import ROLLUPS, entries_table
from service.slo.attainment import INTERVAL_S, Tally, compute_budget_left, compute_uptime, count_down_intervals
from service.slo.credit import Ladder, Step, compute_credit
from service.slo.sketch import Sketch

QUANTILES = (0.5, 0.95, 0.99)
_HOURS_A_DAY = 24

Progress = Callable[[int, int], None]
"""Told how many rollups of how many have been read."""


@dataclass(frozen=True, slots=True)
class Promise:
    """What a tier promised, and a tenant's ladder of credits; ``None`` and empty where nothing was."""

    availability: float | None = None
    attainment: float | None = None
    ttft_s: Mapping[int, float] = field(default_factory=dict)
    tpot_s: float | None = None
    ladder: Ladder = field(default_factory=lambda: Ladder(()))


@dataclass(frozen=True, slots=True)
class SizeClass:
    """Prompts up to ``edge`` tokens; 0 where the tier has no class for them. Quantiles as :data:`QUANTILES`."""

    edge: int
    requests: int
    ttft: tuple[int, int]
    tpot: tuple[int, int]
    ttft_s: tuple[float | None, ...]
    tpot_s: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Day:
    """One day of the month: requests by standing, available ones, and the 99th percentile of the first token."""

    number: int
    met: int
    missed: int
    excluded: int
    available: tuple[int, int]
    ttft_p99_s: float | None


@dataclass(frozen=True, slots=True)
class Account:
    """One tenant in one tier. ``uptime`` is of five-minute intervals; both are ``None`` where nothing was promised."""

    tenant: str
    tier: str
    promise: Promise
    total: Tally
    down_intervals: int | None
    uptime: float | None
    budget_left: float | None
    credit: float
    classes: Sequence[SizeClass]
    days: Sequence[Day]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the figures rest on. ``entries`` are those in the month's table, ``None`` where they were dropped;
    ``counted`` is what the rollups say, of all tenants. ``sources`` are hashes of what the alerts were made from."""

    entries: int | None
    counted: int
    chains: Sequence[Chain]
    terms: Mapping[str, str]
    sources: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Report:
    """A month. ``length_s`` is how much of it is over, ``maintenance`` what was announced for it: from, to (seconds
    since 1970), why."""

    month: str
    tenant: str | None
    length_s: float
    over: bool
    accounts: Sequence[Account]
    maintenance: Sequence[tuple[float, float, str]]
    evidence: Evidence
    made_at_s: float


def build_report(
    connection: Connection,
    month: str,
    tenant: str | None,
    now_s: float,
    progress: Progress = lambda done, of: None,
    sources: Mapping[str, str] | None = None,
) -> Report:
    """The report of ``month``, of one tenant or of all; ``now_s`` are seconds since 1970, ``sources`` hashes by name.

    Raises:
        ValueError: ``month`` is no month.
    """
    first, after = span_of(month)
    end = min(after, int(now_s) // 3600 + 1)
    length_s = max(min(after * 3600.0, now_s) - first * 3600.0, float(INTERVAL_S))
    terms = read_terms(connection)
    documents = [json.loads(document) for document in terms.values()]
    promises = _Promises(documents)
    accounts = []
    rollups = count_rollups(connection, (first, end), tenant)
    hours = _watch(read_hours(connection, (first, end), tenant), rollups, progress)
    for (name, tier), group in itertools.groupby(hours, key=lambda hour: (hour.tenant, hour.tier)):
        accounts.append(_build_account(name, tier, group, promises.find(name, tier), first, length_s))
    counted = _count_rolled(connection, (first, after))
    evidence = Evidence(_count_entries(connection, month), counted, read_chains(connection), terms, sources or {})
    maintenance = _find_maintenance(documents, first * 3600.0, after * 3600.0)
    return Report(month, tenant, length_s, now_s >= after * 3600, accounts, maintenance, evidence, now_s)


def _find_maintenance(
    documents: Sequence[Mapping[str, Any]], first_s: float, after_s: float
) -> list[tuple[float, float, str]]:
    """Every window that any terms announced and that touches the month."""
    windows = {tuple(window) for document in documents for window in document.get("maintenance", ())}
    return sorted((start, end, why) for start, end, why in windows if start < after_s and end > first_s)


class _Promises:
    """Looks promises up, in the latest terms that know the tier."""

    def __init__(self, documents: Sequence[Mapping[str, Any]]) -> None:
        self._latest_first = documents[::-1]

    def find(self, tenant: str, tier: str) -> Promise:
        """What ``tenant`` was promised in ``tier``."""
        for document in self._latest_first:
            promised = document["tiers"].get(tier)
            if promised is not None:
                return Promise(
                    promised["availability"], promised["attainment"],
                    {int(edge): target_s for edge, target_s in promised["ttft"].items()}, promised["tpot_s"],
                    Ladder(tuple(Step(below, credit) for below, credit in self._find_steps(tenant))),
                )  # fmt: skip
        return Promise()

    def _find_steps(self, tenant: str) -> Sequence[tuple[float, float]]:
        """The tenant's ladder: its own, or for tenants of the shared store the one that is named there."""
        for document in self._latest_first:
            if tenant in document["tenants"]:
                own: Sequence[tuple[float, float]] = document["tenants"][tenant]["credits"]
                return own
        for document in self._latest_first:
            ladders = document.get("ladders", {})
            name = document.get("stored", {}).get(tenant, "standard")
            if "standard" in ladders:
                stored: Sequence[tuple[float, float]] = ladders.get(name, ladders["standard"])
                return stored
        return ()


def _watch(hours: Iterable[Hour], total: int, progress: Progress) -> Iterable[Hour]:
    for done, hour in enumerate(hours, 1):
        if done % 1000 == 0 or done == total:
            progress(done, total)
        yield hour


def _build_account(
    tenant: str, tier: str, hours: Iterable[Hour], promise: Promise, first: int, length_s: float
) -> Account:
    total = Tally()
    classes: dict[int, Tally] = {}
    days: dict[int, Tally] = {}
    for hour in hours:
        total.merge(hour.tally)
        hour.tally.intervals.clear()  # only the total needs them
        classes.setdefault(hour.size_class, Tally()).merge(hour.tally)
        days.setdefault((hour.hour - first) // _HOURS_A_DAY + 1, Tally()).merge(hour.tally)
    objective = promise.availability
    known = objective is not None
    return Account(
        tenant, tier, promise, total,
        count_down_intervals(total.intervals, objective) if objective is not None else None,
        compute_uptime(total.intervals, objective, length_s) if objective is not None else None,
        compute_budget_left(total.good[0], total.bad[0], objective) if objective is not None else None,
        compute_credit(total.attained("availability"), objective, promise.ladder) if known and tenant else 0.0,
        [_build_class(edge, tally) for edge, tally in sorted(classes.items(), key=_by_size)],
        [_build_day(number, tally) for number, tally in sorted(days.items())],
    )  # fmt: skip


def _by_size(item: tuple[int, Tally]) -> float:
    return item[0] or float("inf")


def _build_class(edge: int, tally: Tally) -> SizeClass:
    return SizeClass(
        edge, tally.requests, (tally.good[1], tally.bad[1]), (tally.good[2], tally.bad[2]), _quantiles(tally.ttft),
        _quantiles(tally.tpot),
    )  # fmt: skip


def _quantiles(sketch: Sketch) -> tuple[float | None, ...]:
    return tuple(sketch.find_quantile(ratio) for ratio in QUANTILES)


def _build_day(number: int, tally: Tally) -> Day:
    standings = tally.standings
    return Day(
        number, standings["met"], standings["missed"], standings["excluded"], (tally.good[0], tally.bad[0]),
        tally.ttft.find_quantile(0.99),
    )  # fmt: skip


def _count_entries(connection: Connection, month: str) -> int | None:
    """Entries in the month's table; ``None`` if that was dropped."""
    months = read_months(connection)
    if month not in months:
        return 0
    if not months[month]:
        return None
    return connection.scalar(select(func.count()).select_from(entries_table(month)))


def _count_rolled(connection: Connection, hours: tuple[int, int]) -> int:
    """Entries that the rollups know of."""
    wanted = (ROLLUPS.c.hour >= hours[0], ROLLUPS.c.hour < hours[1])
    return int(connection.scalar(select(func.sum(ROLLUPS.c.entries)).where(*wanted)) or 0)
