"""Checks the record of a real gateway: reconciliation, deaths, and a database that is away.

    python -m loadtests.live.record_check reconcile --requests 20000
    python -m loadtests.live.record_check deaths --rounds 20
    python -m loadtests.live.record_check away --seconds 600

Each prints a short table and adds its figures to ``loadtests/reports/record.json``; exit code 1 if anything is missing,
double or different.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, inspect, make_url

from loadtests.live.record_client import CALLERS, Kind, LoggingClient, Sighting
from loadtests.live.record_rig import Rig, open_rig
from service.ledger.database import open_database
from service.ledger.verify import verify

REPORT = Path(__file__).parents[1] / "reports" / "record.json"
COMMIT_S = 0.5
"""Longer than a commit may take on a busy machine (0.1 s on a quiet one): what is younger may be lost in a death."""

_BROKE_FIRST = frozenset(("stream_broken", "worker_failed"))
"""Endings that a client which leaves in that very moment does not see."""

Say = Callable[[str], None]


@dataclass
class Entry:
    """What the ledger says of one request."""

    client_id: str | None
    tenant: str | None
    tier: str | None
    outcome: str
    standing: str
    slis: str
    settled: bool


@dataclass
class Finding:
    """The figures of a check, and what was wrong."""

    figures: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def compare(self, what: str, first: object, second: object) -> None:
        """Two sources that must say the same."""
        if first == second:
            return
        if isinstance(first, Counter) and isinstance(second, Counter):
            keys = [key for key in first | second if first[key] != second[key]]
            first, second = {key: first[key] for key in keys}, {key: second[key] for key in keys}
        self.faults.append(f"{what}: {first} and {second}")


def read_ledger(url: str) -> list[Entry]:
    """Every entry, by plain SQL on the tables."""
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg") if url.startswith("postgres") else url)
    found: list[Entry] = []
    with engine.connect() as connection:
        for table in sorted(name for name in inspect(connection).get_table_names() if name.startswith("entries_")):
            sql = f"select client_request_id, tenant, tier, outcome, standing, slis, settled_us from {table}"  # noqa: S608
            for row in connection.exec_driver_sql(sql):
                client_id, tenant, tier, outcome, standing, slis, settled_us = row
                found.append(Entry(client_id, tenant, tier, outcome, standing, slis, settled_us is not None))
    engine.dispose()
    return found


def check_chain(url: str, finding: Finding) -> None:
    """Whether the chain is whole and the sums are right."""
    engine = open_database(url)
    with engine.connect() as connection:
        finding.faults += verify(connection).faults
    engine.dispose()


# ---------------------------------------------------------------- three-way reconciliation


async def reconcile(rig: Rig, requests: int, restarts: int, say: Say, seed: int = 1) -> Finding:
    """Every count by tenant, tier and verdict: client, counters, ledger. The gateway runs already."""
    chance = random.Random(seed)  # noqa: S311 - chooses faults
    finding = Finding()
    client = LoggingClient(rig.port, CALLERS, seed)
    counters: Counter[tuple[str, ...]] = Counter()
    outcomes: Counter[tuple[str, ...]] = Counter()
    parts = restarts + 1
    began_at = time.monotonic()
    for part in range(parts):
        wreck = asyncio.ensure_future(_injure(rig, chance))
        running = asyncio.ensure_future(client.run(requests // parts, 48))
        while not running.done():
            await asyncio.wait({running}, timeout=5.0)
            done = sum(seen.ended_at is not None for seen in client.sightings)
            rate = done / (time.monotonic() - began_at)
            say(f"{len(client.sightings)} of {requests} requests sent, {rate:.0f}/s")
        wreck.cancel()
        await asyncio.wait({wreck})
        await running
        await _heal(rig)
        if part + 1 < parts:  # a restart with streams under way, served to their end
            tail = asyncio.ensure_future(client.run(24, 24, {Kind.STREAM: 1}))
            await asyncio.sleep(0.05)
            rig.ask_gateway_to_leave()
            await tail
        await asyncio.sleep(0.3)
        counters += rig.read_counts("sluice_requests_total", "tier", "outcome")
        outcomes += rig.read_counts("sluice_slo_events_total", "tier", "slo", "result")
        if part + 1 == parts:
            await asyncio.to_thread(rig.await_drained)
            rig.ask_gateway_to_leave()
        await asyncio.to_thread(rig.await_end)
        if part + 1 < parts:
            await asyncio.to_thread(rig.start_gateway)
    entries = read_ledger(rig.url)
    _compare(client.sightings, entries, counters, outcomes, finding)
    check_chain(rig.url, finding)
    return finding


async def _injure(rig: Rig, chance: random.Random) -> None:
    """Now and then a worker breaks an answer, refuses, or dies and comes again; at first one breaks some, so that the
    shortest run has met it."""
    first: list[dict[str, object]] = [{"kind": "die", "after": 3, "times": 4}]
    await asyncio.to_thread(rig.set_faults, 0, first)
    while True:
        await asyncio.sleep(chance.uniform(0.2, 0.8))
        index = chance.randrange(len(rig.worker_ports))
        kind, after = chance.choice([("die", 3), ("cut", 2), ("error-event", 2), ("503", 0), ("502", 0), ("death", 0)])
        if kind == "death":
            await asyncio.to_thread(rig.kill_worker, index)
            await asyncio.sleep(chance.uniform(0.1, 0.5))
            await asyncio.shield(asyncio.to_thread(rig.restart_worker, index))
        else:
            faults: list[dict[str, object]] = [{"kind": kind, "after": after, "times": chance.randint(1, 4)}]
            await asyncio.to_thread(rig.set_faults, index, faults)


async def _heal(rig: Rig) -> None:
    """Every worker runs, and does nothing wrong."""
    for index in range(len(rig.worker_ports)):
        for _ in range(50):
            try:
                await asyncio.to_thread(rig.set_faults, index, [])
                break
            except OSError:
                await asyncio.sleep(0.1)
        else:
            await asyncio.to_thread(rig.restart_worker, index)


def _compare(
    sightings: Sequence[Sighting],
    entries: Sequence[Entry],
    counters: Counter[tuple[str, ...]],
    events: Counter[tuple[str, ...]],
    finding: Finding,
) -> None:
    ids = Counter(entry.client_id for entry in entries)
    double = sum(count > 1 for count in ids.values())
    sent = {seen.client_id: seen for seen in sightings if seen.reached}
    missing, unknown = sent.keys() - ids.keys(), ids.keys() - sent.keys()
    finding.compare("entries that are there twice", double, 0)
    finding.compare("requests of which there is no entry", len(missing), 0)
    finding.compare("entries of which no client knows", len(unknown), 0)
    by_ledger: Counter[tuple[str, ...]] = Counter()
    by_client: Counter[tuple[str, ...]] = Counter()
    left_as_it_broke = 0
    for entry in entries:
        seen = sent.get(entry.client_id or "")
        if seen is None:
            continue
        expected = seen.expect()
        if seen.aborted and entry.outcome in _BROKE_FIRST:
            expected, left_as_it_broke = {"missed"}, left_as_it_broke + 1
        by_ledger[entry.tenant or "-", entry.tier or "-", entry.standing] += 1
        said = entry.standing if not expected or entry.standing in expected else "/".join(sorted(expected))
        by_client[seen.tenant or "-", entry.tier or "-", said] += 1
        if said != entry.standing:
            finding.faults.append(f"{seen} is {entry}")
    finding.compare("standings by tenant and tier, ledger and client", by_ledger, by_client)
    counted = Counter((entry.tier or "none", entry.outcome) for entry in entries)
    finding.compare("outcomes by tier, ledger and counters", counted, counters)
    finding.compare("results by tier and objective, ledger and counters", _count_results(entries), events)
    finding.figures = {
        "requests": len(sightings), "entries": len(entries), "missing": len(missing), "double": double,
        "unknown": len(unknown), "left_as_it_broke": left_as_it_broke,
        "standings": {" ".join(key): count for key, count in sorted(by_ledger.items())},
        "outcomes": dict(sorted(Counter(entry.outcome for entry in entries).items())),
    }  # fmt: skip


def _count_results(entries: Sequence[Entry]) -> Counter[tuple[str, ...]]:
    """Results as the counters have them."""
    words = {"g": "good", "b": "bad", "x": "excluded"}
    counts: Counter[tuple[str, ...]] = Counter()
    for entry in entries:
        for slo, letter in zip(("availability", "ttft", "tpot", "all"), entry.slis, strict=True):
            if letter in words:
                counts[entry.tier or "none", slo, words[letter]] += 1
    return counts


# ---------------------------------------------------------------- deaths


async def die_often(rig: Rig, rounds: int, say: Say, seed: int = 1) -> Finding:
    """Kill -9 at random moments under load. The gateway runs already."""
    chance = random.Random(seed)  # noqa: S311 - chooses moments
    finding = Finding()
    everything: dict[str, tuple[Sighting, float]] = {}
    weights = {Kind.STREAM: 10, Kind.WHOLE: 2, Kind.MALFORMED: 1, Kind.ABORT: 1}
    for number in range(rounds):
        client = LoggingClient(rig.port, CALLERS, seed * 1000 + number, tokens=(1, 8, 400))
        running = asyncio.ensure_future(client.run(None, 16, weights))
        await asyncio.sleep(chance.uniform(0.8, 2.0))
        killed_at = time.monotonic()
        rig.kill_gateway()
        client.stopped = True
        await running
        everything |= {seen.client_id: (seen, killed_at) for seen in client.sightings}
        say(f"death {number + 1} of {rounds} after {len(client.sightings)} requests")
        await asyncio.to_thread(rig.start_gateway)
    await asyncio.to_thread(rig.await_drained)
    rig.ask_gateway_to_leave()
    await asyncio.to_thread(rig.await_end)
    entries = read_ledger(rig.url)
    ids = Counter(entry.client_id for entry in entries)
    by_id = {entry.client_id: entry for entry in entries}
    settled = [seen for seen, killed_at in everything.values() if (seen.ended_at or killed_at) < killed_at - COMMIT_S]
    live = [
        seen for seen, killed_at in everything.values() if seen.live and (seen.first_at or 1e18) < killed_at - COMMIT_S
    ]
    young = len(everything) - len(settled) - len(live)
    lost = [seen.client_id for seen in settled if seen.client_id not in by_id]
    wrong = [
        f"{seen.client_id} {seen.kind} {seen.status} {seen.code}: {by_id[seen.client_id]}"
        for seen in settled
        if seen.client_id in by_id and seen.expect() and by_id[seen.client_id].standing not in seen.expect()
    ]
    forgiven = [
        f"{seen}: {by_id.get(seen.client_id)}"
        for seen in live
        if seen.client_id not in by_id or by_id[seen.client_id].slis[0] != "b"
    ]
    finding.compare("settled requests that were lost", lost, [])
    finding.compare("settled requests with another verdict", wrong, [])
    finding.compare("requests under way at a death that are not bad", forgiven, [])
    finding.compare("entries that are there twice", [name for name, count in ids.items() if count > 1], [])
    finding.compare("entries of which no client knows", sorted(map(str, ids.keys() - everything.keys())), [])
    check_chain(rig.url, finding)
    finding.figures = {
        "deaths": rounds, "requests": len(everything), "settled_before": len(settled), "settled_lost": len(lost),
        "under_way": len(live), "under_way_judged_bad": len(live) - len(forgiven), "younger_than_a_commit": young,
        "of_these_recorded": sum(name in by_id for name in everything) - len(settled) - len(live) + len(lost),
        "died_entries": sum(entry.outcome == "gateway_fault" and not entry.settled for entry in entries),
    }  # fmt: skip
    return finding


# ---------------------------------------------------------------- a database that is away


async def go_without(
    rig: Rig, away_s: float, break_off: Callable[[], None], mend: Callable[[], None], say: Say
) -> Finding:
    """Load while the database is there, away for ``away_s``, and there again. The gateway runs already."""
    finding = Finding()
    latencies: dict[str, list[float]] = {}
    sightings: list[Sighting] = []

    async def load(phase: str, length_s: float) -> None:
        client = LoggingClient(rig.port, CALLERS, len(latencies) + 50)
        running = asyncio.ensure_future(client.run(None, 8, {Kind.STREAM: 1}))
        until = time.monotonic() + length_s
        while time.monotonic() < until:
            await asyncio.sleep(min(5.0, length_s))
            say(f"{phase}: {len(client.sightings)} requests, {until - time.monotonic():.0f} s left")
        client.stopped = True
        await running
        sightings.extend(client.sightings)
        latencies[phase] = sorted(
            seen.first_at - seen.sent_at for seen in client.sightings if seen.first_at is not None
        )

    await load("there", min(away_s, 20.0))
    break_off()
    await load("away", away_s)
    waiting = rig.read_figure("sluice_ledger_waiting_entries") if away_s > 5 else None
    was_away = rig.read_figure("sluice_ledger_database_away")
    lost = rig.read_figure("sluice_ledger_lost_total")
    mend()
    await load("there again", min(away_s, 20.0))
    await asyncio.to_thread(rig.await_drained)
    rig.ask_gateway_to_leave()
    await asyncio.to_thread(rig.await_end)
    ids = Counter(entry.client_id for entry in read_ledger(rig.url))
    sent = {seen.client_id for seen in sightings if seen.reached}
    finding.compare("the database was seen to be away", was_away, 1.0)
    finding.compare("entries lost", lost, 0.0)
    finding.compare("requests of which there is no entry", sorted(sent - ids.keys())[:5], [])
    finding.compare("entries that are there twice", [name for name, count in ids.items() if count > 1], [])
    check_chain(rig.url, finding)
    finding.figures = {
        "away_s": away_s, "requests": len(sightings), "waiting_at_the_end": waiting,
        "first_token_ms": {
            phase: {
                "p50": round(1000 * found[len(found) // 2], 2), "p99": round(1000 * found[len(found) * 99 // 100], 2)
            }
            for phase, found in latencies.items()
        },
    }  # fmt: skip
    return finding


def lock_sqlite(path: Path) -> tuple[Callable[[], None], Callable[[], None]]:
    """Two switches: one takes the database file for oneself, as a backup that hangs would, one lets go of it."""
    import sqlite3

    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30.0)
    return lambda: connection.execute("BEGIN EXCLUSIVE").close(), lambda: connection.execute("ROLLBACK").close()


def main() -> int:
    """Run one check from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("check", choices=("reconcile", "deaths", "away"))
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--restarts", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first-port", type=int, default=23800)
    options = parser.parse_args()

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="sluice-record-") as name:
        folder = Path(name)
        with open_rig(folder, options.first_port) as rig:
            if options.check == "reconcile":
                finding = asyncio.run(reconcile(rig, options.requests, options.restarts, say, options.seed))
            elif options.check == "deaths":
                finding = asyncio.run(die_often(rig, options.rounds, say, options.seed))
            else:
                finding = asyncio.run(go_without(rig, options.seconds, *lock_sqlite(folder / "ledger.db"), say))
    known = json.loads(REPORT.read_text()) if REPORT.exists() else {}
    known[options.check] = finding.figures | {"faults": finding.faults}
    REPORT.write_text(json.dumps(known, indent=2) + "\n")
    for key, value in finding.figures.items():
        print(f"{key:<24}{value}")
    for fault in finding.faults:
        print(f"FAULT {fault}")
    return 1 if finding.faults else 0


if __name__ == "__main__":
    sys.exit(main())
