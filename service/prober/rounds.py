"""Probes every tier again and again, until it is told to stop."""

import asyncio
import logging
from collections.abc import Sequence

from service.prober.figures import ProbeFigures
from service.prober.probe import ProbeResult, ProbeTarget, send_probe
from service.runtime.clock import MonotonicClock

_log = logging.getLogger("sluice.prober")


async def probe_once(targets: Sequence[ProbeTarget]) -> list[tuple[ProbeTarget, ProbeResult]]:
    """One probe per tier, at the same time."""
    now = MonotonicClock().now
    results = await asyncio.gather(*(send_probe(target, now) for target in targets))
    return list(zip(targets, results, strict=True))


async def probe_forever(
    targets: Sequence[ProbeTarget], figures: ProbeFigures, interval_s: float, stopped: asyncio.Event
) -> None:
    """Each tier every ``interval_s``, evenly apart from the others, until ``stopped``. A tier's next probe waits for
    the last one to end."""
    async with asyncio.TaskGroup() as group:
        for number, target in enumerate(targets):
            first_s = interval_s * number / len(targets)
            group.create_task(_probe_tier(target, figures, first_s, interval_s, stopped))


async def _probe_tier(
    target: ProbeTarget, figures: ProbeFigures, first_s: float, interval_s: float, stopped: asyncio.Event
) -> None:
    now = MonotonicClock().now
    due_at, fault = now() + first_s, ""
    while not await _is_stopped(stopped, due_at - now()):
        result = await send_probe(target, now)
        figures.count(target.tier, result)
        if bool(result.fault) != bool(fault):
            _log.log(
                logging.WARNING if result.fault else logging.INFO,
                "tier %s: %s", target.tier, result.fault or "probes are good again",
            )  # fmt: skip
        fault = result.fault
        due_at = max(due_at + interval_s, now())


async def _is_stopped(stopped: asyncio.Event, wait_s: float) -> bool:
    try:
        await asyncio.wait_for(stopped.wait(), max(wait_s, 0.0))
    except TimeoutError:
        return False
    return True
