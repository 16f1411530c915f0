"""Journals: what is written comes back, and what is broken says where."""

import math
import threading

import pytest

from service.domain.command import Dispatch, Enqueue, Grounds, Refuse, Revoke
from service.domain.event import (
    AttemptFailed,
    DrainBegan,
    Event,
    FailureCause,
    FirstTokenSeen,
    PermitEnded,
    ReplicasSeen,
    ReportDue,
    RequestAbandoned,
    RequestArrived,
    Woken,
    WorkerDrainChanged,
    WorkerHealthChanged,
    WorkerJoined,
    WorkerLeft,
    WorkerLoadSeen,
)
from service.domain.load import WorkerLoad
from service.domain.outcome import Outcome
from service.domain.permit import PermitEnding
from service.domain.replica import Certainty, ReplicaReport, WorkerUse
from service.flow.config import BreakerConfig, FlowConfig, Reconfigured
from service.runtime import recording
from service.runtime.journal import (
    JournalError,
    JournalHeader,
    decode_header,
    decode_journal,
    decode_record,
    encode_header,
    encode_record,
    load_journal,
)
from service.runtime.recording import JournalFile, JournalRing
from tests.support.flow import build_request

HEADER = JournalHeader(7, FlowConfig(requests_per_worker=3, breaker=BreakerConfig(open_s=0.1)))
EVENTS = [
    RequestArrived(build_request("r", arrived_at=0.1 + 0.2, pinned_to="a")),
    RequestArrived(build_request("s", ttl_s=math.inf, max_output_tokens=5)),
    RequestAbandoned("r"),
    FirstTokenSeen("r"),
    *[AttemptFailed("r", cause, 1 / 3) for cause in FailureCause],
    *[PermitEnded("r", ending, 12) for ending in PermitEnding],
    PermitEnded("r", PermitEnding.SERVED),
    WorkerJoined("a"),
    WorkerLeft("a"),
    WorkerHealthChanged("a", True),
    WorkerDrainChanged("a", False),
    WorkerLoadSeen("a", WorkerLoad(1e-300, 3, None, 0.7, 5e15 + 0.5)),
    ReportDue("one"),
    ReplicasSeen(
        3,
        (
            ReplicaReport(
                "two", 9, ((0, 1 / 3),), (WorkerUse("a", 8, Certainty.FOUND, 3, promises=((0.05, 2),), slack_s=0.1),)
            ),
        ),
    ),
    DrainBegan(),
    Woken(),
    Reconfigured(FlowConfig(retry_after_max_s=2 / 3)),
]
GROUNDS = Grounds(64, 100, 20, 1 / 3, 2.5, 7, 64, 0.1, 0.2, 3, 8)
COMMANDS = [
    Enqueue("r", 3),
    Enqueue("r", 3, GROUNDS),
    Dispatch("r", "a", 2),
    Dispatch("r", "a", 2, GROUNDS),
    Refuse("r", Outcome.SHED, None, GROUNDS),
    *[Revoke("r", outcome) for outcome in Outcome],
    *[Refuse("r", outcome, 0.1 * 3) for outcome in Outcome],
]
WOKEN = (1.0, Woken(), [])


def test_every_kind_of_event_is_tried_here():
    assert {type(event) for event in EVENTS} == {*Event.__args__, Reconfigured}


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_comes_back(event):
    at, again, commands = decode_record(encode_record((0.1 + 0.7, event, [])))
    assert (at, again, commands) == (0.1 + 0.7, event, [])
    assert type(again) is type(event)


def test_commands_come_back_in_order():
    assert decode_record(encode_record((1.0, Woken(), COMMANDS))) == (1.0, Woken(), COMMANDS)
    assert decode_record(encode_record((1.0, Woken(), (Refuse("r", Outcome.EXPIRED),))))[2] == [
        Refuse("r", Outcome.EXPIRED, None)
    ]


def test_the_header_comes_back():
    assert decode_header(encode_header(HEADER)) == HEADER


def test_a_record_is_one_line():
    assert encode_record((1.5, FirstTokenSeen("a\nb"), [])) == (
        b'{"at":1.5,"event":["FirstTokenSeen",{"request_id":"a\\nb"}],"commands":[]}\n'
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"at":1', "line 2: cut off before its end"),
        (b'{"at":1\n', "line 2: not JSON"),
        (b"[1]\n", "line 2: not an object"),
        (b'{"at":1.0}\n', "line 2: not a _RecordAsWritten: .*event"),
        (b'{"at":1.0,"event":["Teleported",{}],"commands":[]}\n', "line 2: 'Teleported' is not known"),
        (b'{"at":1.0,"event":["WorkerJoined",{}],"commands":[]}\n', "line 2: not a WorkerJoined: .*worker_id"),
        (b'{"at":1.0,"event":["Woken",{}],"commands":[["Explode",{}]]}\n', "line 2: 'Explode' is not known"),
        (
            b'{"at":1.0,"event":["Woken",{}],"commands":[["Refuse",{"request_id":"r","outcome":"x","retry_after_s":1}]]}\n',
            "line 2: 'x' is not known",
        ),
        (b'{"dropped":"many"}\n', "line 2: not a _GapAsWritten"),
    ],
)
def test_a_broken_line_is_named(line, message):
    with pytest.raises(JournalError, match=message):
        decode_journal([encode_header(HEADER), line])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "line 1: the journal is empty"),
        ([encode_record(WOKEN)], "line 1: not a sluice-journal of version 1"),
        ([b'{"format":"sluice-journal","version":2}\n'], "line 1: not a sluice-journal of version 1"),
        ([b'{"format":"sluice-journal","version":1,"seed":1}\n'], "line 1: not a JournalHeader: .*config"),
    ],
)
def test_a_broken_header_is_named(lines, message):
    with pytest.raises(JournalError, match=message):
        decode_journal(lines)


class TestRing:
    def test_it_keeps_the_last(self):
        ring = JournalRing(2)
        for at in (1.0, 2.0, 3.0):
            ring.observe(at, Woken(), [])
        assert len(ring) == 2
        assert [at for at, _, _ in ring] == [2.0, 3.0]


class TestFile:
    def test_what_was_observed_can_be_read(self, tmp_path):
        file = JournalFile(tmp_path / "j", HEADER, batch=2)
        for event in EVENTS:
            file.observe(1.0, event, COMMANDS)
        file.close()
        journal = load_journal(tmp_path / "j")
        assert journal.header == HEADER
        assert [event for _, event, _ in journal.records] == EVENTS
        assert (journal.dropped, file.dropped, file.fault) == (0, 0, None)

    def test_flush_writes_less_than_a_batch(self, tmp_path):
        file = JournalFile(tmp_path / "j", HEADER)
        file.observe(*WOKEN)
        file.flush()
        file._writing.result(5)
        assert load_journal(tmp_path / "j").records == (WOKEN,)
        file.flush()
        file.close()
        assert load_journal(tmp_path / "j").records == (WOKEN,)

    def test_nothing_observed_is_a_journal_too(self, tmp_path):
        JournalFile(tmp_path / "j", HEADER).close()
        assert load_journal(tmp_path / "j").records == ()

    def test_an_older_journal_is_never_overwritten(self, tmp_path):
        JournalFile(tmp_path / "j", HEADER).close()
        with pytest.raises(FileExistsError):
            JournalFile(tmp_path / "j", HEADER)

    def test_a_slow_disk_costs_counted_events_and_no_memory(self, tmp_path, monkeypatch):
        disk = threading.Event()
        encode = encode_record

        def encode_slowly(record):
            assert disk.wait(5)
            return encode(record)

        monkeypatch.setattr(recording, "encode_record", encode_slowly)
        file = JournalFile(tmp_path / "j", HEADER, pending_max=3, batch=1)
        for at in range(10):
            file.observe(float(at), Woken(), [])
        assert len(file._pending) == 3
        assert file.dropped == 6
        disk.set()
        file.close()
        journal = load_journal(tmp_path / "j")
        assert [at for at, _, _ in journal.records] == [0.0, 1.0, 2.0, 3.0]
        assert journal.dropped == file.dropped == 6

    def test_a_full_disk_costs_counted_events_and_the_journal_stays_readable(self, tmp_path):
        path = tmp_path / "j"
        file = JournalFile(path, HEADER, batch=1)
        file.observe(*WOKEN)
        file._writing.result(5)
        path.rename(tmp_path / "kept")
        path.mkdir()  # opening it for writing fails from here on
        file.observe(*WOKEN)
        file._writing.result(5)
        file.observe(*WOKEN)
        file.close()
        assert isinstance(file.fault, IsADirectoryError)
        assert file.dropped == 2
        assert len(load_journal(tmp_path / "kept").records) == 1
