"""What is written once is found again, whatever the process died of."""

import os
import shutil

import pytest

from service.ledger.drain import read_head
from service.ledger.segment import follow_entries, list_segments, read_segment
from service.ledger.spool import Spool, SpoolFullError, SpoolTakenError
from tests.support.record import NOVEMBER_S, build_row_of, build_settled

MANY = 1 << 30


def row(number):
    return build_row_of(build_settled(number, NOVEMBER_S + number))


def opened(name):
    return {
        "request_id": name, "tenant": "acme", "tier": "priority", "tier_asked": None, "kind": "chat_completions",
        "stream": True, "prompt_bytes": 10, "arrived_us": 5, "marks": [],
    }  # fmt: skip


def read_ids(folder):
    found = []
    for path in list_segments(folder):
        reading = read_segment(path)
        if reading.head is not None:
            found += [line.row[0] for line, _ in follow_entries(path, 0, read_first(path), 10**9)]
    return found


def read_first(path):
    head = read_head(path)
    assert head is not None
    return head


def test_entries_are_found_again_and_the_chain_goes_on(tmp_path):
    spool = Spool(tmp_path, MANY)
    spool.write([], [row(1), row(2)])
    head = spool.head
    spool.close()
    again = Spool(tmp_path, MANY)
    assert (again.head, again.died) == (head, [])
    again.write([], [row(3)])
    assert again.head.seq == 3
    assert read_ids(tmp_path) == ["r-1", "r-2", "r-3"]
    again.close()


def test_what_was_under_way_is_found_and_stays_open_until_it_has_an_entry(tmp_path):
    spool = Spool(tmp_path, MANY)
    spool.write([opened("r-1"), opened("r-2"), opened("r-3")], [row(2)])
    spool.close()
    for _ in range(2):  # another death before anything was written changes nothing
        spool = Spool(tmp_path, MANY)
        assert sorted(one["request_id"] for one in spool.died) == ["r-1", "r-3"]
        spool.close()
    spool = Spool(tmp_path, MANY)
    spool.write([], [row(1), row(3)])
    spool.close()
    spool = Spool(tmp_path, MANY)
    assert spool.died == []
    spool.close()


def test_long_requests_outlive_the_segment_they_were_announced_in(tmp_path):
    spool = Spool(tmp_path, MANY, segment_bytes=4096)
    spool.write([opened("long")], [])
    for number in range(60):
        spool.write([], [row(number)])
    segments = list_segments(tmp_path)
    assert len(segments) > 3
    for path in segments[:-1]:
        path.unlink()
    spool.close()
    again = Spool(tmp_path, MANY, segment_bytes=4096)
    assert [one["request_id"] for one in again.died] == ["long"]
    again.close()


def test_every_torn_end_is_cut_off_and_nothing_before_it(tmp_path):
    whole = tmp_path / "whole"
    spool = Spool(whole, MANY)
    spool.write([opened("r-9")], [row(1), row(2)])
    spool.close()
    (path,) = list_segments(whole)
    data = path.read_bytes()
    ends = [index + 1 for index, byte in enumerate(data) if byte == ord("\n")]
    for cut in range(0, len(data) + 1, 7):
        folder = tmp_path / str(cut)
        shutil.copytree(whole, folder)
        os.truncate(folder / path.name, cut)
        lines = sum(end <= cut for end in ends)
        again = Spool(folder, MANY)
        assert again.head.seq == max(lines - 2, 0)
        assert len(again.died) == (1 if lines >= 2 else 0)
        again.write([], [row(7)])
        assert again.head.seq == max(lines - 2, 0) + 1
        again.close()
        shutil.rmtree(folder)


def test_a_line_that_was_changed_ends_what_counts_and_is_kept_for_a_person(tmp_path):
    spool = Spool(tmp_path, MANY, segment_bytes=4096)
    for number in range(30):
        spool.write([], [row(number)])
    spool.close()
    first = list_segments(tmp_path)[0]
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 1
    first.write_bytes(data)
    again = Spool(tmp_path, MANY)
    assert first.with_suffix(".damaged").read_bytes() == data
    assert again.head.seq == 30  # the later segments say where the chain stood
    again.close()


def test_a_full_spool_refuses_a_piece_as_a_whole(tmp_path):
    spool = Spool(tmp_path, 8192, segment_bytes=1 << 20)

    def write_on():
        for number in range(1000):
            spool.write([], [row(number)])

    with pytest.raises(SpoolFullError, match="of 8192 bytes"):
        write_on()
    assert spool.bytes <= 8192
    seq = spool.head.seq
    for path in list_segments(tmp_path)[:-1]:
        path.unlink()  # what the clerk does with segments that are in the database
    spool.write([], [row(7)])
    assert spool.head.seq == seq + 1
    spool.close()


def test_one_process_writes_to_a_spool(tmp_path):
    spool = Spool(tmp_path, MANY)
    with pytest.raises(SpoolTakenError, match="a spool of its own"):
        Spool(tmp_path, MANY)
    spool.close()
    Spool(tmp_path, MANY).close()


def test_a_disk_that_fails_in_the_middle_leaves_nothing_of_the_piece(tmp_path, monkeypatch):
    spool = Spool(tmp_path, MANY)
    spool.write([], [row(1)])
    real = os.fsync
    failures = iter([OSError(28, "No space left on device")])

    def fail_once(handle):
        for error in failures:
            raise error
        real(handle)

    monkeypatch.setattr(os, "fsync", fail_once)
    with pytest.raises(OSError, match="No space"):
        spool.write([], [row(2)])
    assert spool.head.seq == 1
    spool.write([], [row(2), row(3)])
    assert read_ids(tmp_path) == ["r-1", "r-2", "r-3"]
    spool.close()
