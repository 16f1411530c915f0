"""The clerk goes on whatever happens to its database, and says what is wrong."""

import json
from pathlib import Path

import pytest
from alembic import op

from service.ledger import clerk as clerk_module
from service.ledger.book import Book
from service.ledger.clerk import PAUSE_S, Clerk, ClerkConfig, read_config
from service.ledger.database import is_ledger, open_database
from service.ledger.location import LedgerUrlError, check_url
from service.ledger.query import read_terms
from service.ledger.segment import list_segments
from service.ledger.spool import Spool
from tests.support.record import DAY_S, DOCUMENT, NOVEMBER_S, build_row_of, build_settled


class Wall:
    def __init__(self, at):
        self.at = at

    def __call__(self):
        return self.at


class Office:
    """A spool, a clerk, and the hands of a clock."""

    def __init__(self, folder: Path):
        self.wall = Wall(NOVEMBER_S + 5 * DAY_S)
        self.spool = Spool(folder / "spool", 1 << 30)
        self.file = folder / "db" / "ledger.db"
        self.url = f"sqlite:///{self.file}"
        self.clerk = Clerk(ClerkConfig(self.url, folder / "spool", 13), self.wall)

    def record(self, *numbers, **more):
        rows = [build_row_of(build_settled(number, NOVEMBER_S + number, **more)) for number in numbers]
        self.spool.write([], rows)


@pytest.fixture
def office(tmp_path):
    place = Office(tmp_path)
    yield place
    place.clerk.close()
    place.spool.close()


def test_it_makes_the_tables_and_takes_what_is_there(office):
    office.clerk.note_terms("c0ffee", DOCUMENT, 1)
    office.record(1, 2)
    assert office.clerk.step() == PAUSE_S
    assert office.clerk.status == {"seq": 2, "fault": None}
    told = office.clerk.answer({"tenant": "acme"})
    assert told["month"] == "2026-11"
    assert told["tiers"]["priority"]["good"] == {"availability": 2, "ttft": 2, "tpot": 2, "all": 2}
    assert office.clerk.answer({"tenant": "nobody"})["tiers"] == {}


def test_a_database_that_cannot_be_opened_costs_time_and_nothing_else(office, caplog):
    office.file.parent.rmdir()
    office.file.parent.write_text("in the way")
    office.record(1)
    pauses = [office.clerk.step() for _ in range(4)]
    assert pauses == [1.0, 2.0, 5.0, 5.0]
    assert "unable to open database file" in office.clerk.status["fault"]
    assert sum("cannot be written" in message for message in caplog.messages) == 1
    assert "unable to open" in office.clerk.answer({"tenant": "acme"})["fault"]
    office.file.parent.unlink()
    office.file.parent.mkdir()
    office.clerk.step()
    assert office.clerk.status == {"seq": 1, "fault": None}


def test_a_death_while_tables_are_made_leaves_none_of_them(tmp_path, monkeypatch):
    engine = open_database(f"sqlite:///{tmp_path}/ledger.db")
    create, made = op.create_table, []

    def create_one(name, *columns):
        if made:
            raise KeyboardInterrupt
        made.append(name)
        create(name, *columns)

    monkeypatch.setattr(op, "create_table", create_one)
    with pytest.raises(KeyboardInterrupt):
        Book(engine).prepare()
    monkeypatch.setattr(op, "create_table", create)
    assert made
    Book(engine).prepare()
    with engine.connect() as connection:
        assert is_ledger(connection)
    engine.dispose()


def test_a_full_batch_is_followed_by_the_next_at_once(office, monkeypatch):
    monkeypatch.setattr(clerk_module, "BATCH", 3)
    office.record(1, 2, 3)
    assert office.clerk.step() == 0.0


def test_two_clerks_wait_for_each_other(office, tmp_path):
    office.record(1)
    office.clerk.step()
    other = Clerk(ClerkConfig(office.url, tmp_path / "spool", 13), office.wall)
    assert other.step() == 0.2
    assert other.status == {"seq": None, "fault": None}
    office.clerk.close()
    office.clerk._lock = None
    other.step()
    assert other.status["seq"] == 1
    other.close()


def test_what_many_short_lives_left_is_taken_in_one_go(office, tmp_path):
    for number in range(4):
        office.record(number)
        office.spool.close()
        office.spool = Spool(tmp_path / "spool", 1 << 30)
    assert len(list_segments(tmp_path / "spool")) == 4
    pauses = []
    while not office.clerk.idle:
        pauses.append(office.clerk.step())
    assert pauses == [0.0, 0.0, 0.0, PAUSE_S, PAUSE_S]
    assert office.clerk.status == {"seq": 4, "fault": None}


def test_months_past_their_time_are_dropped_once_an_hour(office, caplog):
    office.spool.write([], [build_row_of(build_settled(1, NOVEMBER_S - 450 * DAY_S))])
    office.clerk.step()
    office.wall.at += 3601.0
    with caplog.at_level("INFO"):
        office.clerk.step()
    assert "entries of 2025-08 were dropped" in caplog.text
    engine = open_database(office.url)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("select dropped_us from months").scalar_one() > 0
    engine.dispose()


def test_terms_are_noted_once(office):
    for _ in range(2):
        office.clerk.note_terms("c0ffee", DOCUMENT, 1)
    office.clerk.note_terms("decade", DOCUMENT, 2)
    office.clerk.step()
    engine = open_database(office.url)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("select count(*) from terms").scalar_one() == 2
    engine.dispose()


def test_terms_that_are_taken_up_again_are_the_latest_and_a_clerk_that_starts_again_makes_nothing_newer(office):
    for name, since_us in (("one", 1), ("two", 2), ("one", 3), ("two", 2)):
        office.clerk.note_terms(name, DOCUMENT, since_us)
    office.clerk.step()
    engine = open_database(office.url)
    with engine.connect() as connection:
        assert list(read_terms(connection)) == ["two", "one"]
    engine.dispose()


def test_its_first_line_says_where_it_works():
    line = json.dumps({"database": "sqlite:///x.db", "spool": "var/spool/1", "retention_months": 2}).encode()
    assert read_config(line) == ClerkConfig("sqlite:///x.db", Path("var/spool/1"), 2)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite://", "names no file"),
        ("sqlite:///", "names no file"),
        ("ledger.db", "no database that is known"),
        ("mysql://x/y", "no database that is known"),
        ("postgresql://host", "names no database"),
    ],
)
def test_what_is_no_place_for_a_ledger_is_refused_with_the_cure(url, words):
    with pytest.raises(LedgerUrlError, match=words):
        check_url(url)


def test_postgres_needs_its_package(monkeypatch):
    check_url("postgresql://sluice:secret@db:5432/sluice")
    check_url("postgres://sluice@/sluice?host=/var/run/postgresql")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(LedgerUrlError, match=r"sluice\[postgres\]"):
        check_url("postgresql://sluice@db/sluice")


def test_a_file_that_is_not_there_is_not_made_to_be_read(tmp_path):
    with pytest.raises(LedgerUrlError, match="there is no ledger at"):
        open_database(f"sqlite:///{tmp_path}/none.db", read_only=True)
    assert list(tmp_path.iterdir()) == []
