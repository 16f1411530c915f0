"""Moves entries from a spool into the book, in order, each once, however often either side has died in between."""

import logging
import os
from pathlib import Path

from service.ledger.book import Book, ChainConflictError
from service.ledger.segment import Head, Line, decode_head, follow_entries, list_segments

_log = logging.getLogger("sluice.ledger")

BATCH = 2000


class Drain:
    """Follows the spool in ``folder``."""

    def __init__(self, folder: Path, book: Book) -> None:
        self._folder = folder
        self._book = book
        self._segment: Path | None = None
        self._offset = 0
        self._head: Head | None = None
        self._seq: int | None = None

    @property
    def seq(self) -> int | None:
        """The number of the last entry that was seen in the database; ``None`` before anybody has looked."""
        return self._seq if self._head is None else self._head.seq

    @property
    def behind(self) -> bool:
        """There are segments after the one it reads."""
        return self._segment is not None and list_segments(self._folder)[-1:] != [self._segment]

    def forget(self) -> None:
        """Begin again from what the database says."""
        self._seq = self.seq
        self._segment = self._head = None

    def step(self, wall_us: int) -> int:
        """Take one batch; how many entries that were.

        Raises:
            ChainConflictError: what the spool has does not follow what the database has.
        """
        if self._segment is None and not self._find_place(wall_us):
            return 0
        segment, head = self._segment, self._head
        if segment is None or head is None:
            return 0
        lines, offset = self._read(segment, head)
        if lines:
            self._book.take(head.chain, lines, wall_us)
            self._offset = offset
            head.seq, head.digest = lines[-1].seq, lines[-1].digest
        elif self._turn_page(segment, head):
            return self.step(wall_us)
        return len(lines)

    def _read(self, segment: Path, head: Head) -> tuple[list[Line], int]:
        """A batch that is safe on the disk: the database never knows more than the spool after a power cut."""
        with segment.open("rb") as file:
            os.fsync(file.fileno())
            safe_bytes = os.fstat(file.fileno()).st_size
        lines: list[Line] = []
        offset = self._offset
        for line, end in follow_entries(segment, offset, Head(head.chain, head.seq, head.digest), BATCH):
            if end > safe_bytes:
                break
            lines.append(line)
            offset = end
        return lines, offset

    def _turn_page(self, segment: Path, head: Head) -> bool:
        """Go on in the segment after this one, and take this one away, if all of it is in the database."""
        later = [path for path in list_segments(self._folder) if path > segment]
        for path in later:
            begins = read_head(path)
            if begins is None:
                continue
            if begins.seq != head.seq or begins.digest != head.digest:
                if begins.seq > head.seq:
                    raise ChainConflictError(f"{path} begins after entry {begins.seq}, {segment} ends with {head.seq}")
                if begins.seq < head.seq:  # lines that were taken were then cut off by the writer, whose disk was full
                    self.forget()
                    return True
                continue
            self._segment, self._offset = path, 0
            segment.unlink()
            return True
        return False

    def _find_place(self, wall_us: int) -> bool:
        """Where the first entry stands that the database does not have."""
        segments = [(path, head) for path in list_segments(self._folder) if (head := read_head(path)) is not None]
        if not segments:
            return False
        first, begins = segments[0]
        known = self._book.find_head(begins.chain)
        if known is None:
            self._book.begin_chain(begins, wall_us)
            known = Head(begins.chain, begins.seq, begins.digest)
        if begins.seq > known.seq:
            raise ChainConflictError(f"{first} begins after entry {begins.seq}, the database ends with {known.seq}")
        for path, head in segments:
            if head.seq <= known.seq:
                self._segment, begins = path, head
        self._offset = 0
        if self._segment is not None:
            self._offset = _skip(self._segment, begins, known)
        for path, _ in segments:
            if self._segment is not None and path < self._segment:
                path.unlink()
        self._head = known
        return True


def read_head(path: Path) -> Head | None:
    """The head at the beginning of a segment; ``None`` if it has none, or is gone."""
    try:
        with path.open("rb") as file:
            return decode_head(file.readline())
    except FileNotFoundError:
        return None


def _skip(path: Path, begins: Head, known: Head) -> int:
    """The offset after the entry ``known`` in the segment that begins with ``begins``."""
    offset = 0
    head = Head(begins.chain, begins.seq, begins.digest)
    if head.seq < known.seq:
        for line, end in follow_entries(path, 0, head, known.seq - begins.seq):
            offset = end
            if line.seq == known.seq:
                break
    if (head.seq, head.digest) != (known.seq, known.digest):
        raise ChainConflictError(
            f"{path} has entry {head.seq} as {head.digest.hex()[:16]}, "
            f"the database has entry {known.seq} as {known.digest.hex()[:16]}"
        )
    return offset
