"""Keeps what happens to the core: the latest of it in memory, or all of it in a journal file."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from service.domain.command import Command
from service.domain.event import Event
from service.flow.config import Reconfigured
from service.runtime.journal import JournalHeader, Record, encode_gap, encode_header, encode_record


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
    Used from one thread. A file that has reached ``bytes_max`` is left as it is, a journal that can still be played;
    what follows is counted as dropped.

    Trade-offs: the thread shares the interpreter, 9 us of it per event (measured, CPython 3.11).
    """

    def __init__(
        self,
        path: Path,
        header: JournalHeader,
        pending_max: int = 65_536,
        batch: int = 256,
        bytes_max: int | None = None,
    ) -> None:
        self._path = path
        self._pending_max = pending_max
        self._batch = batch
        self._bytes_max = bytes_max
        self._full = False
        self._pending: list[Record] = []
        self._overflowed = 0  # since the last batch
        self._dropped = 0  # before that, for want of room
        self._unwritten = 0  # for want of a disk; written by the thread only
        self._fault: OSError | None = None
        self._writing: Future[None] | None = None
        self._writer = ThreadPoolExecutor(1, "journal")
        with path.open("xb") as file:
            self._bytes = file.write(encode_header(header))

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
        if self._fault is None and not self._full:
            lines = [encode_record(record) for record in records]
            if missing_after:
                lines.append(encode_gap(missing_after))
            data = b"".join(lines)
            self._full = self._bytes_max is not None and self._bytes + len(data) > self._bytes_max
            try:
                if not self._full:
                    with self._path.open("ab") as file:
                        self._bytes += file.write(data)
            except OSError as error:
                self._fault = error
        if self._fault is not None or self._full:
            self._unwritten += len(records)


def open_journal(name: str | None, bytes_max: int, header: JournalHeader) -> JournalFile | None:
    """The journal of this start, if one is wanted; the one before it is kept beside it as ``name.1``."""
    if name is None:
        return None
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.replace(path.with_name(f"{path.name}.1"))
    return JournalFile(path, header, bytes_max=bytes_max)
