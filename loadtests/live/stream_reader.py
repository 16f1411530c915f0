"""Reads one SSE answer as it comes, with as little work per chunk as a search for a few bytes.

Only whole events are looked at, however the stream is cut. An event carries a token if its delta has non-empty content,
reasoning or a tool call: that is the contract's first token. ``usage`` is parsed once, at the end.
"""

import json
import re

_TOKEN = re.compile(rb'"(?:content|reasoning|reasoning_content)": ?"[^"]|"tool_calls": ?\[ ?\{')
_USAGE = re.compile(rb'"usage": ?\{')
_ERROR = re.compile(rb'^data: ?\{ ?"error"', re.MULTILINE)
_DONE = b"data: [DONE]"


class StreamReader:
    """One answer: when its first and last token came, whether it ended well, how many tokens it had."""

    __slots__ = ("_rest", "_usage", "first_s", "has_error", "is_done", "last_s")

    def __init__(self) -> None:
        self._rest = b""
        self._usage = b""
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.is_done = False
        self.has_error = False

    def feed(self, piece: bytes, now_s: float) -> None:
        """Takes the next piece of the body, which came at this moment."""
        data = self._rest + piece if self._rest else piece
        end = data.rfind(b"\n\n")
        if end < 0:
            self._rest = data
            return
        events, self._rest = data[: end + 2], data[end + 2 :]
        if _TOKEN.search(events) is not None:
            self.last_s = now_s
            if self.first_s is None:
                self.first_s = now_s
        if _USAGE.search(events) is not None:
            self._usage = events
        if _DONE in events:
            self.is_done = True
        if _ERROR.search(events) is not None:
            self.has_error = True

    def read_tokens(self) -> int | None:
        """Completion tokens by the last usage that came; None where none did."""
        for line in reversed(self._usage.split(b"\n")):
            if _USAGE.search(line) is None:
                continue
            try:
                tokens = json.loads(line.removeprefix(b"data:"))["usage"]["completion_tokens"]
            except (ValueError, KeyError, TypeError):
                return None
            return tokens if isinstance(tokens, int) else None
        return None
