"""What runs beside the requests outlives a fault of its own."""

import asyncio
import contextlib

from service import neighbours
from service.domain.condition import Condition
from service.runtime.following import Following


class Stumbling(Following):
    """Fails at its first run."""

    def __init__(self):
        super().__init__(None, None)
        self.runs = 0
        self.went_on = asyncio.Event()

    async def run(self):
        self.runs += 1
        if self.runs == 1:
            raise KeyError("what nobody foresaw")
        self.went_on.set()
        await asyncio.Event().wait()


async def test_a_turn_that_fails_is_told_and_is_not_the_last(monkeypatch, caplog):
    monkeypatch.setattr(neighbours, "PACE_S", 0.0)
    part = Stumbling()
    task = asyncio.ensure_future(neighbours._keep("following", part))
    await part.went_on.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert part.condition is Condition.FAILED
    assert part.calls["directory", Condition.FAILED] == 1
    assert "what nobody foresaw" in caplog.text
