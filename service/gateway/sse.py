"""Reads along in an event stream while its bytes pass untouched: first token, usage, end, error.

The stream's framing is the HTML standard's: lines end in LF, CRLF or CR, an empty line ends an event, comments begin
with a colon, several ``data:`` lines are joined by LF, a BOM may stand first. Only what may matter is parsed: events
before the first token, and those in which ``"usage"``, ``"error"`` or ``[DONE]`` stands. Inside a JSON string a quote
is escaped, so a text that talks of "usage" contains ``\\"usage\\"`` and is not mistaken.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

_BLANK = re.compile(rb"(?:\r\n|\r(?!\n)|\n)(?:\r\n|\r(?!\n)|\n)")
_LINE = re.compile(rb"\r\n|\r|\n")
_PARTIAL_MAX = 4 * 1024 * 1024
"""Of an event longer than this only the name is read."""
_BOM = b"\xef\xbb\xbf"
_TEXT = re.compile(rb'"(?:content|reasoning|reasoning_content|text|thinking|delta)":"')
_FRAMES_MAX = 8
"""How often this is looked for in one stream; one that changes what stands around its texts is searched as a whole."""


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
        "_after", "_before", "_fast", "_frame_size", "_frames", "_fresh", "_loose_cr", "_partial", "_reader",
        "_searched", "_skipping", "_strip", "aborted", "cached_tokens", "done", "events", "failed", "first_token",
        "output_tokens", "prompt_tokens",
    )  # fmt: skip

    def __init__(self, reader: Reader, strip_usage: bool) -> None:
        self._reader = reader
        self._strip = strip_usage
        self._partial = bytearray()
        self._searched = 0
        self._skipping = False
        self._fast = False  # a token was seen and nothing is torn
        self._before = self._after = b""  # what stood around the text of the last plain event
        self._frame_size = self._frames = 0
        self._fresh = True
        self._loose_cr: bool | None = None  # the last event ended in a CR whose LF may follow; whether it was sent on
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
            self._fast
            and data.startswith(self._before)
            and data.endswith(self._after)
            and len(data) >= self._frame_size > 0
            and data.find(b'"', len(self._before)) == len(data) - len(self._after)
            and data.find(b"\n", len(self._before)) == len(data) - 2
        ):  # one event that differs from a plain one in nothing but a string
            self.events += 1
            return data
        if (
            self._fast
            and data[-2:] == b"\n\n"
            and b'"usage"' not in data
            and b'"error"' not in data
            and b"[DONE]" not in data
            and b"_stop" not in data
        ):
            events = data.count(b"\n\n")
            self.events += events
            if events == 1 and self._frames < _FRAMES_MAX:
                self._learn(data)
            return data
        return self._feed_slowly(data)

    def _learn(self, data: bytes) -> None:
        """Remember what stands around the text of a plain event: comparing it with the next one costs a quarter of
        searching that for every mark."""
        self._frames += 1
        text = _TEXT.search(data)
        end = -1 if text is None else data.find(b'"', text.end())
        if text is not None and data.find(b"\n", end) == len(data) - 2:
            self._before, self._after = data[: text.end()], data[end:]
            self._frame_size = len(self._before) + len(self._after)

    def drain(self) -> bytes:
        """The stream is over: an unfinished event counts as finished if its end is only a missing empty line."""
        rest, self._partial = bytes(self._partial), bytearray()
        if rest and not self._skipping and self._look(rest) and self._strip:
            return b""
        return rest

    @property
    def torn(self) -> bool:
        """A part of an event was sent on: it was too long to be held."""
        return self._skipping

    def _feed_slowly(self, data: bytes) -> bytes:
        if not data:
            return data
        buffer = self._partial
        buffer += data
        start = 0
        search_from = max(self._searched - 3, 0)
        out: list[bytes] = []
        if self._loose_cr is not None:
            if buffer[0] == 10:
                start = search_from = 1
                if self._loose_cr:
                    out.append(b"\n")
            self._loose_cr = None
        while (found := _BLANK.search(buffer, search_from)) is not None:
            end = found.end()
            event = bytes(buffer[start:end])
            start = search_from = end
            if self._skipping:
                self._skipping = False
                kept = True
            else:
                kept = not (self._look(event) and self._strip)
            if kept:
                out.append(event)
            if end == len(buffer) and event.endswith(b"\r"):
                self._loose_cr = kept
        if start:
            del buffer[:start]
        if self._skipping or len(buffer) > _PARTIAL_MAX:
            self._skip(buffer, out)
        self._searched = len(buffer)
        self._fast = self.first_token and not buffer and self._loose_cr is None
        return b"".join(out)

    def _skip(self, buffer: bytearray, out: list[bytes]) -> None:
        """Pass a huge event on as it comes; its end may be torn, so the last bytes wait for what follows."""
        if not self._skipping:
            self._skipping = True
            self.events += 1
            name = self._read(bytes(buffer[:256]))[0]
            if name is not None:
                self._take(self._reader(name, {}))
        out.append(bytes(buffer[:-3]))
        del buffer[:-3]

    def _look(self, event: bytes) -> bool:
        """Take in one event; ``True`` if it is a bare usage chunk."""
        name, lines = self._read(event)
        if not lines:
            return False
        self.events += 1
        payload = b"\n".join(lines)
        if payload.strip() == b"[DONE]":
            self.done = True
            return False
        try:
            decoded = _decode(payload)
        except (ValueError, RecursionError):
            return False
        return self._take(self._reader(name, decoded))

    def _read(self, event: bytes) -> tuple[str | None, list[bytes]]:
        """Name and data lines of an event."""
        if self._fresh:
            self._fresh = False
            event = event.removeprefix(_BOM)
        name: str | None = None
        lines = []
        for line in _LINE.split(event):
            if line.startswith(b"data:"):
                lines.append(line[6:] if line[5:6] == b" " else line[5:])
            elif line.startswith(b"event:"):
                name = line[6:].strip().decode("utf-8", "replace")
        return name, lines

    def _take(self, finding: Finding) -> bool:
        self.first_token = self.first_token or finding.token
        self.done = self.done or finding.done
        self.failed = self.failed or finding.failed
        self.aborted = self.aborted or (finding.aborted and not self.first_token)
        if finding.usage is not None:
            self.prompt_tokens, self.cached_tokens, self.output_tokens = finding.usage
        return finding.bare_usage


def _decode(payload: bytes) -> Any:  # noqa: ANN401 - decoded JSON of any shape
    """msgspec is strict; NaN and half surrogates, which Python's own encoder writes, are read by Python's decoder."""
    try:
        return msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return json.loads(payload)
