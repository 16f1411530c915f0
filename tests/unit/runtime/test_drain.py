"""The way out, phase by phase."""

import asyncio

import pytest

from service.runtime.drain import Drain, Phase, compute_timetable


async def turn() -> None:
    """One turn of the loop."""
    done = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(done.set_result, None)
    await done


class _House:
    """What is left: counts that a test sets."""

    def __init__(self) -> None:
        self.running = 0
        self.open = 0
        self.elsewhere = False
        self.did: list[str] = []

    def send_elsewhere(self) -> None:
        self.elsewhere = True

    def close_doors(self) -> None:
        self.did.append("closed")

    def under_way(self) -> int:
        return self.running

    def open_connections(self) -> int:
        return self.open

    def cut(self) -> None:
        self.did.append(f"cut {self.running}")
        self.running = 0


class _Time:
    """A clock that a sleep moves."""

    def __init__(self) -> None:
        self.now = 100.0

    async def sleep(self, length_s: float) -> None:
        self.now += length_s
        await turn()


@pytest.fixture
def time(monkeypatch):
    time = _Time()
    monkeypatch.setattr("service.runtime.drain.sleep", time.sleep)
    return time


async def test_nothing_happens_before_it_is_told(time):
    house = _House()
    drain = Drain(house, lambda: time.now)
    task = asyncio.ensure_future(drain.run(lambda: (0.0, 5.0)))
    await turn()
    assert (drain.phase, house.did) == (Phase.SERVING, [])
    drain.begin()
    assert drain.phase is Phase.LEAVING
    await task
    assert drain.phase is Phase.ENDED
    assert house.did == ["closed", "cut 0"]
    assert house.elsewhere
    assert drain.began_at == 100.0


async def test_what_runs_longer_than_the_grace_is_cut(time):
    house = _House()
    house.running, house.open = 3, 1
    drain = Drain(house, lambda: time.now)
    drain.begin()
    await drain.run(lambda: (0.0, 5.0))
    assert house.did == ["closed", "cut 3"]
    assert 102.5 <= time.now < 104.5, "what is kept of the grace has been left for the end of the process"


def test_the_process_has_time_to_end_within_the_grace():
    times = compute_timetable(5.0, 600.0)
    assert (times.delay_s, times.flush_s) == (5.0, 2.0)
    assert times.cut_s + times.flush_s + 1.5 <= 600.0
    short = compute_timetable(0.9, 1.0)
    assert 0 < short.delay_s <= short.cut_s
    assert 0 < short.flush_s < 1.0 - short.cut_s


async def test_a_second_signal_hurries_through_delay_and_grace(time):
    house = _House()
    house.running = 2
    drain = Drain(house, lambda: time.now)
    drain.begin()
    drain.begin()  # an operator may repeat himself
    drain.signal()  # and the platform's signal means the same leaving
    drain.signal()
    await drain.run(lambda: (60.0, 600.0))
    assert house.did == ["closed", "cut 2"]
    assert time.now == 100.0


async def test_a_drain_and_then_a_signal_are_one_leaving(time):
    drain = Drain(_House(), lambda: time.now)
    drain.begin()
    drain.signal()
    drain.begin()
    assert not drain._hurried.is_set()
    drain.signal()
    assert drain._hurried.is_set()
