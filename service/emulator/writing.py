"""Decides what an emulated model says: deterministic words of four bytes, one token each.

The same prompt and ``seed`` give the same text on every worker, however it is cut into steps. Reasoning and content
come from two separate sequences, so an answer continued on another worker goes on exactly where the first one
stopped.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass
from typing import NamedTuple

from service.emulator.template import TOKEN_BYTES, encode

LETTERS = ("bcdfghjklmnprstvw", "aeiou", "bdgklmnprstx")
WORDS = tuple(f" {a}{b}{c}" for a in LETTERS[0] for b in LETTERS[1] for c in LETTERS[2])
EOS_ID = 2
NAME_ID = 3


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the emulated model makes."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Script:
    """What one choice of an answer will be, before a token of it is written."""

    key: int
    reasoning_tokens: int
    total_tokens: int
    content_skip: int = 0
    tool: ToolCall | None = None
    ends_with_eos: bool = False
    cut_at_chars: int | None = None
    """Where a stop string cuts the content."""
    finish_reason: str = "length"
    stop_reason: str | None = None


class Delta(NamedTuple):
    """What some tokens say."""

    tokens: int
    reasoning: str
    content: str
    tool_name: str | None
    arguments: str
    token_ids: list[int]


def build_key(prompt: bytes, seed: int, choice: int) -> int:
    """What a choice's words are drawn from: equal prompt, seed and number of the choice give equal words."""
    return zlib.crc32(b"%d/%d" % (seed, choice), zlib.crc32(prompt))


def build_words(kind: str, key: int) -> random.Random:
    """The generator of one sequence of words."""
    return random.Random(f"{kind}/{key}")


class Writer:
    """Writes one choice, some tokens at a time."""

    __slots__ = ("_content", "_reasoning", "arguments", "content_chars", "content_parts", "ids", "reasoning_parts",
                 "script", "tool_named", "written")  # fmt: skip

    def __init__(self, script: Script) -> None:
        self.script = script
        self.written = 0
        self.arguments = 0
        self.tool_named = False
        self.content_chars = 0
        self.reasoning_parts: list[str] = []
        self.content_parts: list[str] = []
        self.ids: list[int] = []
        self._reasoning = build_words("reasoning", script.key) if script.reasoning_tokens else None
        self._content = build_words("content", script.key)
        if script.content_skip:
            self._content.choices(WORDS, k=script.content_skip)

    @property
    def reasoning_tokens(self) -> int:
        return min(self.written, self.script.reasoning_tokens)

    def write(self, tokens: int, with_ids: bool = False) -> Delta:
        """The next tokens of the choice."""
        script = self.script
        tokens = min(tokens, script.total_tokens - self.written)
        if tokens <= 0:
            return Delta(0, "", "", None, "", [])
        thinking = min(tokens, max(0, script.reasoning_tokens - self.written))
        saying = tokens - thinking
        self.written += tokens
        ends = script.ends_with_eos and self.written == script.total_tokens
        reasoning = content = arguments = ""
        name: str | None = None
        if thinking and self._reasoning is not None:
            reasoning = "".join(self._reasoning.choices(WORDS, k=thinking))
            self.reasoning_parts.append(reasoning)
        if saying and script.tool is not None:
            if not self.tool_named:
                self.tool_named = True
                name = script.tool.name
                saying -= 1
            arguments = script.tool.arguments[self.arguments : self.arguments + saying * TOKEN_BYTES]
            self.arguments += len(arguments)
        elif saying:
            content = "".join(self._content.choices(WORDS, k=saying - 1 if ends else saying))
            content = self._cut(content)
            self.content_parts.append(content)
        ids: list[int] = []
        if with_ids:
            ids = encode(reasoning + content + arguments)
            if name is not None:
                ids.insert(thinking, NAME_ID)
            if ends:
                ids.append(EOS_ID)
            self.ids += ids
        return Delta(tokens, reasoning, content, name, arguments, ids)

    def _cut(self, content: str) -> str:
        limit = self.script.cut_at_chars
        if limit is not None:
            content = content[: max(0, limit - self.content_chars)]
        self.content_chars += len(content)
        return content
