"""Holds what happened to the core as lines of JSON: every event with its moment and the commands that followed.

The first line names the format, the seed and the config of the controller, so that a journal which begins with the
controller can be played again to the same commands (``service.runtime.replay``). Every further line is one event
in the order in which the core saw it, ``{"at", "event", "commands"}``; values stand as ``[class name, fields]``.
``{"dropped": n}`` marks a place where ``n`` events are missing. Floats survive exactly: they are written by their
shortest exact form, and infinity as ``Infinity``, which Python reads and strict readers of JSON do not.

Trade-offs: names of classes and fields are the format, so renaming one makes older journals unreadable.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, get_args

import msgspec

from service.domain.command import Command, Grounds, Refuse, Revoke
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
    """What is needed beside the events to play a journal again: the seed and the first config of the controller.

    ``wall_offset_s`` added to a moment of the journal gives seconds since 1970 UTC, where the clock is known.
    """

    seed: int
    config: FlowConfig
    wall_offset_s: float | None = None


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
class _RevokeAsWritten:
    request_id: RequestId
    outcome: str


@dataclass(frozen=True, slots=True)
class _RefuseAsWritten(_RevokeAsWritten):
    retry_after_s: float | None
    grounds: Grounds | None = None


def encode_header(header: JournalHeader) -> bytes:
    """The first line."""
    fields = {name: value for name, value in msgspec.to_builtins(header).items() if value is not None}
    return _line({"format": FORMAT, "version": VERSION, **fields})


def encode_gap(dropped: int) -> bytes:
    """The line of a place where events are missing."""
    return _line({"dropped": dropped})


def hash_config(config: FlowConfig) -> str:
    """A short name of a config: equal for equal numbers, on every machine."""
    text = json.dumps(msgspec.to_builtins(config), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


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


def read_journal(lines: Iterable[bytes], told: Callable[[int], None]) -> Journal:
    """Read what can be played of a journal: up to the first gap, or to a last line that was cut off by a sudden end.

    ``told`` hears the number of lines read so far, now and then. ``dropped`` counts what is missing after that.

    Raises:
        JournalError: a line before that is broken.
    """
    header: JournalHeader | None = None
    records: list[Record] = []
    dropped = number = 0
    for number, line in enumerate(lines, 1):
        try:
            if header is None:
                header = decode_header(line)
            elif line.startswith(b'{"dropped"'):
                dropped += _convert(_parse(line), _GapAsWritten).dropped
            elif dropped or not line.endswith(b"\n"):
                dropped += 1
            else:
                records.append(decode_record(line))
        except JournalError as error:
            raise JournalError(f"line {number}: {error}") from error
        if number % 20_000 == 0:
            told(number)
    if header is None:
        raise JournalError("line 1: the journal is empty")
    return Journal(header, tuple(records), dropped)


def load_journal(path: Path) -> Journal:
    """Read the journal at ``path``; raises as :func:`decode_journal` does."""
    with path.open("rb") as lines:
        return decode_journal(lines)


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


def _name_and_fields(value: object, name: str | None = None) -> list[object]:
    return [name or type(value).__name__, msgspec.to_builtins(value)]


def _encode_command(command: Command) -> list[object]:
    if isinstance(command, Refuse):  # msgspec knows no enum with values of several parts
        label, wish_s = command.outcome.label, command.retry_after_s
        return _name_and_fields(_RefuseAsWritten(command.request_id, label, wish_s, command.grounds), "Refuse")
    if isinstance(command, Revoke):
        return _name_and_fields(_RevokeAsWritten(command.request_id, command.outcome.label), "Revoke")
    return _name_and_fields(command)


def _decode_command(name: str, fields: dict[str, object]) -> Command:
    if name == "Refuse":
        refusal = _convert(fields, _RefuseAsWritten)
        return Refuse(refusal.request_id, _OUTCOMES[refusal.outcome], refusal.retry_after_s, refusal.grounds)
    if name == "Revoke":
        revocation = _convert(fields, _RevokeAsWritten)
        return Revoke(revocation.request_id, _OUTCOMES[revocation.outcome])
    command: Command = _convert(fields, _COMMANDS[name])
    return command
