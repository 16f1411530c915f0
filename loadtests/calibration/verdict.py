"""Compares predicted with measured times of held-out runs, request by request.

The error of a request is |predicted - measured| / measured. An emulator is honest if the median error of the end-to-end
time over all held-out requests is within the limit, and the engine did what the model said it could.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadtests.calibration.client import Measured
from loadtests.calibration.linear import MIN_TOKENS
from loadtests.calibration.replay import Times, replay
from loadtests.live.figures import compute_percentile
from service.emulator.profiles import EngineProfile

LIMIT = 0.15
_SEED = 1


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors of one kind over some requests; ``bias`` is the median of predicted / measured - 1."""

    median: float
    p90: float
    bias: float
    count: int


@dataclass(frozen=True, slots=True)
class Judged:
    """One held-out run, predicted and measured."""

    name: str
    utilisation: float
    measured: Sequence[Times]
    predicted: Sequence[Times]
    hits_measured: float
    hits_predicted: int
    send_lag_s: float
    foreign_cores: float | None
    is_disturbed: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of all held-out runs."""

    e2e: Errors
    ttft: Errors
    tpot: Errors
    limit: float
    failed: Sequence[str] = ()
    """Runs that the engine did not do in full although the model said it could."""

    @property
    def is_honest(self) -> bool:
        return self.e2e.median <= self.limit and not self.failed


def judge_run(profile: EngineProfile, seen: Measured, utilisation: float, hits: float) -> Judged:
    """Predict a run that was measured. ``hits``: prompt tokens the real engine found in its cache meanwhile."""
    said = replay(profile, seen.questions, _SEED)
    usage = seen.usage
    return Judged(
        seen.name, utilisation, seen.times, said.times, hits, said.prefix_hits, seen.send_lag_s, usage.foreign_cores,
        usage.is_disturbed,
    )  # fmt: skip


def judge(runs: Sequence[Judged], failed: Sequence[str], limit: float) -> Verdict:
    """The verdict over all requests of all runs."""
    e2e, ttft, tpot = compute_errors(runs)
    return Verdict(e2e, ttft, tpot, limit, tuple(failed))


def compute_errors(runs: Sequence[Judged]) -> tuple[Errors, Errors, Errors]:
    """End to end, first token, and per token after it (of answers with at least ``MIN_TOKENS``)."""
    pairs = [pair for run in runs for pair in zip(run.predicted, run.measured, strict=True)]
    decoding = [(said, seen) for said, seen in pairs if seen.tokens >= MIN_TOKENS]
    return (
        compare([(said.e2e_s, seen.e2e_s) for said, seen in pairs]),
        compare([(said.ttft_s, seen.ttft_s) for said, seen in pairs]),
        compare([(said.tpot_s or 0.0, seen.tpot_s or 0.0) for said, seen in decoding]),
    )


def compare(pairs: Sequence[tuple[float, float]]) -> Errors:
    """Errors of (predicted, measured) pairs. A pair measured as zero (all tokens at once) has the largest error."""
    signed = sorted(said / seen - 1.0 if seen > 0.0 else float("inf") for said, seen in pairs)
    sizes = sorted(map(abs, signed))
    nothing = float("nan")
    return Errors(
        median=_read(sizes, 0.5, nothing), p90=_read(sizes, 0.9, nothing), bias=_read(signed, 0.5, nothing),
        count=len(pairs),
    )  # fmt: skip


def _read(ordered: Sequence[float], share: float, otherwise: float) -> float:
    value = compute_percentile(ordered, share)
    return otherwise if value is None else value
