"""Cases D12 to D14 as far as they are about the record (D15, burn rates at low traffic, is with the rules)."""

import asyncio
import contextlib
import os
import signal
import sqlite3
from pathlib import Path

import httpx
import pytest

from loadtests.live.record_check import read_ledger
from loadtests.live.record_client import CALLERS, Kind, LoggingClient
from loadtests.live.record_rig import open_rig

pytestmark = pytest.mark.integration


def rows_of(rig, sql):
    with sqlite3.connect(rig.folder / "ledger.db") as database:
        (table,) = [
            name
            for (name,) in database.execute("select name from sqlite_master where type = 'table'")
            if name.startswith("entries_")
        ]
        return database.execute(sql.format(table=table)).fetchall()


def test_d12_streams_are_measured_at_their_end_and_the_first_token_apart(tmp_path):
    """First token: content, not the role chunk or a comment; duration: the last byte; the queue has its own stamp."""
    with open_rig(tmp_path, 26720, workers=1) as rig:
        rig.set_faults(0, [{"kind": "slow", "factor": 6.0}])
        client = LoggingClient(rig.port, CALLERS[:1], 1, tokens=(60,))
        asyncio.run(client.run(6, 2, {Kind.STREAM: 1}))
        rig.set_faults(0, [{"kind": "die", "after": 8}])
        dying = LoggingClient(rig.port, CALLERS[:1], 2, tokens=(60,))
        asyncio.run(dying.run(3, 1, {Kind.STREAM: 1}))
        rig.await_drained()
        rig.ask_gateway_to_leave()
        rig.await_end()
    columns = (
        "client_request_id, outcome, standing, admitted_us, dispatched_us, first_token_us, last_token_us, settled_us"
    )
    found = {row[0]: row[1:] for row in rows_of(rig, f"select {columns} from {{table}}")}
    for seen in client.sightings:
        outcome, _, *moments = found[seen.client_id]
        admitted, dispatched, first, last, settled = (moment / 1e6 for moment in moments)
        assert outcome == "completed"
        assert 0 <= admitted <= dispatched < first < last <= settled
        assert first == pytest.approx(seen.first_at - seen.sent_at, abs=0.25)
        assert last == pytest.approx(seen.ended_at - seen.sent_at, abs=0.25)
        assert last - first > 0.5  # the generation, which a timer stopped at the headers would miss
    for seen in dying.sightings:
        assert seen.failed
        assert found[seen.client_id][:2] == ("stream_broken", "missed")


def test_d13_what_a_client_writes_makes_no_row_but_its_own(tmp_path):
    with open_rig(tmp_path, 26740, workers=1) as rig:
        before = len(rig.read_metrics().splitlines())
        for number in range(150):
            answer = httpx.post(
                f"http://127.0.0.1:{rig.port}/v1/chat/completions?zebra={number}",
                json={"model": f"model-{number}-zebra", "user": f"user-{number}-zebra", "messages": []},
                headers={"authorization": f"Bearer {CALLERS[0].key}", "x-request-id": f"id {number} zebra"},
                trust_env=False,
            )
            assert answer.status_code == 404
        after = len(rig.read_metrics().splitlines())
        rig.await_drained()
        rig.ask_gateway_to_leave()
        rig.await_end()
    assert after - before <= 3
    assert len(read_ledger(rig.url)) == 150
    assert b"zebra" not in (tmp_path / "ledger.db").read_bytes()
    with sqlite3.connect(tmp_path / "ledger.db") as database:
        assert database.execute("select count(*) from rollups").fetchone()[0] <= 2  # one, or two at the turn of an hour


def test_d14_counters_and_record_outlive_restarts_of_the_clerk(tmp_path):
    """One process serves and counts; the clerk beside it may die as often as it likes."""

    def kill_clerk():
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == rig.process.pid and b"service.clerk" in (folder / "cmdline").read_bytes():
                    os.kill(int(folder.name), signal.SIGKILL)
                    return True
        return False

    with open_rig(tmp_path, 26760, workers=1) as rig:
        client = LoggingClient(rig.port, CALLERS, 1)
        counts, kills = [], 0
        for _ in range(4):
            asyncio.run(client.run(15, 3, {Kind.STREAM: 1}))
            kills += kill_clerk()
            counts.append(rig.read_counts("sluice_requests_total", "outcome").total())
        asyncio.run(asyncio.sleep(3.0))  # another starts two seconds later
        asyncio.run(client.run(15, 3, {Kind.STREAM: 1}))
        rig.await_drained()
        rig.ask_gateway_to_leave()
        rig.await_end()
    assert kills >= 1
    assert counts == [15, 30, 45, 60]
    assert len({entry.client_id for entry in read_ledger(rig.url)}) == len(read_ledger(rig.url)) == 75
