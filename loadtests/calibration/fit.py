"""Fits the emulator's step model to measured runs: least squares on request times, by replaying them.

The measured times of a request depend on what every other request did, so the model is fitted where it will be used:
all sweep runs are replayed with a candidate's parameters (without noise), and what is minimised is

    sum over requests of  rho(ln(TTFT' / TTFT))  +  rho(ln(decode time' / decode time))

with rho the squared error, growing only linearly beyond ``HUBER`` so that one hiccup of the machine does not weigh as
much as a hundred good requests. Levenberg-Marquardt with differences for derivatives, from the start that ``linear``
finds; no parameter falls below zero.

*Trade-offs*: a parameter that the sweep does not excite stays near its start; what the model cannot express (garbage
collection, the kernel's scheduling) ends up in the parameters that come nearest.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median

from loadtests.calibration.linear import MIN_TOKENS, build_decode_rows, build_first_rows, solve
from loadtests.calibration.replay import Question, Times, replay
from service.emulator.profiles import EngineProfile, Frontend

HUBER = 0.25
ROUNDS = 10
STEPS = (0.1, 0.03)
"""Sizes of the differences, one search after another: replays have jumps, where a request just misses a step."""
SHIFTS = 3
NOISE_STEPS = 8
_DAMPINGS = 6
_GAIN_MIN = 1e-3
_FLOOR_S = 1e-4
"""Times below this are the clock's."""

COST_FIELDS = ("base_s", "per_token_s", "per_mega_kv_s", "per_prefill_token_s", "per_prefill_context_s")
FRONTEND_FIELDS = ("latency_s", "per_request_s", "per_prompt_token_s", "stall_ratio")
FIELDS = COST_FIELDS + FRONTEND_FIELDS
SCALES = (2e-3, 1e-4, 1e-2, 5e-6, 2e-9, 5e-3, 1e-3, 1e-6, 0.5)
"""What each parameter is about, on a small machine: the size of a step of the search where a parameter is zero."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A run of the sweep: what was asked, and what came."""

    questions: Sequence[Question]
    times: Sequence[Times]
    shifted: Sequence[Sequence[Question]] = ()


def shift(sample: Sample, most_s: float) -> Sample:
    """The sample with its questions moved a little, ``SHIFTS`` times, each request by itself."""
    chance = random.Random("shifts")  # noqa: S311 - the same for every candidate
    return replace(
        sample,
        shifted=[
            [replace(one, at_s=one.at_s + chance.uniform(0.0, most_s)) for one in sample.questions]
            for _ in range(SHIFTS)
        ],
    )


@dataclass(frozen=True, slots=True)
class Fit:
    """What was found. ``loss`` is the mean of rho per residual, at the start and at the end."""

    profile: EngineProfile
    first_guess: EngineProfile
    loss_before: float
    loss: float


def read_parameters(profile: EngineProfile) -> list[float]:
    """The fitted parameters of a profile, in the order of ``FIELDS``."""
    return [getattr(profile.cost, name) for name in COST_FIELDS] + [
        getattr(profile.frontend, name) for name in FRONTEND_FIELDS
    ]


def write_parameters(template: EngineProfile, values: Sequence[float]) -> EngineProfile:
    """The profile with other parameters, and without noise or stalls."""
    cost = replace(
        template.cost,
        **dict(zip(COST_FIELDS, values, strict=False)),
        long_context_tokens=0,
        noise_cv=0.0,
        stall_probability=0.0,
    )
    return replace(template, cost=cost, frontend=Frontend(*values[len(COST_FIELDS) :]))


def guess(template: EngineProfile, samples: Sequence[Sample]) -> EngineProfile:
    """The start: two linear systems."""
    decode = [row for one in samples for row in build_decode_rows(one.questions, one.times)]
    first = [
        row
        for one in samples
        for row in build_first_rows(one.questions, one.times, template.block_size, template.max_num_batched_tokens)
    ]
    base_s, per_token_s, per_mega_kv_s = _solve_relative(decode, 3)
    own = [(features[:4], max(_FLOOR_S, ttft_s - features[4] * base_s)) for features, ttft_s in first]
    fixed_s, per_prompt_token_s, per_prefill_token_s, per_context_s = _solve_relative(own, 4)
    values = [base_s, per_token_s, per_mega_kv_s, per_prefill_token_s, per_context_s]
    return write_parameters(template, [*values, 0.8 * fixed_s, 0.2 * fixed_s, per_prompt_token_s, 0.5])


def _solve_relative(rows: Sequence[tuple[Sequence[float], float]], width: int) -> list[float]:
    """Least squares of relative errors: a row weighs by one over its square."""
    if not rows:
        return [0.0] * width
    known = [(features, max(_FLOOR_S, seconds)) for features, seconds in rows]
    return solve([row for row, _ in known], [s for _, s in known], [1.0 / (s * s) for _, s in known])


def compute_residuals(profile: EngineProfile, samples: Sequence[Sample]) -> list[float]:
    """Logarithms of predicted over measured: TTFT of every request, decode time of those with enough tokens.

    Predicted is the mean over ``SHIFTS`` replays with arrivals moved by parts of a step: whether a request just catches
    a step is chance in the measurement, and would be a jump under the search.
    """
    residuals: list[float] = []
    for sample in samples:
        replays = [replay(profile, questions).times for questions in sample.shifted]
        for index, seen in enumerate(sample.times):
            residuals.append(_compare(mean(said[index].ttft_s for said in replays), seen.ttft_s))
            if seen.tokens >= MIN_TOKENS:
                decode_s = mean(said[index].last_s - said[index].first_s for said in replays)
                residuals.append(_compare(decode_s, seen.last_s - seen.first_s))
    return residuals


def _compare(said_s: float, seen_s: float) -> float:
    return math.log(max(_FLOOR_S, said_s) / max(_FLOOR_S, seen_s))


def compute_loss(residuals: Sequence[float]) -> float:
    """Mean of rho."""
    total = sum(r * r if abs(r) <= HUBER else HUBER * (2.0 * abs(r) - HUBER) for r in residuals)
    return total / len(residuals)


def fit(template: EngineProfile, samples: Sequence[Sample], on_round: Callable[[], None] = lambda: None) -> Fit:
    """The profile that agrees best with the samples; limits and block size are the template's."""
    start = guess(template, samples)
    samples = [shift(one, start.cost.base_s) for one in samples]
    values = read_parameters(start)
    loss_before = loss = compute_loss(compute_residuals(start, samples))
    for step in STEPS:
        values, loss = _search(template, values, samples, step, on_round)
    return Fit(write_parameters(template, values), start, loss_before, loss)


def _search(
    template: EngineProfile,
    values: list[float],
    samples: Sequence[Sample],
    step: float,
    on_round: Callable[[], None],
) -> tuple[list[float], float]:
    residuals = compute_residuals(write_parameters(template, values), samples)
    loss = compute_loss(residuals)
    damping = 0.01
    for _ in range(ROUNDS):
        on_round()
        columns = _differentiate(template, values, residuals, samples, step)
        for _ in range(_DAMPINGS):
            moved = _move(values, columns, residuals, damping)
            tried = compute_residuals(write_parameters(template, moved), samples)
            if compute_loss(tried) < loss:
                break
            damping *= 5.0
        else:
            return values, loss
        gain = loss - compute_loss(tried)
        values, residuals, loss = moved, tried, loss - gain
        damping = max(1e-4, damping / 5.0)
        if gain < _GAIN_MIN * loss:
            break
    return values, loss


def _differentiate(
    template: EngineProfile, values: Sequence[float], residuals: Sequence[float], samples: Sequence[Sample], step: float
) -> list[list[float]]:
    """Columns of d residual / d (parameter / its size)."""
    columns: list[list[float]] = []
    for index, size in enumerate(_sizes(values)):
        moved = list(values)
        moved[index] += step * size
        after = compute_residuals(write_parameters(template, moved), samples)
        columns.append([(b - a) / step for a, b in zip(residuals, after, strict=True)])
    return columns


def _sizes(values: Sequence[float]) -> list[float]:
    return [max(value, 0.2 * scale) for value, scale in zip(values, SCALES, strict=True)]


def _move(
    values: Sequence[float], columns: Sequence[Sequence[float]], residuals: Sequence[float], damping: float
) -> list[float]:
    """One damped step; rho makes a far residual weigh HUBER / |r|."""
    weights = [1.0 if abs(r) <= HUBER else HUBER / abs(r) for r in residuals]
    count = len(columns)
    rows = [list(row) for row in zip(*columns, strict=True)]
    goals = [-r for r in residuals]
    curvatures = [sum(w * c * c for w, c in zip(weights, column, strict=True)) for column in columns]
    for index, curvature in enumerate(curvatures):  # damping as rows of its own: sqrt(damping * curvature) * step = 0
        rows.append([math.sqrt(damping * max(curvature, 1e-6)) if other == index else 0.0 for other in range(count)])
        goals.append(0.0)
        weights.append(1.0)
    # Steps in units of a parameter's size, from where it would be zero: so that none falls below it.
    sizes = _sizes(values)
    offsets = [value / size for value, size in zip(values, sizes, strict=True)]
    shifted = [
        goal + sum(a * b for a, b in zip(row, offsets, strict=True)) for row, goal in zip(rows, goals, strict=True)
    ]
    return [x * size for x, size in zip(solve(rows, shifted, weights), sizes, strict=True)]


def estimate_noise(stamps: Sequence[Sequence[float]]) -> float:
    """Coefficient of variation of a step, from streams that were alone.

    From ``NOISE_STEPS`` tokens at a time, whose relative spread is smaller by the square root of that: single gaps show
    how tokens are delivered rather than how they are made. Robust: the median distance from the median.
    """
    lengths = [
        one[index] - one[index - NOISE_STEPS] for one in stamps for index in range(NOISE_STEPS, len(one), NOISE_STEPS)
    ]
    if len(lengths) < MIN_TOKENS:
        return 0.0
    middle = median(lengths)
    spread = 1.4826 * median(abs(length - middle) for length in lengths)  # of a normal distribution
    return min(0.5, math.sqrt(NOISE_STEPS) * spread / middle) if middle > 0.0 else 0.0
