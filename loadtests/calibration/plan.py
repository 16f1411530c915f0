"""Decides what is asked of an engine: the sweep a model is fitted to, and the held-out runs that judge it.

Everything follows from seeds. Lengths of prompts are wishes: ``texts`` learns what the engine's tokenizer makes of
them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

LEAD_S = 0.1
"""Before the first request of a run: the engine is idle and the client settled."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request to be sent at ``at_s``. Those with the same ``group`` begin with the same ``shared_tokens``."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    shared_tokens: int = 0
    group: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """Requests that meet an engine with nothing else to do."""

    name: str
    seed: int
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Sweep:
    """The grid. Each cell is one run: so many requests close to one another, of one prompt length and reuse."""

    batches: tuple[int, ...] = (1, 4, 8, 16)
    prompts: tuple[int, ...] = (48, 400, 1200)
    reuses: tuple[float, ...] = (0.0, 0.8)
    output_tokens: int = 40
    staggers_s: tuple[float, ...] = (0.03, 0.003)
    """Between the requests of a cell: prompts meet decoding requests; and requests meet one another being read."""
    singles: int = 3
    """Requests, one at a time, for each prompt length and reuse: what an idle engine needs for a first token."""
    single_prompts: tuple[int, ...] = (48, 600, 1200, 2400, 3600)
    single_gap_s: float = 0.5


@dataclass(frozen=True, slots=True)
class Mix:
    """Requests as a service might get them. Ranges are uniform in the logarithm."""

    name: str
    about: str
    prompts: tuple[int, int]
    outputs: tuple[int, int]
    reuse_ratio: float = 0.0
    """Share of a prompt that its group has in common."""
    groups: int = 1


MIXES = (
    Mix("chat", "short questions, answers of 24 to 120 tokens", (32, 320), (24, 120)),
    Mix("documents", "prompts of 800 to 3,000 tokens, short answers", (800, 3000), (12, 60)),
    Mix("agents", "four groups with a long common beginning each", (900, 2200), (16, 90), 0.85, 4),
)
UTILISATIONS = (0.5, 0.65, 0.8)


def plan_sweep(sweep: Sweep, context_tokens: int) -> list[Run]:
    """The runs of the sweep. What would not fit into the context is left out."""
    room = context_tokens - sweep.output_tokens
    runs: list[Run] = []
    for reuse in sweep.reuses:
        prompts = [prompt for prompt in sweep.single_prompts if prompt <= room and not (reuse and prompt < 256)]
        for prompt in prompts:
            shared = int(prompt * reuse)
            count = sweep.singles + bool(reuse)  # the first of those that share finds nothing to reuse
            calls = [Call(LEAD_S + index * sweep.single_gap_s, prompt, 8, shared) for index in range(count)]
            runs.append(Run(f"single p{prompt} r{reuse:g}", len(runs), tuple(calls)))
    for prompt in sweep.prompts:
        for reuse in sweep.reuses:
            if prompt > room or (reuse and prompt < 256):
                continue
            shared = int(prompt * reuse)
            for batch, gap_s in product(sweep.batches, sweep.staggers_s):
                if batch == 1 and gap_s != sweep.staggers_s[0]:
                    continue
                calls = [Call(LEAD_S + index * gap_s, prompt, sweep.output_tokens, shared) for index in range(batch)]
                runs.append(Run(f"batch {batch} p{prompt} r{reuse:g} every {gap_s:g} s", len(runs), tuple(calls)))
    return runs


def plan_warm_up(context_tokens: int) -> Run:
    """A run nobody looks at: an engine's first requests pay for what later ones find ready."""
    prompts = [prompt for prompt in (48, 600, 2400) if prompt + 16 <= context_tokens]
    calls = [Call(LEAD_S + 0.08 * index, prompts[index % len(prompts)], 16) for index in range(24)]
    return Run("warm-up", 0, tuple(calls))


def plan_held_out(mix: Mix, rate_rps: float, seconds: float, seed: int, context_tokens: int) -> Run:
    """Poisson arrivals of one mix."""
    chance = random.Random(f"held out {mix.name} {seed}")  # noqa: S311 - a reproducible load, not a secret
    shapes = deal(mix, chance, context_tokens)
    calls: list[Call] = []
    at_s = LEAD_S
    while (at_s := at_s + chance.expovariate(rate_rps)) < LEAD_S + seconds:
        prompt, output, shared, group = next(shapes)
        calls.append(Call(at_s, prompt, output, shared, group))
    return Run(f"{mix.name} at {rate_rps:.1f}/s", seed, tuple(calls))


def plan_flood(mix: Mix, requests: int, context_tokens: int) -> Run:
    """All at once: replayed, it tells how many requests of the mix an engine does in a second at most."""
    shapes = deal(mix, random.Random(f"flood {mix.name}"), context_tokens)  # noqa: S311 - as above
    calls = tuple(Call(0.0, *next(shapes)) for _ in range(requests))
    return Run(f"flood of {mix.name}", 0, calls)


def deal(mix: Mix, chance: random.Random, context_tokens: int) -> Iterator[tuple[int, int, int, int]]:
    """(prompt, output, shared, group) without end."""
    longest = min(mix.prompts[1], context_tokens - mix.outputs[1] - 16)
    shared = int(mix.reuse_ratio * min(mix.prompts[0], longest))
    while True:
        low, high = min(mix.prompts[0], longest), longest
        prompt = round(low * (high / low) ** chance.random())
        low, high = mix.outputs
        yield prompt, round(low * (high / low) ** chance.random()), shared, chance.randrange(mix.groups)
