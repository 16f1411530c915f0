"""Writes prompts of a wanted length and asks the engine's own tokenizer what they became.

Token ids say everything a prediction may know of a prompt: how long it is, and which whole blocks of it another prompt
begins with as well. The engine is asked before the measurement, and forgets: ``/tokenize`` computes nothing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from loadtests.calibration.plan import Call, Run

_WORDS = (
    "river", "stone", "water", "light", "house", "garden", "paper", "window", "engine", "signal", "number",
    "letter", "morning", "evening", "summer", "winter", "table", "return", "value", "object", "method", "class",
    "module", "string", "integer", "list", "index", "key", "name", "file", "path", "line", "error", "test", "road",
    "bridge", "market", "price", "story", "music", "voice", "colour", "mountain", "forest", "island", "harbour",
    "captain", "doctor", "teacher", "keeps", "makes", "takes", "gives", "finds", "holds", "moves", "turns",
    "opens", "closes", "begins", "follows", "answers", "carries", "measures", "counts",
)  # fmt: skip
_SAMPLE_WORDS = 400


@dataclass(frozen=True, slots=True)
class Ask:
    """One request as it goes out, and what the engine will make of its prompt."""

    call: Call
    body: bytes
    prompt_tokens: int
    block_hashes: tuple[int, ...]


class Writer:
    """Writes the requests of runs for one engine."""

    def __init__(self, client: httpx.Client, model: str, block_size: int) -> None:
        self._client = client
        self._model = model
        self._block_size = block_size
        empty, sample = self._tokenize(""), self._tokenize(" ".join(_draw(random.Random(0), _SAMPLE_WORDS)))  # noqa: S311
        self._overhead = len(empty)
        self._tokens_per_word = (len(sample) - len(empty)) / _SAMPLE_WORDS

    def write(self, run: Run, salt: str) -> list[Ask]:
        """The run's requests. With another salt the engine's prefix cache knows none of them."""
        chance = random.Random(f"text {run.name} {run.seed}")  # noqa: S311 - reproducible texts, not secrets
        beginnings: dict[tuple[int, int], list[str]] = {}
        asks: list[Ask] = []
        for call in run.calls:
            key = (call.group, call.shared_tokens)
            if key not in beginnings:
                beginnings[key] = _draw(chance, self._count_words(call.shared_tokens))
            rest = self._count_words(call.prompt_tokens - self._overhead) - len(beginnings[key])
            text = " ".join(beginnings[key] + _draw(chance, max(1, rest)))
            ids = self._tokenize(text)
            asks.append(Ask(call, self._build_body(text, call, salt), len(ids), hash_blocks(ids, self._block_size)))
        return asks

    def _count_words(self, tokens: int) -> int:
        return max(0, round(tokens / self._tokens_per_word))

    def _tokenize(self, text: str) -> Sequence[int]:
        body = {"model": self._model, "messages": _build_messages(text)}
        answer = self._client.post("/tokenize", json=body)
        answer.raise_for_status()
        tokens: list[int] = answer.json()["tokens"]
        return tokens

    def _build_body(self, text: str, call: Call, salt: str) -> bytes:
        body: Mapping[str, Any] = {
            "model": self._model,
            "messages": _build_messages(text),
            "max_tokens": call.output_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "cache_salt": salt,
        }
        return json.dumps(body).encode()


def hash_blocks(ids: Sequence[int], block_size: int) -> tuple[int, ...]:
    """A chained hash per full block, as the emulator's engine wants them: equal hashes mean equal beginnings."""
    chain, hashes = 0, []
    for start in range(0, len(ids) - block_size + 1, block_size):
        chain = hash((chain, tuple(ids[start : start + block_size])))
        hashes.append(chain)
    return tuple(hashes)


def _build_messages(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def _draw(chance: random.Random, words: int) -> list[str]:
    return chance.choices(_WORDS, k=words)
