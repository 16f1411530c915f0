"""The same ledger in a real PostgreSQL: entries, rollups, dropped months, verification, and a server that goes away."""

import asyncio
import contextlib
import random
import tempfile
from pathlib import Path

import pytest

from loadtests.live.record_check import go_without
from loadtests.live.record_rig import open_rig
from service.ledger.book import Book
from service.ledger.drain import Drain
from service.ledger.report import build_report
from service.ledger.verify import verify
from tests.support.postgres import run_postgres
from tests.support.record import DAY_S, NOVEMBER_S, Books, build_random, build_settled

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def postgres():
    with tempfile.TemporaryDirectory(prefix="sluice-pg-") as folder, run_postgres(Path(folder) / "server") as server:
        yield server


@pytest.fixture
def books(postgres, tmp_path):
    kept = Books(tmp_path, postgres.url)
    yield kept
    _empty(kept)


def _empty(books):
    books.run("drop schema public cascade")
    books.run("create schema public")
    books.close()


@pytest.fixture
def open_more():
    """Further books, closed whatever becomes of the test."""
    with contextlib.ExitStack() as stack:

        def open_one(*where):
            return stack.enter_context(contextlib.closing(Books(*where)))

        yield open_one


def test_what_sqlite_says_postgres_says(books, open_more, tmp_path):
    chance = random.Random(3)
    settled = [build_random(number, NOVEMBER_S + chance.random() * 5 * DAY_S, chance) for number in range(600)]
    other = open_more(tmp_path / "lite")
    accounts = []
    for one in (books, other):
        one.record(settled)
        assert one.take_all() == 600
        with one.engine.connect() as connection:
            assert verify(connection).faults == []
            report = build_report(connection, "2026-11", None, NOVEMBER_S + 40 * DAY_S)
        assert report.evidence.entries == report.evidence.counted == 600
        accounts.append([(a.tenant, a.tier, a.total.standings, a.uptime, a.credit, a.classes) for a in report.accounts])
    assert accounts[0] == accounts[1]


def test_draining_twice_and_dropping_a_month(books):
    books.record([build_settled(1, NOVEMBER_S - 1), build_settled(2, NOVEMBER_S), build_settled(3, NOVEMBER_S + 1)])
    books.take_all()
    assert Drain(books.folder, Book(books.engine)).step(2) == 0
    assert books.book.drop_months_before("2026-11", 5) == ["2026-10"]
    books.record([build_settled(4, NOVEMBER_S + 2)])
    books.take_all()
    assert books.rows("select count(*) from entries_2026_11") == [(3,)]
    with books.engine.connect() as connection:
        assert verify(connection).faults == []
    books.run("update entries_2026_11 set tenant = 'umbra' where seq = 3")
    with books.engine.connect() as connection:
        assert any("entry 3 is not what was recorded" in fault for fault in verify(connection).faults)


def test_two_gateways_share_a_database(books, open_more, postgres, tmp_path):
    other = open_more(tmp_path / "other", postgres.url)
    for number in range(20):
        for one in (books, other):
            one.record([build_settled(number, NOVEMBER_S + number)])
            one.drain.step(1)
    with books.engine.connect() as connection:
        found = verify(connection)
        report = build_report(connection, "2026-11", None, NOVEMBER_S + 40 * DAY_S)
    assert (found.faults, found.chains) == ([], 2)
    assert [account.total.requests for account in report.accounts] == [40]


def test_a_server_that_goes_away_costs_no_request_and_no_entry(postgres, tmp_path):
    with open_rig(tmp_path, 27100, ledger=postgres.url) as rig:
        finding = asyncio.run(go_without(rig, 6.0, postgres.stop, postgres.start, lambda line: None))
    _empty(Books(tmp_path / "after", postgres.url))  # the next test finds what the fixture would have left
    assert finding.faults == []
    assert finding.figures["waiting_at_the_end"] > 5
