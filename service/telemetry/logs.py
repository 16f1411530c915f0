"""Structured logs: one JSON object a line on standard error, written by a thread of its own.

The loop only puts a finished line into a bounded queue; a slow reader of standard error costs lines, which are counted
and reported, never time of requests. No line carries a prompt, an answer, a header or a key; anything that looks like
one of our keys is blotted out besides, should it ever get into a message.
"""

import json
import logging
import queue
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from logging.handlers import QueueHandler, QueueListener
from typing import Any, Protocol, TextIO

from service.domain.outcome import Fault, Outcome

_OURS = "sluice"
_QUEUED_LINES_MAX = 10_000
_KEY = re.compile(r"sk-[A-Za-z0-9_\-]{4,}")
_LOG = logging.getLogger("sluice.request")


class JsonFormatter(logging.Formatter):
    """Renders a record; what was passed as ``extra={"fields": {...}}`` stands beside the message."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, Any] = {
            "at": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, Mapping):
            line.update(fields)
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return _KEY.sub("sk-***", json.dumps(line, default=str, ensure_ascii=False))


class _BoundedLines(QueueHandler):
    """Drops lines when the writer does not keep up, and says how many when it does again."""

    def __init__(self, lines: "queue.Queue[logging.LogRecord]") -> None:
        super().__init__(lines)
        self._lines = lines
        self.dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        """Never waits."""
        if self.dropped and not self._lines.full():
            dropped, self.dropped = self.dropped, 0
            note = logging.LogRecord("sluice.logs", logging.WARNING, "", 0, f"{dropped} lines were dropped", None, None)
            self._lines.put_nowait(self.prepare(note))
        try:
            self._lines.put_nowait(record)
        except queue.Full:
            self.dropped += 1


def set_level(level: str) -> None:
    """How much our own loggers say. Those of libraries stay at warnings: at debug level they print headers."""
    logging.getLogger(_OURS).setLevel(level.upper())


@contextmanager
def run_logs(level: str, out: TextIO | None = None) -> Iterator[None]:
    """Write logs while the block runs, and all that is queued before it ends."""
    lines: queue.Queue[logging.LogRecord] = queue.Queue(_QUEUED_LINES_MAX)
    handler = _BoundedLines(lines)
    formatter = JsonFormatter()
    handler.setFormatter(formatter)
    writer = logging.StreamHandler(out or sys.stderr)
    writer.setFormatter(logging.Formatter("%(message)s"))
    listener = QueueListener(lines, writer)
    root, ours = logging.getLogger(), logging.getLogger(_OURS)
    before, our_level = root.level, ours.level
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    set_level(level)
    listener.start()
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
        ours.setLevel(our_level)
        listener.stop()


class Settled(Protocol):
    """What a log line needs of a settled request."""

    @property
    def request_id(self) -> str: ...
    @property
    def client_request_id(self) -> str | None: ...
    @property
    def kind(self) -> str: ...
    @property
    def outcome(self) -> Outcome | None: ...
    @property
    def status(self) -> int | None: ...
    @property
    def tenant_id(self) -> str | None: ...
    @property
    def tier(self) -> str | None: ...
    @property
    def stream(self) -> bool: ...
    @property
    def worker_id(self) -> str | None: ...
    @property
    def attempts(self) -> int: ...
    @property
    def arrived_at(self) -> float: ...
    @property
    def settled_at(self) -> float | None: ...
    @property
    def ttft_s(self) -> float | None: ...
    @property
    def tpot_s(self) -> float | None: ...
    @property
    def queue_s(self) -> float | None: ...
    @property
    def prompt_bytes(self) -> int: ...
    @property
    def prompt_tokens(self) -> int | None: ...
    @property
    def cached_tokens(self) -> int | None: ...
    @property
    def output_tokens(self) -> int | None: ...


_US, _CAPACITY = Fault.US, Fault.CAPACITY  # a member of an Enum costs more to look up than all of a usual settle()


class RequestLog:
    """One line per settled request. ``which``: ``all``, ``failures`` (our fault or want of capacity) or ``none``."""

    def __init__(self, which: str) -> None:
        self.which = which

    def settle(self, settlement: Settled) -> None:
        """Write the line if it is wanted."""
        outcome = settlement.outcome
        if outcome is None or self.which == "none":
            return
        fault = outcome.fault
        ours = fault is _US or fault is _CAPACITY
        if not ours and self.which != "all":
            return
        level = logging.WARNING if ours else logging.INFO
        if _LOG.isEnabledFor(level):
            _LOG.log(level, "request %s", outcome.label, extra={"fields": _describe(settlement, outcome)})


def _describe(settlement: Settled, outcome: Outcome) -> dict[str, Any]:
    settled_at = settlement.settled_at
    return {
        "request_id": settlement.request_id,
        "client_request_id": settlement.client_request_id,
        "kind": settlement.kind,
        "tenant": settlement.tenant_id,
        "tier": settlement.tier,
        "outcome": outcome.label,
        "fault": outcome.fault.value,
        "status": settlement.status,
        "stream": settlement.stream,
        "worker": settlement.worker_id,
        "attempts": settlement.attempts,
        "queue_s": _round(settlement.queue_s),
        "ttft_s": _round(settlement.ttft_s),
        "tpot_s": _round(settlement.tpot_s),
        "total_s": None if settled_at is None else _round(settled_at - settlement.arrived_at),
        "prompt_bytes": settlement.prompt_bytes,
        "prompt_tokens": settlement.prompt_tokens,
        "cached_tokens": settlement.cached_tokens,
        "output_tokens": settlement.output_tokens,
    }


def _round(length_s: float | None) -> float | None:
    return None if length_s is None else round(length_s, 6)
