"""Writes entries to the local disk, each chained to the one before, and finds what a death has left there.

Used by one thread at a time, never by the loop: every method reads or writes files. One process owns a folder; a lock
says so. The last segment is kept even when all of it is in the database, because the chain goes on from it.

Trade-offs: an entry is safe once its ``write`` has returned, up to the next commit it is in memory only; a disk that is
full costs entries, which are counted and marked in the chain.
"""

import fcntl
import logging
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from service.ledger.entry import Row, chain_hash, encode_payload
from service.ledger.segment import (
    Head,
    encode_entry,
    encode_head,
    encode_open,
    list_segments,
    name_segment,
    read_segment,
)

_log = logging.getLogger("sluice.ledger")

SEGMENT_BYTES = 16 * 1024 * 1024
_DAMAGED = ".damaged"


class SpoolTakenError(OSError):
    """Another process writes to this spool."""


class SpoolFullError(Exception):
    """The spool has reached its bound, or the disk has none left."""


class Spool:
    """The spool in ``folder``, of at most ``bytes_max``."""

    def __init__(self, folder: Path, bytes_max: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._bytes_max = bytes_max
        self._segment_bytes = min(segment_bytes, max(bytes_max // 4, 4096))
        self._lock = _take_lock(folder / "writer.lock")
        self._open: dict[str, dict[str, Any]] = {}
        self._file: BinaryIO | None = None
        self._number = 0
        self._size = 0
        self._older_bytes = 0
        self.head = Head(secrets.token_hex(8))
        self.died = self._recover()

    # ---------------------------------------------------------------- what a death has left

    def _recover(self) -> list[dict[str, Any]]:
        """Find the end of the chain; the requests that were under way when it was written. They stay open until an
        entry is written for each, so that another death at this moment changes nothing."""
        left: dict[str, dict[str, Any]] = {}
        segments = list_segments(self._folder)
        for path in segments:
            reading = read_segment(path)
            self._number = int(path.stem)
            if reading.head is not None:
                self.head = reading.head
                left = reading.open  # each segment begins with all that is under way
            if not reading.whole:
                self._mend(path, reading.good_bytes, last=path is segments[-1])
        self._open = left
        return list(left.values())

    def _mend(self, path: Path, good_bytes: int, last: bool) -> None:
        """Cut off what was being written; if more stands behind it, keep the file for a person to look at."""
        rest = path.stat().st_size - good_bytes
        if not last or rest > self._segment_bytes:
            path.with_suffix(_DAMAGED).write_bytes(path.read_bytes())
            _log.error("spool: %s is damaged after %d bytes; a copy is kept beside it", path, good_bytes)
        elif rest:
            _log.warning("spool: the last %d bytes of %s were not complete", rest, path)
        with path.open("r+b") as file:
            file.truncate(good_bytes)
            os.fsync(file.fileno())

    # ---------------------------------------------------------------- writing

    @property
    def bytes(self) -> int:
        """What it takes on the disk."""
        return self._older_bytes + self._size

    def write(self, opened: Sequence[dict[str, Any]], rows: Sequence[Row]) -> None:
        """Write requests that have come and entries of those that have ended, in one piece, and wait for the disk.

        Raises:
            SpoolFullError: there is no room; nothing of it was written.
            OSError: the disk failed; nothing of it counts.
        """
        file = self._ready_file()
        chain, seq, digest = self.head.chain, self.head.seq, self.head.digest
        parts = [encode_open(request) for request in opened]
        for row in rows:
            seq += 1
            payload = encode_payload(seq, row)
            digest = chain_hash(digest, payload)
            parts.append(encode_entry(digest, payload))
        data = b"".join(parts)
        if self.bytes + len(data) > self._bytes_max:
            self._weigh_older()  # the clerk may have taken some away
            if self.bytes + len(data) > self._bytes_max:
                raise SpoolFullError(f"the spool holds {self.bytes} of {self._bytes_max} bytes")
        try:
            _write_whole(file, data)
        except OSError:
            self._abandon_file(file)
            raise
        self._size += len(data)
        self.head = Head(chain, seq, digest)
        for request in opened:
            self._open[request["request_id"]] = request
        for row in rows:
            self._open.pop(row[0], None)

    def close(self) -> None:
        """Let go of the folder."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._lock.close()

    def _ready_file(self) -> BinaryIO:
        """The segment to write to; a further one when the present one is long enough."""
        if self._file is not None and self._size < self._segment_bytes:
            return self._file
        if self._file is not None:
            self._file.close()
            self._file = None
        self._number += 1
        file = name_segment(self._folder, self._number).open("xb", buffering=0)
        try:
            head = b"".join([encode_head(self.head), *(encode_open(request) for request in self._open.values())])
            _write_whole(file, head)
            _sync_folder(self._folder)
        except OSError:
            self._abandon_file(file)
            raise
        self._file, self._size = file, len(head)
        self._weigh_older()
        return file

    def _abandon_file(self, file: BinaryIO) -> None:
        """Something of a piece may have been written: cut it off, and go on in a further segment."""
        try:
            file.truncate(self._size if file is self._file else 0)
        except OSError as error:
            _log.warning("spool: a piece that was not written whole could not be cut off: %s", error)
        file.close()
        self._file = None

    def _weigh_older(self) -> None:
        """What the segments before the present one take; those in the database are taken away by the clerk."""
        total = 0
        for path in list_segments(self._folder):
            if int(path.stem) != self._number:
                try:
                    total += path.stat().st_size
                except FileNotFoundError:
                    continue
        self._older_bytes = total


def _take_lock(path: Path) -> BinaryIO:
    lock = path.open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise SpoolTakenError(f"another gateway writes to {path.parent}; give this one a spool of its own") from None
    return lock


def _write_whole(file: BinaryIO, data: bytes) -> None:
    """Write all of it and wait for the disk; a disk that has little left takes less than it is given."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make the name of a new file durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
