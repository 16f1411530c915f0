"""The form of a spool file: lines that can be trusted one by one.

A segment begins with ``# `` and a JSON object that names its chain and where the chain stood. ``+ `` and a JSON object
is a request that came and has not ended; a hash in hexadecimal, a blank and a JSON array is an entry. A line counts if
it ends and, for an entry, if its hash follows from the one before; whatever comes after a line that does not count was
being written when the process died.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from service.ledger.entry import FIRST_HASH, chain_hash

VERSION = 1
SUFFIX = ".spool"

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Head:
    """Where a chain stands: the number and hash of its last entry."""

    chain: str
    seq: int = 0
    digest: bytes = FIRST_HASH


@dataclass(frozen=True, slots=True)
class Line:
    """One entry as it stands in a spool: the number in its chain, its hash and its fields."""

    seq: int
    digest: bytes
    row: tuple[Any, ...]


@dataclass(slots=True)
class Reading:
    """What a segment holds. ``good_bytes`` is where its last line that counts ends; ``open`` are requests that came and
    did not end, by their id; ``head`` is ``None`` if not even the first line counts."""

    head: Head | None = None
    good_bytes: int = 0
    whole: bool = True
    entries: int = 0
    open: dict[str, dict[str, Any]] = field(default_factory=dict)


def list_segments(folder: Path) -> list[Path]:
    """The segments of a spool, the oldest first."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def name_segment(folder: Path, number: int) -> Path:
    """The path of the segment with this number."""
    return folder / f"{number:010d}{SUFFIX}"


def encode_head(head: Head) -> bytes:
    """The first line of a segment."""
    told = {"version": VERSION, "chain": head.chain, "seq": head.seq, "hash": head.digest.hex()}
    return b"# " + _encode(told) + b"\n"


def encode_open(request: dict[str, Any]) -> bytes:
    """A line for a request that has come."""
    return b"+ " + _encode(request) + b"\n"


def encode_entry(digest: bytes, payload: bytes) -> bytes:
    """A line for an entry."""
    return b"%b %b\n" % (digest.hex().encode(), payload)


def decode_head(line: bytes) -> Head | None:
    """The head that a first line tells; ``None`` if it is none."""
    try:
        told = _decode(line[2:]) if line.startswith(b"# ") else None
        return None if told is None else Head(told["chain"], told["seq"], bytes.fromhex(told["hash"]))
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return None


def read_segment(path: Path) -> Reading:
    """Everything that counts in the segment at ``path``."""
    reading = Reading()
    with path.open("rb") as file:
        line = file.readline()
        reading.head = head = decode_head(line) if line.endswith(b"\n") else None
        if head is None:
            reading.whole = not line
            return reading
        reading.good_bytes = len(line)
        for line in file:
            if not line.endswith(b"\n") or not _take(line, head, reading):
                reading.whole = False
                break
            reading.good_bytes += len(line)
    return reading


def _take(line: bytes, head: Head, reading: Reading) -> bool:
    try:
        if line.startswith(b"+ "):
            request = _decode(line[2:])
            reading.open[request["request_id"]] = request
            return True
        entry = decode_entry(line, head)
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return False
    if entry is None:
        return False
    head.seq, head.digest = entry.seq, entry.digest
    reading.entries += 1
    reading.open.pop(entry.row[0], None)
    return True


def decode_entry(line: bytes, head: Head) -> Line | None:
    """The entry on ``line``, if it follows ``head``."""
    payload = line[65:-1]
    digest = bytes.fromhex(line[:64].decode("ascii", "replace"))
    if line[64:65] != b" " or chain_hash(head.digest, payload) != digest:
        return None
    seq, *row = _decode(payload)
    return Line(seq, digest, tuple(row)) if seq == head.seq + 1 else None


def follow_entries(path: Path, offset: int, head: Head, limit: int) -> Iterator[tuple[Line, int]]:
    """Entries of the segment at ``path`` from byte ``offset`` on, each with the offset after it, at most ``limit``;
    ``head`` moves along. Ends before a line that is not complete or does not follow."""
    taken = 0
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if taken == limit or not line.endswith(b"\n"):
                return
            offset += len(line)
            if line[:2] in (b"# ", b"+ "):
                continue
            try:
                entry = decode_entry(line, head)
            except (msgspec.DecodeError, TypeError, ValueError):
                return
            if entry is None:
                return
            head.seq, head.digest = entry.seq, entry.digest
            taken += 1
            yield entry, offset
