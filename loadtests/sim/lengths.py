"""How large requests are: mixes of size classes, and sessions whose prompts grow.

A mix is data; ``open`` gives a function that draws one size after another from the generator given. ``mean`` is taken
by drawing with a fixed seed, so that loads can be stated as multiples of capacity.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Protocol
from zlib import crc32

from loadtests.sim.traces import BLOCK_TOKENS, load_trace
from service.gateway.prefix import ENDS_MAX, LEAST_BYTES

_MEAN_DRAWS = 4000
_TRACE_MEAN_DRAWS = 700
"""About what a tenant sends in two minutes: a trace that begins cold reuses less at first than later."""


@dataclass(slots=True)
class Size:
    """One request: what the engine will do for it, and what the gateway can see (bound, hashes, session)."""

    prompt_tokens: int
    output_tokens: int
    max_output_tokens: int | None = None
    hashes: tuple[int, ...] = ()
    session: str | None = None
    cached_tokens: int = 0
    """Prompt tokens that an earlier request of the session has already had computed."""
    ends: tuple[int, ...] = ()
    """Where the messages before ended, in tokens."""


BLOCK_BYTES = 512
"""Of a prompt, per block of 128 tokens, where it is the same as another's."""

_GRID = tuple(sorted({1024 << step for step in range(17)} | {1536 << step for step in range(6)}))


def find_marks(size: Size) -> tuple[int, ...]:
    """What ``service.gateway.prefix`` would make of the prompt: the grid, its end, and those of messages before."""
    blocks = len(size.hashes[: size.prompt_tokens // BLOCK_TOKENS])
    if blocks * BLOCK_BYTES < LEAST_BYTES:
        return ()
    ends = {end // BLOCK_BYTES for end in _GRID} | {size.cached_tokens // BLOCK_TOKENS, blocks}
    ends |= {end // BLOCK_TOKENS for end in size.ends}
    marks = (
        (end * BLOCK_BYTES << 32) | crc32(b"%d" % size.hashes[end - 1]) for end in sorted(ends) if 0 < end <= blocks
    )
    return tuple(marks)


class Mix(Protocol):
    """Where sizes come from."""

    def open(self, chance: random.Random) -> Callable[[], Size]:
        """A function that draws the next size."""
        ...

    def __hash__(self) -> int:
        """A mix is a value."""
        ...


@dataclass(frozen=True, slots=True)
class Spread:
    """A lognormal number of tokens: median, sigma of the logarithm, and the most. Sigma 0 is a constant."""

    median: float
    sigma: float = 0.0
    most: int = 1_000_000

    def draw(self, chance: random.Random) -> int:
        """One number, at least 1."""
        if not self.sigma:
            return int(self.median)
        return max(1, min(self.most, int(self.median * chance.lognormvariate(0.0, self.sigma))))


@dataclass(frozen=True, slots=True)
class SizeClass:
    """One kind of request. A share ``bounded`` of them sends ``max_tokens``, ``slack`` times what is used at least."""

    name: str
    weight: float
    prompt: Spread
    output: Spread
    bounded: float = 0.5
    slack: float = 4.0


@dataclass(frozen=True, slots=True)
class Classes:
    """Independent requests of several kinds."""

    kinds: tuple[SizeClass, ...]

    def open(self, chance: random.Random) -> Callable[[], Size]:
        """See :class:`Mix`."""
        kinds = self.kinds
        weights: list[float] = []
        for kind in kinds:
            weights.append((weights[-1] if weights else 0.0) + kind.weight)

        def draw() -> Size:
            kind = kinds[0] if len(kinds) == 1 else chance.choices(kinds, cum_weights=weights)[0]
            prompt, output = kind.prompt.draw(chance), kind.output.draw(chance)
            bound = None
            if kind.bounded and chance.random() < kind.bounded:
                bound = max(output, int(output * (1.0 + (kind.slack - 1.0) * chance.random())))
            return Size(prompt, output, bound)

        return draw


@dataclass(frozen=True, slots=True)
class Agentic:
    """Sessions that send their whole history each turn: in:out about 131:1, 80k context by turn 30 (llm-d's figures).

    ``sessions`` run at once; each begins with ``system_tokens`` that all share and grows by ``turn`` a time.
    """

    sessions: int = 16
    system_tokens: int = 4096
    turn: Spread = Spread(2200.0, 0.6, 16_384)
    output: Spread = Spread(280.0, 0.6, 4096)
    turns_max: int = 30

    def open(self, chance: random.Random) -> Callable[[], Size]:
        """See :class:`Mix`."""
        salt = chance.getrandbits(30) << 32
        uids: list[int] = []
        contexts = [0] * self.sessions
        ends: list[tuple[int, ...]] = [()] * self.sessions
        turns = [0] * self.sessions
        begun = 0
        for index in range(self.sessions):
            uids.append(begun)
            begun += 1
            turns[index] = chance.randrange(self.turns_max)
            contexts[index] = int(turns[index] * self.turn.median)

        def draw() -> Size:
            nonlocal begun
            index = chance.randrange(self.sessions)
            if turns[index] >= self.turns_max:
                uids[index], turns[index], contexts[index], ends[index] = begun, 0, 0, ()
                begun += 1
            before = contexts[index] + self.system_tokens
            prompt = before + self.turn.draw(chance)
            output = self.output.draw(chance)
            shared = self.system_tokens // BLOCK_TOKENS
            base = salt + ((uids[index] + 1) << 14)
            count = (prompt + output) // BLOCK_TOKENS
            hashes = (*range(salt, salt + min(shared, count)), *range(base + shared, base + count))
            turns[index] += 1
            contexts[index] = prompt + output - self.system_tokens
            earlier, ends[index] = ends[index], (*ends[index], prompt, prompt + output)[1 - ENDS_MAX :]
            cached = before // BLOCK_TOKENS * BLOCK_TOKENS
            return Size(prompt, output, None, hashes, f"s{uids[index]}", cached, earlier)

        return draw


@dataclass(frozen=True, slots=True)
class TraceSizes:
    """The sizes of a trace in their order, from the place ``begin_ratio`` of it, over and over.

    With :class:`~loadtests.sim.arrivals.TraceProcess` of the same place each size keeps its moment. Prefixes are shared
    within one place only.
    """

    trace: str
    begin_ratio: float = 0.0

    def open(self, chance: random.Random) -> Callable[[], Size]:
        """See :class:`Mix`."""
        rows = load_trace(self.trace)
        seen: set[int] = set()
        index = int(self.begin_ratio * len(rows)) - 1
        salt = int(self.begin_ratio * 1_000_000) << 32

        def draw() -> Size:
            nonlocal index
            index = (index + 1) % len(rows)
            row = rows[index]
            hits = 0
            for name in row.hashes:
                if name not in seen:
                    break
                hits += 1
            seen.update(row.hashes)
            cached = min(hits * BLOCK_TOKENS, row.prompt_tokens - 1)
            hashes = tuple(salt + name for name in row.hashes)
            return Size(row.prompt_tokens, row.output_tokens, None, hashes, None, cached)

        return draw


@dataclass(frozen=True, slots=True)
class MeanSize:
    """Means over many requests of a mix; ``uncached_tokens`` is what is left of the prompt with perfect reuse."""

    prompt_tokens: float
    uncached_tokens: float
    output_tokens: float


@cache
def compute_mean(mix: Mix) -> MeanSize:
    """The mean request of ``mix``."""
    draw = mix.open(random.Random(20_260_801))  # noqa: S311 - repeatable on purpose
    draws = _TRACE_MEAN_DRAWS if isinstance(mix, TraceSizes) else _MEAN_DRAWS
    sizes = [draw() for _ in range(draws)]
    prompt = sum(size.prompt_tokens for size in sizes) / len(sizes)
    cached = sum(size.cached_tokens for size in sizes) / len(sizes)
    return MeanSize(prompt, prompt - cached, sum(size.output_tokens for size in sizes) / len(sizes))


UNIFORM = Classes((SizeClass("uniform", 1.0, Spread(16.0), Spread(64.0), bounded=1.0, slack=1.0),))
"""The load of the comparison on a real engine: 64 tokens each."""

SHORT_CHAT = SizeClass("short chat", 0.74, Spread(500.0, 0.7, 4096), Spread(150.0, 0.8, 2048))
LONG_PROMPT = SizeClass("long prompt", 0.12, Spread(12_000.0, 0.6, 32_768), Spread(180.0, 0.7, 2048))
LONG_ANSWER = SizeClass("long answer", 0.135, Spread(600.0, 0.7, 4096), Spread(1200.0, 0.5, 8192))
HUGE_PROMPT = SizeClass("100k prompt", 0.005, Spread(100_000.0, 0.15, 131_072), Spread(250.0, 0.6, 2048))
MIXED = Classes((SHORT_CHAT, LONG_PROMPT, LONG_ANSWER, HUGE_PROMPT))
"""A guess of a service's traffic: many short chats, some long prompts, some long answers, few 100k prompts."""

CHAT = Classes((SHORT_CHAT,))
HUGE = Classes((HUGE_PROMPT,))
THINKING = Classes((SizeClass("thinking", 1.0, Spread(600.0, 0.7, 8192), Spread(1500.0, 0.8, 16_384), bounded=0.2),))
AGENTIC = Agentic()
