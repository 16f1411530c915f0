"""Holds what happened to the core as lines of JSON: every event with its moment and the commands that followed.

The first line names the format, the seed and the config of the controller, so that a journal which begins with the
controller can be played again to the same commands (``loadtests.sim.driver.replay``). Every further line is one event
in the order in which the core saw it, ``{"at", "event", "commands"}``; values stand as ``[class name, fields]``.
``{"dropped": n}`` marks a place where ``n`` events are missing. Floats survive exactly: they are written by their
shortest exact form, and infinity as ``Infinity``, which Python reads and strict readers of JSON do not.

Trade-offs: names of classes and fields are the format, so renaming one makes older journals unreadable.
"""

import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, get_args

import msgspec

from service.domain.command import Command, Refuse
from service.domain.event import Event
from service.domain.outcome import Outcome
from service.domain.units import RequestId
from service.flow.config import FlowConfig, Reconfigured

FORMAT = "sluice-journal"
VERSION = 1

Record = tuple[float, Event | Reconfigured, Sequence[Command]]
"""One event: its moment, itself, and the commands that followed."""

_T = TypeVar("_T")

_EVENTS: dict[str, type] = {kind.__name__: kind for kind in (*get_args(Event), Reconfigured)}
_COMMANDS: dict[str, type] = {kind.__name__: kind for kind in get_args(Command)}
_OUTCOMES = {outcome.label: outcome for outcome in Outcome}


class JournalError(Exception):
    """A journal cannot be read; the message names the line."""


@dataclass(frozen=True, slots=True)
class JournalHeader:
    """What is needed beside the events to play a journal again: the seed and the first config of the controller."""

    seed: int
    config: FlowConfig


@dataclass(frozen=True, slots=True)
class Journal:
    """A whole journal in memory; ``dropped`` events are missing from ``records``."""

    header: JournalHeader
    records: tuple[Record, ...]
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class _RecordAsWritten:
    at: float
    event: tuple[str, dict[str, object]]
    commands: list[tuple[str, dict[str, object]]]


@dataclass(frozen=True, slots=True)
class _GapAsWritten:
    dropped: int


@dataclass(frozen=True, slots=True)
class _RefuseAsWritten:
    request_id: RequestId
    outcome: str
    retry_after_s: float | None


def encode_header(header: JournalHeader) -> bytes:
    """The first line."""
    return _line({"format": FORMAT, "version": VERSION, **msgspec.to_builtins(header)})


def encode_record(record: Record) -> bytes:
    """The line of one event."""
    at, event, commands = record
    return _line({"at": at, "event": _name_and_fields(event), "commands": [_encode_command(c) for c in commands]})


def decode_header(line: bytes) -> JournalHeader:
    """Read what :func:`encode_header` wrote.

    Raises:
        JournalError: it is no header, or one of another version.
    """
    data = _parse(line)
    if data.get("format") != FORMAT or data.get("version") != VERSION:
        raise JournalError(f"not a {FORMAT} of version {VERSION}")
    return _convert(data, JournalHeader)


def decode_record(line: bytes) -> Record:
    """Read what :func:`encode_record` wrote.

    Raises:
        JournalError: it is no record, or names a class that is not known.
    """
    data = _convert(_parse(line), _RecordAsWritten)
    name, fields = data.event
    try:
        event: Event | Reconfigured = _convert(fields, _EVENTS[name])
        return data.at, event, [_decode_command(kind, values) for kind, values in data.commands]
    except KeyError as error:
        raise JournalError(f"{error} is not known") from error


def decode_journal(lines: Iterable[bytes]) -> Journal:
    """Read a whole journal.

    Raises:
        JournalError: a line is broken or cut off; the message names it, counted from 1.
    """
    header: JournalHeader | None = None
    records: list[Record] = []
    dropped = 0
    number = 0
    for number, line in enumerate(lines, 1):
        try:
            _check_whole(line)
            if header is None:
                header = decode_header(line)
            elif line.startswith(b'{"dropped"'):
                dropped += _convert(_parse(line), _GapAsWritten).dropped
            else:
                records.append(decode_record(line))
        except JournalError as error:
            raise JournalError(f"line {number}: {error}") from error
    if header is None:
        raise JournalError("line 1: the journal is empty")
    return Journal(header, tuple(records), dropped)


def load_journal(path: Path) -> Journal:
    """Read the journal at ``path``; raises as :func:`decode_journal` does."""
    with path.open("rb") as lines:
        return decode_journal(lines)


class JournalRing:
    """Observer that keeps the last ``length`` events in memory, for a look at what led to a fault.

    Trade-offs: it does not begin with the controller, so it can be read and not played again.
    """

    def __init__(self, length: int) -> None:
        self._records: deque[Record] = deque(maxlen=length)

    def __iter__(self) -> Iterator[Record]:
        return iter(tuple(self._records))

    def __len__(self) -> int:
        return len(self._records)

    def observe(self, now: float, event: Event | Reconfigured, commands: Sequence[Command]) -> None:
        """Keep it; the oldest makes room."""
        self._records.append((now, event, commands))


class JournalFile:
    """Observer that writes a journal to a file from a thread of its own.

    ``observe`` only appends to a buffer of at most ``pending_max`` events; every ``batch`` of them, and whatever
    is there at :meth:`flush`, goes to the thread as soon as that is free. What finds the buffer full is counted,
    marked in the file, and missing. After a failed write nothing more is written and all is counted as dropped.
    Used from one thread.

    Trade-offs: the thread shares the interpreter, 9 us of it per event (measured, CPython 3.11).
    """

    def __init__(self, path: Path, header: JournalHeader, pending_max: int = 65_536, batch: int = 256) -> None:
        self._path = path
        self._pending_max = pending_max
        self._batch = batch
        self._pending: list[Record] = []
        self._overflowed = 0  # since the last batch
        self._dropped = 0  # before that, for want of room
        self._unwritten = 0  # for want of a disk; written by the thread only
        self._fault: OSError | None = None
        self._writing: Future[None] | None = None
        self._writer = ThreadPoolExecutor(1, "journal")
        with path.open("xb") as file:
            file.write(encode_header(header))

    @property
    def dropped(self) -> int:
        """Events that are not, and will not be, in the file."""
        return self._dropped + self._overflowed + self._unwritten

    @property
    def fault(self) -> OSError | None:
        """Why nothing more is written, or ``None``."""
        return self._fault

    def observe(self, now: float, event: Event | Reconfigured, commands: Sequence[Command]) -> None:
        """Buffer it, or count it if there is no room."""
        if len(self._pending) < self._pending_max:
            self._pending.append((now, event, commands))
        else:
            self._overflowed += 1
        if len(self._pending) >= self._batch:
            self.flush()

    def flush(self) -> None:
        """Hand over what is buffered if the thread is free; returns at once."""
        if self._writing is None or self._writing.done():
            self._hand_over()

    def close(self) -> None:
        """Write all that is buffered and wait for it."""
        self._hand_over()
        self._writer.shutdown()
        if self._writing is not None:
            self._writing.result()

    def _hand_over(self) -> None:
        if self._pending or self._overflowed:
            self._writing = self._writer.submit(self._write, self._pending, self._overflowed)
            self._pending = []
            self._dropped += self._overflowed
            self._overflowed = 0

    def _write(self, records: list[Record], missing_after: int) -> None:
        if self._fault is None:
            lines = [encode_record(record) for record in records]
            if missing_after:
                lines.append(_line({"dropped": missing_after}))
            try:
                with self._path.open("ab") as file:
                    file.write(b"".join(lines))
            except OSError as error:
                self._fault = error
        if self._fault is not None:
            self._unwritten += len(records)


def _line(data: dict[str, object]) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode() + b"\n"


def _check_whole(line: bytes) -> None:
    if not line.endswith(b"\n"):
        raise JournalError("cut off before its end")


def _parse(line: bytes) -> dict[str, object]:
    try:
        data = json.loads(line)
    except ValueError as error:
        raise JournalError(f"not JSON: {error}") from error
    if not isinstance(data, dict):
        raise JournalError("not an object")
    return data


def _convert(data: object, kind: type[_T]) -> _T:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise JournalError(f"not a {kind.__name__}: {error}") from error


def _name_and_fields(value: Event | Reconfigured | Command) -> list[object]:
    return [type(value).__name__, msgspec.to_builtins(value)]


def _encode_command(command: Command) -> list[object]:
    if isinstance(command, Refuse):  # msgspec knows no enum with values of several parts
        label, wish_s = command.outcome.label, command.retry_after_s
        return ["Refuse", {"request_id": command.request_id, "outcome": label, "retry_after_s": wish_s}]
    return _name_and_fields(command)


def _decode_command(name: str, fields: dict[str, object]) -> Command:
    if name == "Refuse":
        refusal = _convert(fields, _RefuseAsWritten)
        return Refuse(refusal.request_id, _OUTCOMES[refusal.outcome], refusal.retry_after_s)
    command: Command = _convert(fields, _COMMANDS[name])
    return command
