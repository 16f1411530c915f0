"""Entries go from the loop to the spool; what finds no room is counted and said in the chain."""

import threading

from service.domain.outcome import Outcome
from service.ledger.bookkeeper import Bookkeeper
from service.ledger.entry import FIELDS, LOST
from service.ledger.segment import follow_entries, list_segments
from service.ledger.spool import Spool, SpoolFullError
from tests.support.record import NOVEMBER_S, TERMS, build_settled
from tests.unit.ledger.test_spool import MANY, read_first


class Time:
    def __init__(self):
        self.at = 1000.0

    def now(self):
        return self.at

    def wall(self):
        return self.at + NOVEMBER_S - 1000.0


def keep(spool, time=None, **more):
    time = time or Time()
    return Bookkeeper(spool, TERMS, time.now, time.wall, **more)


def settled(number, outcome=Outcome.COMPLETED):
    return build_settled(number, 1000.0, outcome)


def read_entries(folder):
    found = []
    for path in list_segments(folder):
        found += [
            dict(zip(FIELDS, line.row, strict=True)) for line, _ in follow_entries(path, 0, read_first(path), 10**9)
        ]
    return found


def test_a_settled_request_is_an_entry_with_wall_time(tmp_path):
    book = keep(Spool(tmp_path, MANY))
    book.settle(settled(1))
    assert book.pending == 1
    book.flush()
    book.close()
    (entry,) = read_entries(tmp_path)
    assert entry["arrived_us"] == int(NOVEMBER_S * 1_000_000)
    assert (entry["first_token_us"], entry["last_token_us"]) == (500_000, 700_000)
    assert (entry["tenant"], entry["contract"], entry["tier"], entry["slis"]) == ("acme", "a1", "priority", "gggg")
    assert (book.seq, book.pending, book.lost) == (1, 0, 0)


def test_what_a_worker_makes_up_fits_into_a_database(tmp_path):
    book = keep(Spool(tmp_path, MANY))
    book.settle(build_settled(1, 1000.0, prompt_tokens=1 << 80, cached_tokens=-5, output_tokens=1 << 70))
    book.close()
    (entry,) = read_entries(tmp_path)
    assert (entry["prompt_tokens"], entry["cached_tokens"], entry["output_tokens"]) == (1 << 53, 0, 1 << 53)


def test_only_what_is_still_under_way_is_registered(tmp_path):
    book = keep(Spool(tmp_path, MANY))
    live, done = settled(1, None), settled(2)
    live.outcome = None
    book.open(live)
    book.open(done)
    book.settle(done)
    book.close()
    again = Spool(tmp_path, MANY)
    assert [one["request_id"] for one in again.died] == ["r-1"]
    again.close()


def test_a_request_that_died_with_the_gateway_becomes_a_bad_entry(tmp_path):
    first = keep(Spool(tmp_path, MANY))
    live = settled(1, None)
    live.outcome = None
    first.open(live)
    first.flush()
    first.close()
    second = keep(Spool(tmp_path, MANY))
    assert second.pending == 1
    second.close()
    (entry,) = read_entries(tmp_path)
    assert (entry["request_id"], entry["outcome"], entry["standing"]) == ("r-1", "gateway_fault", "missed")
    assert (entry["fault"], entry["slis"], entry["settled_us"]) == ("us", "bb-b", None)
    assert (entry["tenant"], entry["tier"], entry["prompt_bytes"]) == ("acme", "priority", 3200)
    third = keep(Spool(tmp_path, MANY))
    assert third.pending == 0
    third.close()


class Broken(Spool):
    """A spool whose disk is full until somebody makes room."""

    full = True

    def write(self, opened, rows):
        if self.full:
            raise SpoolFullError("no room")
        super().write(opened, rows)


def test_a_full_disk_keeps_entries_in_memory_then_counts_them_and_says_so_in_the_chain(tmp_path):
    spool, time = Broken(tmp_path, MANY), Time()
    book = keep(spool, time, pending_max=3)

    def flush():
        book.flush()
        book._writing.result()

    for number in range(5):
        book.settle(settled(number))
    flush()
    assert (book.fault, book.pending, book.lost) == ("no room", 3, 2)
    book.settle(settled(5))
    spool.full = False
    flush()
    assert (book.pending, book.lost) == (3, 3)  # not tried again within the second
    time.at += 2.0
    flush()
    assert (book.fault, book.pending, book.lost) == (None, 0, 3)
    book.settle(settled(6))
    book.close()
    entries = read_entries(tmp_path)
    assert [entry["request_id"] for entry in entries] == ["r-0", "r-1", "r-2", "", "r-6"]
    assert (entries[3]["outcome"], entries[3]["stands_for"]) == (LOST, 3)


def test_a_disk_that_hangs_never_holds_the_loop(tmp_path):
    hung, release = threading.Event(), threading.Event()

    class Hanging(Spool):
        def write(self, opened, rows):
            hung.set()
            release.wait(30)
            super().write(opened, rows)

    book = keep(Hanging(tmp_path, MANY), pending_max=10)
    book.settle(settled(0))
    book.flush()
    assert hung.wait(30)
    for number in range(1, 40):
        book.open(settled(number))
        book.settle(settled(number))
        book.flush()  # returns though the disk does not
    assert book.pending == 11  # one is in the thread's hands
    assert len(book._opened) <= 10
    release.set()
    book._writing.result()
    book.flush()
    book.close()
    assert book.lost == 29
    entries = read_entries(tmp_path)
    assert len(entries) == 12
    assert sum(entry["stands_for"] for entry in entries) == 40


def test_what_cannot_be_written_at_the_end_is_logged(tmp_path, caplog):
    book = keep(Broken(tmp_path, MANY))
    book.settle(settled(1))
    book.close()
    assert "1 entries are lost with this process: no room" in caplog.text


def test_nothing_to_do_wakes_no_thread(tmp_path):
    book = keep(Spool(tmp_path, MANY))
    book.flush()
    assert book._writing is None
    assert book.spool_bytes == 0
    assert len(book.chain) == 16
    book.close()
