"""Decides for one pool from what Prometheus holds: the same for everybody who asks at the same step."""

import asyncio
from collections.abc import Iterable
from math import floor

from service.scaler.config import SteeringConfig
from service.scaler.history import Answers, build_demand, build_reading
from service.scaler.queries import SLOW_WINDOWS, Part, Window, build_miss_query, build_queries, build_valid_query
from service.scaler.source import Series, Source
from service.slo.scaling import Decision, Scaling

_SLOW_STEPS = 20
"""Windows of hours change little within so many steps."""

_AHEAD_STEPS = 120
"""So far beyond the present an earlier day is remembered: longer than any cold start, at thirty seconds a step."""


def find_step(config: SteeringConfig, wall: float) -> float:
    """The newest step of the grid whose samples have arrived everywhere at ``wall`` (seconds since the epoch)."""
    return floor((wall - config.lag_s) / config.step_s) * config.step_s


def find_begin(config: SteeringConfig, at: float) -> float:
    """Where the window of a decision at ``at`` begins: it moves by a third of its length at a time, so that decisions
    that follow each other build on the same beginning."""
    third_s = config.window_steps * config.step_s / 3.0
    return floor(at / third_s) * third_s - 2.0 * third_s


async def decide(config: SteeringConfig, source: Source, at: float) -> Decision:
    """How many workers there should be at the step ``at``.

    Raises:
        SourceError: Prometheus does not answer.
    """
    begin = find_begin(config, at)
    answers = await _ask(config, source, begin, at)
    scaling = Scaling(config.scaling)
    for period_s in config.scaling.forecast.periods_s if config.scaling.use_forecast else ():
        await _remember(config, source, scaling, begin - period_s, at - period_s + _AHEAD_STEPS * config.step_s)
    decision: Decision | None = None
    for place in range(_count_steps(config, begin, at)):
        decision = scaling.decide(build_reading(config, answers, place), begin + place * config.step_s)
    assert decision is not None  # noqa: S101 - a window has a beginning
    return decision


async def _remember(config: SteeringConfig, source: Source, scaling: Scaling, begin: float, end: float) -> None:
    """One value per cell of the forecast."""
    cell_s = config.scaling.forecast.cell_s
    begin = floor(begin / cell_s) * cell_s
    series = await source.fetch(build_queries(config)[Part.DEMAND], begin, end, cell_s)
    answers = Answers({Part.DEMAND: series}, {}, {}, {})
    for place in range(int((end - begin) / cell_s) + 1):
        if (demand := build_demand(answers, place)) is not None:
            scaling.remember(begin + place * cell_s, demand)


async def _ask(config: SteeringConfig, source: Source, begin: float, end: float) -> Answers:
    queries = build_queries(config)
    fast = [window for window in Window if window not in SLOW_WINDOWS]
    texts = list(queries.values())
    texts += [build_valid_query(config, window) for window in fast]
    texts += [build_miss_query(config, window, True) for window in fast]
    texts.append(build_miss_query(config, Window.H1, False))
    slow = [build_valid_query(config, window) for window in SLOW_WINDOWS]
    slow += [build_miss_query(config, window, True) for window in SLOW_WINDOWS]
    wide_s = _SLOW_STEPS * config.step_s
    found = await asyncio.gather(
        *(source.fetch(text, begin, end, config.step_s) for text in texts),
        *(source.fetch(text, begin, end, wide_s) for text in slow),
        return_exceptions=True,  # so that none is left behind when one fails
    )
    series = iter([_read(one) for one in found])
    parts = {part: next(series) for part in queries}
    valid, short = {window: next(series) for window in fast}, {window: next(series) for window in fast}
    missed = {Window.H1: next(series)}
    for kind in (valid, short):
        kind.update({window: _widen(next(series)) for window in SLOW_WINDOWS})
    return Answers(parts, valid, short, missed)


def _read(found: Series | BaseException) -> Series:
    if isinstance(found, BaseException):
        raise found
    return found


def _widen(series: Series) -> Series:
    """A value for each step until the next; after a hole it is not known."""
    return {
        labels: {place * _SLOW_STEPS + more: value for place, value in values.items() for more in range(_SLOW_STEPS)}
        for labels, values in series.items()
    }


def _count_steps(config: SteeringConfig, begin: float, end: float) -> int:
    return round((end - begin) / config.step_s) + 1


def describe(decision: Decision) -> dict[str, object]:
    """A decision for people and programs."""
    return {
        "target": decision.target,
        "wanted": decision.wanted,
        "forecast": decision.parts.forecast,
        "reactive": decision.parts.reactive,
        "burn": decision.parts.burn,
        "complete": decision.complete,
        "reasons": list(decision.reasons),
    }


def list_changes(before: Decision | None, after: Decision) -> Iterable[str]:
    """What an operator is told: nothing, or the new target with its reasons."""
    if before is None or before.target != after.target:
        was = "unknown" if before is None or before.target is None else str(before.target)
        return [f"{after.target} workers, was {was}", *after.reasons]
    return ()
