"""Lengths of waits, waiting with a bound, and work whose faults are reported and survived."""

import asyncio
import random

from hypothesis import given
from hypothesis import strategies as st

from service.workers.guard import run_guarded
from service.workers.pacing import compute_backoff_s, spread, wait_until_set


@given(st.floats(0.001, 100), st.floats(0, 0.5), st.integers())
def test_spread_stays_around_its_length(length_s: float, ratio: float, seed: int) -> None:
    drawn = spread(length_s, ratio, random.Random(seed))
    assert length_s * (1 - ratio) - 1e-9 <= drawn <= length_s * (1 + ratio) + 1e-9


def test_backoff_grows_to_its_bound() -> None:
    paces = [compute_backoff_s(0.1, 1.0, tries) for tries in range(10)]
    assert paces == sorted(paces)
    assert paces[0] == 0.1
    assert compute_backoff_s(0.1, 1.0, 100_000) == 1.0


async def test_waiting_ends_by_the_event_or_the_bound() -> None:
    event = asyncio.Event()
    assert not await wait_until_set(event, 0.001)
    event.set()
    assert await wait_until_set(event, 5.0)
    assert not event.is_set()


async def test_a_fault_is_reported_and_survived(caplog) -> None:
    async def fail() -> None:
        raise RuntimeError("boom")

    assert not await run_guarded("this", fail)
    assert "this failed" in caplog.text
