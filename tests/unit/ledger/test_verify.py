"""Whatever is done to entries behind the ledger's back is found."""

import random

import pytest

from service.ledger.database import open_snapshot
from service.ledger.query import read_entries
from service.ledger.verify import verify
from tests.support.record import NOVEMBER_S, Books, build_random, build_settled


@pytest.fixture
def filled(books):
    chance = random.Random(5)
    at_s = NOVEMBER_S - 600.0
    books.record([build_random(number, at_s + number * 6.0, chance) for number in range(200)])  # two months
    books.take_all()
    return books


def look(books):
    with books.engine.connect() as connection:
        return verify(connection)


def test_what_nobody_touched_is_sound(filled):
    found = look(filled)
    assert (found.faults, found.entries, found.chains) == ([], 200, 1)


@pytest.mark.parametrize(
    "change",
    [
        "standing = 'met'", "slis = 'gggg'", "tenant = 'umbra'", "tenant = NULL", "output_tokens = 12345",
        "arrived_us = arrived_us + 1", "reason = 'x'", "request_id = 'other'", "stands_for = 2",
    ],
)  # fmt: skip
def test_one_altered_field_is_found(filled, change):
    column, _, value = change.partition(" = ")
    seq, *_ = filled.rows(f"select seq from entries_2026_11 where {column} is not {value} order by seq limit 1")[0]
    assert filled.run(f"update entries_2026_11 set {change} where seq = :seq", seq=seq) == 1
    assert any(f"entry {seq} is not what was recorded" in fault for fault in look(filled).faults)


def test_a_missing_entry_is_found_wherever_it_was(filled):
    for seq, words in ((1, "entry 1 is missing"), (150, "entry 150 is missing"), (200, "its head names entry 200")):
        saved = [filled.rows(f"select * from entries_2026_{month} where seq = :seq", seq=seq) for month in (10, 11)]
        month, row = next((month, rows[0]) for month, rows in zip((10, 11), saved, strict=True) if rows)
        filled.run(f"delete from entries_2026_{month} where seq = :seq", seq=seq)
        faults = look(filled).faults
        assert any(words in fault for fault in faults), faults
        assert any("were added up" in fault for fault in faults)
        names = ", ".join(f":{name}" for name in row._mapping)
        filled.run(f"insert into entries_2026_{month} values ({names})", **row._mapping)
    assert look(filled).faults == []


def test_two_entries_that_changed_places_are_found(filled):
    for first, second in ((150, -1), (151, 150), (-1, 151)):
        filled.run("update entries_2026_11 set seq = :second where seq = :first", first=first, second=second)
    faults = look(filled).faults
    assert any("entry 150 is not what was recorded" in fault for fault in faults)


def test_a_range_that_is_gone_is_one_fault_of_the_chain(filled):
    filled.run("delete from entries_2026_11 where seq between 140 and 149")
    assert any("entries 140 to 149 are missing" in fault for fault in look(filled).faults)


def test_an_altered_sum_is_found(filled):
    filled.run("update rollups set met = met + 1 where hour = (select max(hour) from rollups where met > 0)")
    faults = look(filled).faults
    assert faults
    assert all("were added up" in fault for fault in faults)


def test_a_sum_that_is_gone_is_found(filled):
    filled.run("delete from rollups where missed > 0")
    assert any("are recorded and in no sum" in fault for fault in look(filled).faults)


def test_a_chain_without_a_head_is_found(filled):
    filled.run("delete from chains")
    assert any("has entries and no head" in fault for fault in look(filled).faults)


def test_a_month_that_is_gone_is_found(filled):
    filled.run("drop table entries_2026_10")
    faults = look(filled).faults
    assert "the entries of 2026-10 are gone" in faults
    assert any("are missing" in fault for fault in faults)


def test_an_entry_moved_to_another_month_is_found(filled):
    filled.run("insert into entries_2026_11 select * from entries_2026_10 where seq = 3")
    filled.run("delete from entries_2026_10 where seq = 3")
    assert any("stands in the wrong month" in fault for fault in look(filled).faults)


def test_faults_beyond_a_hundred_are_counted(filled):
    filled.run("update entries_2026_11 set reason = 'x'")
    filled.run("update entries_2026_10 set reason = 'x'")
    found = look(filled)
    assert (len(found.faults), found.more) == (100, 100)


def test_what_follows_a_dropped_month_can_still_be_verified(filled):
    filled.book.drop_months_before("2026-11", 1)
    assert look(filled).faults == []
    filled.record([build_settled(999, NOVEMBER_S)])
    filled.take_all()
    assert look(filled).faults == []
    first = filled.rows("select min(seq) from entries_2026_11")[0][0]
    filled.run("update entries_2026_11 set reason = 'x' where seq = :seq", seq=first)
    assert any(f"entry {first} is not what" in fault for fault in look(filled).faults)


def test_a_report_sees_one_moment_while_the_clerk_goes_on(filled):
    with open_snapshot(filled.engine) as connection:
        assert verify(connection).entries == 200
        filled.record([build_settled(number, NOVEMBER_S + number) for number in range(5000, 5050)])
        writer = Books.take_over(filled)
        assert writer.take_all() == 50
        writer.engine.dispose()
        found = verify(connection)
    assert (found.faults, found.entries) == ([], 200)
    assert look(filled).entries == 250


def test_entries_are_read_as_they_were_hashed(filled):
    with filled.engine.connect() as connection:
        rows = list(read_entries(connection, "2026-11", filled.spool.head.chain))
    assert [seq for seq, _, _ in rows] == sorted(seq for seq, _, _ in rows)
    assert rows[-1][2] == filled.spool.head.digest
