"""Reads along in an event stream while its bytes pass untouched: first token, usage, end, error.

The stream's framing is the HTML standard's: lines end in LF, CRLF or CR, an empty line ends an event, comments begin
with a colon, several ``data:`` lines are joined by LF, a BOM may stand first. Only what may matter is parsed: events
before the first token, and those in which ``"usage"``, ``"error"`` or ``[DONE]`` stands. Inside a JSON string a quote
is escaped, so a text that talks of "usage" contains ``\\"usage\\"`` and is not mistaken.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

_BLANK = re.compile(rb"(?:\r\n|\r(?!\n)|\n)(?:\r\n|\r(?!\n)|\n)")
_LINE = re.compile(rb"\r\n|\r|\n")
_PARTIAL_MAX = 1024 * 1024
"""An event longer than this is passed on unread."""


@dataclass(slots=True)
class Finding:
    """What one event says. ``bare_usage``: it carries usage and nothing for a client that did not ask for it."""

    token: bool = False
    done: bool = False
    failed: bool = False
    aborted: bool = False
    bare_usage: bool = False
    usage: tuple[int | None, int | None, int | None] | None = None


Reader = Callable[[str | None, Any], Finding]
"""Interprets one event: its name and its decoded data."""


class EventTap:
    """One stream's reader. A torn event is held back until it is whole, so that whatever we put into the stream (a
    comment, an error) stands between two events; with ``strip_usage`` the bare usage chunk is held back for good."""

    __slots__ = (
        "_partial", "_reader", "_searched", "_skipping", "_strip", "aborted", "cached_tokens", "done", "events",
        "failed", "first_token", "output_tokens", "prompt_tokens",
    )  # fmt: skip

    def __init__(self, reader: Reader, strip_usage: bool) -> None:
        self._reader = reader
        self._strip = strip_usage
        self._partial = b""
        self._searched = 0
        self._skipping = False
        self.first_token = False
        self.done = False
        self.failed = False
        self.aborted = False
        self.events = 0
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.output_tokens: int | None = None

    def feed(self, data: bytes) -> bytes:
        """Look at ``data`` and return what may be sent on now."""
        if (
            self.first_token
            and not self._partial
            and data[-2:] == b"\n\n"
            and b'"usage"' not in data
            and b'"error"' not in data
            and b"[DONE]" not in data
            and b"_stop" not in data
        ):
            self.events += data.count(b"\n\n")
            return data
        return self._feed_slowly(data)

    @property
    def torn(self) -> bool:
        """A part of an event was sent on: it was too long to be held."""
        return self._skipping

    def drain(self) -> bytes:
        """The stream is over: an unfinished event counts as finished if its end is only a missing empty line."""
        rest, self._partial = self._partial, b""
        if rest and not self._skipping and self._look(rest) and self._strip:
            return b""
        return rest

    def _feed_slowly(self, data: bytes) -> bytes:
        buffer = self._partial + data
        start = 0
        out: list[bytes] = []
        search_from = max(self._searched - 3, 0)
        while (end := _BLANK.search(buffer, search_from)) is not None:
            event = buffer[start : end.end()]
            start = search_from = end.end()
            if self._skipping:
                self._skipping = False
                out.append(event)
            elif not (self._look(event) and self._strip):
                out.append(event)
        self._partial = buffer[start:]
        self._searched = len(self._partial)
        if len(self._partial) > _PARTIAL_MAX:
            self._skipping = True
            out.append(self._partial)
            self._partial = b""
            self._searched = 0
        return b"".join(out)

    def _look(self, event: bytes) -> bool:
        """Take in one event; ``True`` if it is a bare usage chunk."""
        name: str | None = None
        lines = []
        for line in _LINE.split(event.removeprefix(b"\xef\xbb\xbf")):
            if line.startswith(b"data:"):
                lines.append(line[6:] if line[5:6] == b" " else line[5:])
            elif line.startswith(b"event:"):
                name = line[6:].strip().decode("utf-8", "replace")
        if not lines:
            return False
        self.events += 1
        payload = b"\n".join(lines)
        if payload.strip() == b"[DONE]":
            self.done = True
            return False
        try:
            decoded = msgspec.json.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
        finding = self._reader(name, decoded)
        self.first_token = self.first_token or finding.token
        self.done = self.done or finding.done
        self.failed = self.failed or finding.failed
        self.aborted = self.aborted or (finding.aborted and not self.first_token)
        if finding.usage is not None:
            self.prompt_tokens, self.cached_tokens, self.output_tokens = finding.usage
        return finding.bare_usage
