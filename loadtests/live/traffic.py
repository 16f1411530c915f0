"""Describes offered traffic: tiers with their targets, shapes of requests, mixes of shapes, and when requests arrive.

Arrivals are computed before the first request is sent, from a seed alone: every gateway gets the same requests at the
same moments. Gaps are gamma distributed with a coefficient of variation c (shape 1/c^2): c = 1 is a Poisson process,
more is burstier (traces of real services have c between 1 and 13). The gaps are then stretched so that exactly rate
times length requests arrive, and shapes are dealt in exactly their shares: in windows of seconds chance would otherwise
make a load of 2x one of 1.7x, or a third of hi a quarter. (For c = 1 that is a Poisson process given its count.)

A run has three parts: warm-up, counted window, cool-down, all at the same rate. Only requests that arrive in the window
count. The warm-up fills engine and queues, so that an empty system's first seconds do not flatter anyone; the cool-down
keeps the pressure on while the last counted requests wait. Without it every gateway that queues would serve the end of
its queue from capacity nobody else asks for, and beat the engine's own peak.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import cast

_PROMPT_OVERHEAD_TOKENS = 8  # measured on the emulated chat template: role marks and the opening of the answer
_BYTES_PER_TOKEN = 4


@dataclass(frozen=True)
class Targets:
    """What a tier promises: seconds to the first token by prompt tokens (first edge that fits), seconds per token."""

    tier: str
    ttft_s: tuple[tuple[int, float], ...]
    tpot_s: float

    def choose_ttft_s(self, prompt_tokens: int) -> float:
        """The promise to a prompt of this size; beyond the last edge the last one holds."""
        for edge, seconds in self.ttft_s:
            if prompt_tokens <= edge:
                return seconds
        return self.ttft_s[-1][1]


@dataclass(frozen=True)
class Shape:
    """Requests of one kind: whose they are, their share of all arrivals, their size."""

    name: str
    tier: str
    share: float
    prompt_tokens: int
    tokens: int


@dataclass(frozen=True)
class Mix:
    """What arrives, and how many workers it is meant for. Tiers stand in the order of their rank."""

    name: str
    workers: int
    tiers: tuple[Targets, ...]
    shapes: tuple[Shape, ...]
    burst_cv: float = 1.0

    def choose_targets(self, tier: str) -> Targets:
        """The targets of a tier."""
        return next(one for one in self.tiers if one.tier == tier)

    def compute_share(self, tier: str) -> float:
        """The tier's share of all arrivals."""
        return sum(s.share for s in self.shapes if s.tier == tier) / sum(s.share for s in self.shapes)

    def restrict(self, tier: str) -> Mix:
        """The same mix with only this tier's requests in it."""
        return Mix(self.name, self.workers, self.tiers, tuple(s for s in self.shapes if s.tier == tier), self.burst_cv)


@dataclass(frozen=True)
class Schedule:
    """How often and how long requests arrive. Moments are seconds from the start of the counted window."""

    rate_rps: float
    seconds: float
    warm_up_s: float = 0.0
    cool_down_s: float = 0.0
    seed: int = 1


@dataclass(frozen=True)
class Arrival:
    """One request to be sent at ``at_s``; negative in the warm-up."""

    at_s: float
    shape: int
    counted: bool


HI, LO = "hi", "lo"

UNIFORM = Mix(
    name="uniform",
    workers=1,
    tiers=(Targets(HI, ((4096, 1.0),), 0.05), Targets(LO, ((4096, 5.0),), 0.1)),
    shapes=(Shape("hi", HI, 0.3, 16, 64), Shape("lo", LO, 0.7, 16, 64)),
)
"""The load of the anchors: 30 % hi, 70 % lo, answers of 64 tokens, one worker."""

MIXED = Mix(
    name="mixed",
    workers=2,
    tiers=(Targets(HI, ((1024, 1.0), (4096, 2.0)), 0.05), Targets(LO, ((1024, 5.0), (4096, 8.0)), 0.1)),
    shapes=(
        Shape("chat-hi", HI, 0.25, 64, 48),
        Shape("prompt-hi", HI, 0.05, 2500, 24),
        Shape("chat-lo", LO, 0.45, 64, 64),
        Shape("prompt-lo", LO, 0.10, 2500, 32),
        Shape("answer-lo", LO, 0.15, 64, 160),
    ),
    burst_cv=1.5,
)
"""Short chats, long prompts and long answers on two workers, burstier than Poisson. A guess at a mixed service."""

MIXES = {mix.name: mix for mix in (UNIFORM, MIXED)}


def compute_arrivals(mix: Mix, schedule: Schedule) -> list[Arrival]:
    """All arrivals of a run in order; the same for the same mix and schedule."""
    chance = random.Random(schedule.seed)  # noqa: S311 - a reproducible load, not a secret
    parts = (
        (-schedule.warm_up_s, schedule.warm_up_s, False),
        (0.0, schedule.seconds, True),
        (schedule.seconds, schedule.cool_down_s, False),
    )
    arrivals: list[Arrival] = []
    for start_s, length_s, counted in parts:
        moments = _spread(round(schedule.rate_rps * length_s), length_s, mix.burst_cv, chance)
        shapes = _deal(mix, len(moments), chance)
        arrivals += [Arrival(start_s + at_s, shape, counted) for at_s, shape in zip(moments, shapes, strict=True)]
    return arrivals


def _spread(count: int, length_s: float, burst_cv: float, chance: random.Random) -> list[float]:
    gaps = [chance.gammavariate(burst_cv**-2, 1.0) for _ in range(count + 1)]
    scale = length_s / sum(gaps)
    return [scale * at for at in accumulate(gaps[:-1])]


def _deal(mix: Mix, count: int, chance: random.Random) -> list[int]:
    hand: list[int] = []
    total, edge = sum(shape.share for shape in mix.shapes), 0.0
    for index, shape in enumerate(mix.shapes):
        edge += shape.share / total * count
        hand += [index] * (round(edge) - len(hand))
    chance.shuffle(hand)
    return hand


def build_prompt(prompt_tokens: int, chance: random.Random) -> str:
    """A prompt of about this size by the emulator's measure, unlike all others from its first letter on."""
    letters = max(8, (prompt_tokens - _PROMPT_OVERHEAD_TOKENS) * _BYTES_PER_TOKEN)
    return chance.randbytes(letters // 2).hex()


def dump_mix(mix: Mix) -> dict[str, object]:
    """The mix as it goes into JSON."""
    return asdict(mix)


def load_mix(raw: Mapping[str, object]) -> Mix:
    """The mix that ``dump_mix`` wrote."""
    tiers = cast("list[dict[str, object]]", raw["tiers"])
    shapes = cast("list[dict[str, object]]", raw["shapes"])
    return Mix(
        name=str(raw["name"]),
        workers=int(cast("int", raw["workers"])),
        tiers=tuple(
            Targets(
                str(one["tier"]),
                tuple((int(edge), float(s)) for edge, s in cast("list[tuple[int, float]]", one["ttft_s"])),
                float(cast("float", one["tpot_s"])),
            )
            for one in tiers
        ),
        shapes=tuple(Shape(**one) for one in shapes),  # type: ignore[arg-type]  # written by dump_mix
        burst_cv=float(cast("float", raw["burst_cv"])),
    )
