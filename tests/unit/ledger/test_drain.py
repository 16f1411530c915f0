"""Each entry comes into the database once, with its rollup, whatever dies in between."""

import random

import pytest
from sqlalchemy.exc import OperationalError

from service.ledger import spool as spool_module
from service.ledger.book import Book, ChainConflictError
from service.ledger.drain import Drain
from service.ledger.entry import FIELDS, FIRST_HASH, weigh
from service.ledger.query import read_chains, read_entries, read_hours, span_of
from service.ledger.rollup import decode_tally, encode_tally, key_of
from service.ledger.segment import list_segments
from service.ledger.spool import Spool
from service.slo.attainment import Tally, sum_up
from tests.support.record import DAY_S, NOVEMBER_S, Books, build_random, build_row_of, build_settled


def fill(books, count, seed=1, spread_s=3 * 3600.0):
    chance = random.Random(seed)
    settled = [build_random(number, NOVEMBER_S + chance.random() * spread_s, chance) for number in range(count)]
    for start in range(0, count, 50):
        books.record(settled[start : start + 50])
    return settled


def brute_force(rows):
    tallies = {}
    for row in rows:
        fields = dict(zip(FIELDS, row, strict=True))
        tallies.setdefault(key_of("c", fields), Tally()).add(weigh(fields))
    return {key: encode_tally(key, tally)["sums"] for key, tally in tallies.items()}


def test_entries_and_rollups_agree_with_a_count_by_hand(books):
    settled = fill(books, 500)
    assert books.take_all() == 500
    with books.engine.connect() as connection:
        chain = books.spool.head.chain
        entries = [row for _, row, _ in read_entries(connection, "2026-11", chain)]
        hours = list(read_hours(connection, span_of("2026-11"), None))
    assert entries == [build_row_of(one) for one in settled]
    by_hand = brute_force(entries)
    stored = {}
    for hour in hours:
        key = key_of("c", {"arrived_us": hour.hour * 3_600_000_000, "tenant": hour.tenant, "tier": hour.tier,
                           "size_class": hour.size_class})  # fmt: skip
        stored[key] = encode_tally(key, hour.tally)["sums"]
    assert stored == by_hand
    assert sum_up(hour.tally for hour in hours).requests == 500


def test_a_tally_is_read_back_as_it_was_stored(books):
    fill(books, 200)
    books.take_all()
    for row in books.rows("select * from rollups"):
        fields = dict(row._mapping)
        key = key_of("c", {"arrived_us": 0, "tenant": None, "tier": None, "size_class": None})
        assert encode_tally(key, decode_tally(fields))["sums"] == fields["sums"]


def test_draining_again_from_the_start_takes_nothing_twice(books):
    fill(books, 120)
    assert books.drain.step(1) == 120
    again = Drain(books.folder, Book(books.engine))
    assert again.step(2) == 0
    assert again.seq == 120
    books.record([build_settled(999, NOVEMBER_S)])
    assert again.step(3) == 1
    assert books.rows("select count(*), count(distinct seq), max(seq) from entries_2026_11") == [(121, 121, 121)]


def test_segments_that_are_in_the_database_are_taken_away_but_never_the_last(tmp_path):
    books = Books(tmp_path, segment_bytes=4096)
    fill(books, 300)
    assert len(list_segments(books.folder)) > 5
    assert books.take_all() == 300
    assert len(list_segments(books.folder)) == 1
    again = Drain(books.folder, Book(books.engine))
    assert again.step(2) == 0
    books.record([build_settled(999, NOVEMBER_S)])
    assert books.take_all() == 1
    books.close()


def test_a_transaction_that_fails_leaves_nothing_and_is_made_again(books, monkeypatch):
    fill(books, 100)
    real = Book._add_up

    def fail(self, connection, touched):
        real(self, connection, touched)
        raise OperationalError("insert", {}, Exception("the server closed the connection"))

    monkeypatch.setattr(Book, "_add_up", fail)
    with pytest.raises(OperationalError):
        books.drain.step(1)
    monkeypatch.undo()
    books.book.forget()
    books.drain.forget()
    assert books.take_all() == 100
    assert books.rows("select sum(entries) from rollups") == [(100,)]
    assert books.rows("select count(*) from entries_2026_11") == [(100,)]


def test_a_month_has_a_table_of_its_own_and_a_chain_goes_through_both(books):
    books.record([build_settled(1, NOVEMBER_S - 1.0), build_settled(2, NOVEMBER_S), build_settled(3, NOVEMBER_S - 0.5)])
    books.take_all()
    assert books.rows("select seq from entries_2026_10 order by seq") == [(1,), (3,)]
    assert books.rows("select seq from entries_2026_11") == [(2,)]
    assert books.rows("select month from months order by month") == [("2026-10",), ("2026-11",)]


def test_old_months_are_dropped_and_their_sums_stay(books):
    books.record(
        [build_settled(1, NOVEMBER_S - 40 * DAY_S), build_settled(2, NOVEMBER_S - 1), build_settled(3, NOVEMBER_S)]
    )
    books.take_all()
    assert books.book.drop_months_before("2026-11", 5) == ["2026-09", "2026-10"]
    assert books.book.drop_months_before("2026-11", 6) == []
    assert books.rows("select sum(entries) from rollups") == [(3,)]
    assert books.rows("select name from sqlite_master where name like 'entries%' and type = 'table'") == [
        ("entries_2026_11",)
    ]
    with books.engine.connect() as connection:
        (chain,) = read_chains(connection)
    assert (chain.dropped_seq, chain.seq) == (2, 3)
    books.record([build_settled(4, NOVEMBER_S)])
    assert books.take_all() == 1


def test_a_database_that_lost_what_the_spool_let_go_of_is_not_written_on(tmp_path):
    books = Books(tmp_path, segment_bytes=4096)
    fill(books, 300)
    books.take_all()
    books.run("update chains set seq = seq - 200")
    with pytest.raises(ChainConflictError, match="the database ends with"):
        Drain(books.folder, Book(books.engine)).step(1)
    books.close()


def test_a_database_that_has_another_entry_under_the_same_number_is_not_written_on(books):
    fill(books, 10)
    books.take_all()
    books.run("update chains set hash = :other", other=FIRST_HASH)
    books.record([build_settled(999, NOVEMBER_S)])
    with pytest.raises(ChainConflictError, match="the database has entry 10"):
        Drain(books.folder, Book(books.engine)).step(1)


def test_two_clerks_of_one_chain_cannot_both_write(books):
    fill(books, 10)
    other = Drain(books.folder, Book(books.engine))
    assert other._find_place(1)
    books.take_all()
    with pytest.raises((ChainConflictError, OperationalError, Exception), match=r"not at entry 0|UNIQUE"):
        other.step(1)
    assert books.rows("select count(*) from entries_2026_11") == [(10,)]


def test_a_fresh_database_takes_a_chain_up_where_the_spool_begins(tmp_path):
    books = Books(tmp_path, segment_bytes=4096)
    fill(books, 300)
    books.take_all()
    other = Books(tmp_path / "other", f"sqlite:///{tmp_path}/fresh.db")
    drain = Drain(books.folder, other.book)
    taken = drain.step(1)
    with other.engine.connect() as connection:
        (chain,) = read_chains(connection)
    assert (chain.dropped_seq + taken, chain.seq) == (300, 300)
    books.close()
    other.close()


def test_an_empty_folder_has_nothing_to_take(books):
    assert books.drain.step(1) == 0
    assert books.drain.seq is None


def test_a_missing_segment_is_said_and_nothing_after_it_is_taken(tmp_path):
    books = Books(tmp_path, segment_bytes=4096)
    fill(books, 300)
    segments = list_segments(books.folder)
    segments[2].unlink()
    with pytest.raises(ChainConflictError, match="begins after entry"):
        books.take_all()
    books.close()


def test_a_spool_that_goes_on_after_a_restart_is_followed(tmp_path):
    books = Books(tmp_path)
    fill(books, 20)
    books.take_all()
    books.spool.close()
    books.spool = Spool(books.folder, 1 << 30)
    books.record([build_settled(999, NOVEMBER_S)])
    assert books.take_all() == 1
    assert books.rows("select count(distinct chain) from entries_2026_11") == [(1,)]
    books.close()


def test_what_was_taken_before_the_writer_cut_it_off_is_not_taken_twice_nor_the_end(books, monkeypatch):
    """The disk fills in the middle of a write: for a moment whole lines of it stand there, and the clerk looks then."""
    books.record([build_settled(number, NOVEMBER_S) for number in range(5)])
    books.take_all()
    write_whole = spool_module._write_whole

    def write_half(file, data):
        file.write(data[: data.index(b"\n", len(data) // 2) + 1])
        while books.drain.step(0):
            pass
        raise OSError(28, "no space left on device")

    more = [build_settled(number, NOVEMBER_S) for number in range(5, 15)]
    monkeypatch.setattr(spool_module, "_write_whole", write_half)
    with pytest.raises(OSError, match="no space"):
        books.record(more)
    monkeypatch.setattr(spool_module, "_write_whole", write_whole)
    books.record(more)
    books.record([build_settled(number, NOVEMBER_S) for number in range(15, 30)])
    books.take_all()
    assert books.drain.seq == books.spool.head.seq == 30
    assert books.rows("select count(*), count(distinct seq) from entries_2026_11") == [(30, 30)]
