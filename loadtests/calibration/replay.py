"""Plays a run through the emulator's engine in virtual time: the prediction."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from service.emulator.engine import Engine
from service.emulator.profiles import EngineProfile
from service.emulator.steps import EngineConfig, EngineRequest

STEPS_MAX = 2_000_000


@dataclass(frozen=True, slots=True)
class Question:
    """What a prediction may know of a request."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    block_hashes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Times:
    """When a request was due, and when its first and last token came; seconds on the clock of its run."""

    at_s: float
    first_s: float
    last_s: float
    tokens: int

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.at_s

    @property
    def e2e_s(self) -> float:
        return self.last_s - self.at_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per token after the first; ``None`` where there are none."""
        return (self.last_s - self.first_s) / (self.tokens - 1) if self.tokens > 1 else None


@dataclass(frozen=True, slots=True)
class Replay:
    """What the emulator's engine made of a run, requests in the order of the questions."""

    times: list[Times]
    prefix_hits: int
    preemptions: int


class ReplayError(Exception):
    """The emulated engine did not answer everything it was asked."""


def replay(profile: EngineProfile, questions: Sequence[Question], seed: int = 0) -> Replay:
    """Ask all questions at their moments of an engine that is idle before them."""
    engine = Engine(profile, EngineConfig(), random.Random(seed))  # noqa: S311 - seeded chance is the model's
    order = sorted(range(len(questions)), key=lambda index: questions[index].at_s)
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    coming = 0
    for _ in range(STEPS_MAX):
        step_at = engine.next_step_at()
        if coming < len(order) and (step_at is None or questions[order[coming]].at_s <= step_at):
            one = questions[order[coming]]
            name = str(order[coming])
            engine.submit(EngineRequest(name, one.prompt_tokens, one.output_tokens, 0, one.block_hashes), one.at_s)
            coming += 1
            continue
        if step_at is None:
            break
        result = engine.step(step_at)
        for name, _, _ in result.first_tokens:
            first[name] = step_at
        for finished in result.finished:
            last[finished.request_id] = step_at
        if result.aborted:
            raise ReplayError(f"{len(result.aborted)} requests do not fit into the emulated cache")
    if len(last) < len(questions):
        raise ReplayError(f"{len(questions) - len(last)} requests had not ended after {STEPS_MAX} steps")
    times = [
        Times(one.at_s, first[str(index)], last[str(index)], one.output_tokens) for index, one in enumerate(questions)
    ]
    stats = engine.stats()
    return Replay(times, stats.prefix_hits, stats.preemptions)


def compute_capacity_rps(profile: EngineProfile, questions: Sequence[Question]) -> float:
    """Requests per second of an engine that always has enough to do, from a flood of them: the middle half of ends."""
    ends = sorted(one.last_s for one in replay(profile, questions).times)
    quarter = len(ends) // 4
    return (len(ends) - 2 * quarter - 1) / (ends[len(ends) - quarter - 1] - ends[quarter])
