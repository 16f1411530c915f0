"""Runs the scaler: one decision per step, told to whoever scrapes, and to the log when it changes."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

import httpx

from service.runtime.clock import MonotonicClock
from service.scaler.config import SteeringConfig
from service.scaler.page import Bulletin
from service.scaler.source import Prometheus, Source, SourceError
from service.scaler.steering import decide, describe, find_step, list_changes
from service.slo.scaling import Decision

_log = logging.getLogger("sluice.scaler")

_TIMEOUT_S = 10.0


def build_client() -> httpx.AsyncClient:
    """Goes to the Prometheus that was named and nowhere else."""
    return httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False)


async def run(config: SteeringConfig, url: str, bulletin: Bulletin, stop: asyncio.Event) -> None:
    """Decide until ``stop``."""
    async with build_client() as client:
        await steer(config, Prometheus(url, client), bulletin, stop, MonotonicClock().wall)


async def steer(
    config: SteeringConfig, source: Source, bulletin: Bulletin, stop: asyncio.Event, wall: Callable[[], float]
) -> None:
    """Decide for each step that comes; with a source that does not answer the last decision stands."""
    done_at = 0.0
    while not stop.is_set():
        at = find_step(config, wall())
        if at > done_at:
            done_at = at
            await take_step(config, source, bulletin, at)
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), config.step_s / 10.0)


async def take_step(config: SteeringConfig, source: Source, bulletin: Bulletin, at: float) -> Decision | None:
    """One decision, published; ``None`` if the source did not answer."""
    try:
        decision = await decide(config, source, at)
    except SourceError as error:
        bulletin.failures += 1
        _log.warning("nothing is known, the last target stands: %s", error)
        return None
    for line in list_changes(bulletin.decision, decision):
        _log.info("pool %s: %s", config.pool, line)
    _log.debug("pool %s: %s", config.pool, describe(decision))
    bulletin.publish(decision, at)
    return decision
