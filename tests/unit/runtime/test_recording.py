"""Bounds of journal files, and reading one that ended suddenly."""

import pytest

from service.domain.event import Woken
from service.flow.config import FlowConfig
from service.runtime.journal import (
    JournalError,
    JournalHeader,
    encode_header,
    encode_record,
    load_journal,
    read_journal,
)
from service.runtime.recording import JournalFile, open_journal

HEADER = JournalHeader(7, FlowConfig(), 12.5)
LINE = encode_record((1.0, Woken(), []))


def test_a_full_file_is_left_as_it_is(tmp_path):
    file = JournalFile(tmp_path / "j", HEADER, batch=1, bytes_max=len(encode_header(HEADER)) + 2 * len(LINE))
    for _ in range(5):
        file.observe(1.0, Woken(), [])
        file.flush()
        file._writing.result()
    file.close()
    journal = load_journal(tmp_path / "j")
    assert (len(journal.records), journal.dropped, file.dropped) == (2, 0, 3)
    assert journal.header == HEADER


def test_the_journal_of_the_last_start_is_kept(tmp_path):
    assert open_journal(None, 1 << 20, HEADER) is None
    for _ in range(3):
        file = open_journal(str(tmp_path / "new" / "j"), 1 << 20, HEADER)
        file.close()
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["j", "j.1"]


class TestReading:
    def test_up_to_a_line_that_was_cut(self):
        journal = read_journal([encode_header(HEADER), LINE, LINE[:-5]], print)
        assert (len(journal.records), journal.dropped) == (1, 1)

    def test_up_to_a_gap(self):
        journal = read_journal([encode_header(HEADER), LINE, b'{"dropped":3}\n', LINE, LINE], print)
        assert (len(journal.records), journal.dropped) == (1, 5)

    def test_a_broken_line_is_named(self):
        with pytest.raises(JournalError, match="line 2: not JSON"):
            read_journal([encode_header(HEADER), b"x\n"], print)
        with pytest.raises(JournalError, match="line 1: the journal is empty"):
            read_journal([], print)

    def test_it_tells_how_far_it_is(self):
        told = []
        read_journal([encode_header(HEADER), *([LINE] * 40_000)], told.append)
        assert told == [20_000, 40_000]
