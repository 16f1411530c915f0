"""Judges what became of each request against its tier's targets, and adds the verdicts up.

Every moment is counted from when the request was *meant* to be sent. Attainment is good requests over *offered* ones:
a refusal is a miss, however politely it is put, because a gateway that may leave refusals out can promise anything.
Ratios are always made from sums, never from ratios.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from loadtests.live.figures import compute_spread_ms
from loadtests.live.traffic import Mix, Shape, Targets

_REFUSALS = frozenset({408, 429, 503})  # 408: how SMG ends a request that waited too long


class Verdict(StrEnum):
    """What became of one request."""

    GOOD = "good"
    LATE = "late"  # first token after its target
    SLOW = "slow"  # first token in time, the others too slow
    SHORT = "short"  # fewer tokens than asked for
    REFUSED = "refused"
    FAILED = "failed"
    UNFINISHED = "unfinished"  # cut off by the end of the run


@dataclass(slots=True)
class Sighting:
    """What the client saw of one request; moments are seconds from the start of the counted window."""

    at_s: float
    shape: int
    counted: bool
    sent_s: float | None = None
    first_s: float | None = None
    last_s: float | None = None
    end_s: float | None = None
    status: int | None = None
    tokens: int | None = None
    retry_after_s: float | None = None
    failure: str | None = None


@dataclass
class TierFigures:
    """Sums over the counted requests of one tier."""

    offered: int = 0
    good: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    ttft_s: list[float] = field(default_factory=list)
    tpot_s: list[float] = field(default_factory=list)
    refusal_s: list[float] = field(default_factory=list)
    retry_after_s: list[float] = field(default_factory=list)


def compute_tpot_s(sighting: Sighting) -> float | None:
    """Mean time per token after the first; None where there is no second one."""
    if sighting.first_s is None or sighting.last_s is None or (sighting.tokens or 0) < 2:
        return None
    return (sighting.last_s - sighting.first_s) / ((sighting.tokens or 0) - 1)


def judge(sighting: Sighting, shape: Shape, targets: Targets) -> Verdict:
    """The verdict on one request at the end of the run."""
    if sighting.status is not None and sighting.status != 200:
        return Verdict.REFUSED if sighting.status in _REFUSALS else Verdict.FAILED
    if sighting.failure is not None:
        return Verdict.FAILED
    if sighting.first_s is None or sighting.first_s - sighting.at_s > targets.choose_ttft_s(shape.prompt_tokens):
        unseen = sighting.first_s is None and sighting.end_s is not None
        return Verdict.FAILED if unseen else Verdict.LATE
    if sighting.end_s is None:
        return Verdict.UNFINISHED
    if sighting.tokens is None or sighting.tokens < shape.tokens:
        return Verdict.SHORT
    tpot_s = compute_tpot_s(sighting)
    return Verdict.SLOW if tpot_s is not None and tpot_s > targets.tpot_s else Verdict.GOOD


def is_settled(sighting: Sighting, shape: Shape, targets: Targets, now_s: float) -> bool:
    """Whether nothing that may yet come can make the request good, or it has ended."""
    if sighting.end_s is not None:
        return True
    if sighting.first_s is None:
        return now_s - sighting.at_s > targets.choose_ttft_s(shape.prompt_tokens)
    return now_s - sighting.first_s > targets.tpot_s * max(shape.tokens - 1, 1)


def add_up(mix: Mix, sightings: Iterable[Sighting]) -> dict[str, TierFigures]:
    """Sums by tier, in the order of rank; only counted requests."""
    figures = {targets.tier: TierFigures() for targets in mix.tiers}
    for sighting in sightings:
        if not sighting.counted:
            continue
        shape = mix.shapes[sighting.shape]
        tier = figures[shape.tier]
        verdict = judge(sighting, shape, mix.choose_targets(shape.tier))
        tier.offered += 1
        tier.good += verdict is Verdict.GOOD
        tier.verdicts[verdict.value] += 1
        if verdict is Verdict.FAILED:
            tier.failures[sighting.failure or f"status {sighting.status}"] += 1
        if sighting.first_s is not None:
            tier.ttft_s.append(sighting.first_s - sighting.at_s)
        tpot_s = compute_tpot_s(sighting)
        if tpot_s is not None and sighting.end_s is not None:
            tier.tpot_s.append(tpot_s)
        if verdict is Verdict.REFUSED and sighting.end_s is not None:
            tier.refusal_s.append(sighting.end_s - sighting.at_s)
            if sighting.retry_after_s is not None:
                tier.retry_after_s.append(sighting.retry_after_s)
    return figures


def compute_attainment(figures: TierFigures) -> float | None:
    """Good over offered; None where nothing was offered."""
    return figures.good / figures.offered if figures.offered else None


def compute_goodput_rps(figures: Iterable[TierFigures], seconds: float) -> float:
    """Good requests of all tiers per second of the counted window."""
    return sum(one.good for one in figures) / seconds


def summarise(figures: TierFigures) -> dict[str, object]:
    """One tier's figures as JSON."""
    hints: Sequence[float] = sorted(figures.retry_after_s)
    return {
        "offered": figures.offered,
        "good": figures.good,
        "attainment": compute_attainment(figures),
        "verdicts": dict(figures.verdicts),
        "failures": dict(figures.failures),
        "ttft_ms": compute_spread_ms(figures.ttft_s),
        "tpot_ms": compute_spread_ms(figures.tpot_s),
        "refusal_ms": compute_spread_ms(figures.refusal_s),
        "retry_after_s": {
            "given": len(hints),
            "distinct": len(set(hints)),
            "min": hints[0] if hints else None,
            "max": hints[-1] if hints else None,
        },
    }
