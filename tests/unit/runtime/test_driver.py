"""The asyncio shell: commands reach those they name, in order, and the alarm rings when the core asked for it."""

import random

import pytest

from service.domain.errors import InvariantError
from service.domain.event import (
    AttemptFailed,
    FailureCause,
    PermitEnded,
    RequestArrived,
    Woken,
    WorkerHealthChanged,
    WorkerJoined,
)
from service.domain.outcome import Outcome
from service.domain.permit import PermitEnding
from service.flow.config import FlowConfig
from service.flow.controller import FlowController
from service.runtime.driver import Driver
from service.runtime.recording import JournalRing
from tests.support.flow import build_request
from tests.support.loop import FakeLoop


class Passenger:
    """Writes down what it is told."""

    def __init__(self, log, name, on_dispatch=None):
        self.log, self.name, self.answer = log, name, on_dispatch

    def on_enqueue(self):
        self.log.append((self.name, "enqueue"))

    def on_dispatch(self, worker_id, attempt):
        self.log.append((self.name, "dispatch", worker_id, attempt))
        if self.answer:
            self.answer()

    def on_refuse(self, outcome, retry_after_s):
        self.log.append((self.name, "refuse", outcome))

    def on_excess(self):
        """Nothing is told of it here."""

    def on_revoke(self, outcome):
        self.log.append((self.name, "revoke"))


class Stage:
    """A driver with one worker that takes one request."""

    def __init__(self, loop):
        self.loop, self.log, self.ring = loop, [], JournalRing(100)
        controller = FlowController(FlowConfig(requests_per_worker=1), random.Random(1))
        self.driver = Driver(controller, loop, loop, [self.ring])
        self.driver.submit(WorkerJoined("a"))
        self.driver.submit(WorkerHealthChanged("a", True))

    def arrive(self, name, ttl_s=10.0, on_dispatch=None):
        self.driver.board(name, Passenger(self.log, name, on_dispatch))
        self.driver.submit(RequestArrived(build_request(name, arrived_at=self.loop.moment, ttl_s=ttl_s)))

    def wakes(self):
        return [at for at, event, _ in self.ring if isinstance(event, Woken)]


@pytest.fixture
def stage():
    return Stage(FakeLoop())


def test_commands_reach_whom_they_name(stage):
    stage.arrive("r")
    stage.arrive("s")
    stage.driver.submit(PermitEnded("r", PermitEnding.SERVED))
    stage.driver.submit(WorkerHealthChanged("a", False))
    stage.driver.submit(AttemptFailed("s", FailureCause.REVOKED))
    assert stage.log == [
        ("r", "dispatch", "a", 1),
        ("s", "enqueue"),
        ("s", "dispatch", "a", 1),
        ("s", "revoke"),
        ("s", "refuse", Outcome.WORKER_FAILED),
    ]


def test_who_has_alighted_is_told_nothing(stage):
    stage.arrive("r")
    stage.driver.alight("r")
    stage.driver.submit(WorkerHealthChanged("a", False))
    assert stage.log == [("r", "dispatch", "a", 1)]
    assert stage.driver.travelling == 0


def test_an_event_from_within_a_command_waits_its_turn(stage):
    stage.arrive("r", on_dispatch=lambda: stage.driver.submit(PermitEnded("r", PermitEnding.SERVED)))
    assert [type(event) for _, event, _ in stage.ring][-2:] == [RequestArrived, PermitEnded]
    assert stage.driver.stats().in_flight == 0


def test_the_alarm_rings_at_the_deadline_and_once(stage):
    stage.arrive("r")
    stage.arrive("s", ttl_s=3.0)
    stage.arrive("t", ttl_s=5.0)
    stage.loop.run(20.0)
    assert stage.wakes() == [3.0, 5.0]
    assert stage.log[-2:] == [("s", "refuse", Outcome.EXPIRED), ("t", "refuse", Outcome.EXPIRED)]


def test_the_alarm_moves_with_the_earliest_deadline(stage):
    stage.arrive("r")
    stage.arrive("s", ttl_s=5.0)
    stage.arrive("t", ttl_s=3.0)
    stage.driver.submit(PermitEnded("r", PermitEnding.SERVED))  # t runs: it has less patience
    stage.driver.submit(PermitEnded("t", PermitEnding.SERVED))  # s runs, nobody waits
    stage.loop.run(20.0)
    assert stage.wakes() == []


class EarlyLoop(FakeLoop):
    """Timers ring up to a millisecond early, as those of uvloop do."""

    def call_later(self, delay_s, callback, *args):
        return super().call_later(int(delay_s * 1000) / 1000, callback, *args)


def test_a_timer_that_rings_early_does_not_wake_the_core_again_and_again():
    stage = Stage(EarlyLoop())
    stage.arrive("r")
    stage.arrive("s", ttl_s=3.0007)
    stage.loop.run(20.0)
    (wake,) = stage.wakes()
    assert 3.0007 <= wake <= 3.002


def test_a_fault_of_the_core_does_not_jam_the_driver(stage):
    with pytest.raises(InvariantError):
        stage.driver.submit(PermitEnded("nobody", PermitEnding.SERVED))
    stage.arrive("r")
    assert stage.log == [("r", "dispatch", "a", 1)]


class Failing(Passenger):
    """Notes that it was ended."""

    def on_fault(self):
        self.log.append((self.name, "fault"))

    def on_sweep(self, now):
        self.log.append((self.name, "sweep"))


def test_a_passenger_that_fails_at_a_command_ends_alone(stage, caplog):
    failing = Failing(stage.log, "bad")
    failing.on_dispatch = lambda *_: 1 / 0
    stage.arrive("good")
    stage.driver.board("bad", failing)
    stage.driver.submit(RequestArrived(build_request("bad")))
    stage.arrive("next")
    stage.log.clear()
    stage.driver.submit(PermitEnded("good", PermitEnding.SERVED))
    assert stage.log == [("bad", "fault")]
    assert "ZeroDivisionError" in caplog.text
    stage.driver.submit(PermitEnded("bad", PermitEnding.IGNORED))
    assert stage.log[1:] == [("next", "dispatch", "a", 1)]


def test_a_sweep_reaches_those_behind_one_that_fails(stage, caplog):
    bad, good = Failing(stage.log, "bad"), Failing(stage.log, "good")
    bad.on_sweep = lambda now: 1 / 0
    bad.on_fault = lambda: 1 / 0
    stage.driver.board("bad", bad)
    stage.driver.board("good", good)
    stage.driver.sweep()
    assert stage.log == [("good", "sweep")]
    assert caplog.text.count("Traceback") == 3  # the second was caused while the first was handled


def test_an_observer_that_fails_takes_no_command_away(caplog):
    class Broken:
        def observe(self, now, event, commands):
            raise RuntimeError("injected")

    stage = Stage(FakeLoop())
    stage.driver._observe = (Broken().observe,)
    stage.arrive("r")
    assert stage.log == [("r", "dispatch", "a", 1)]
    assert "injected" in caplog.text


def test_what_waits_behind_a_fault_of_the_core_still_happens(stage, caplog):
    stage.arrive("r", on_dispatch=lambda: stage.driver.submit(PermitEnded("nobody", PermitEnding.SERVED)))
    assert "InvariantError" in caplog.text
    stage.driver.submit(PermitEnded("r", PermitEnding.SERVED))
    assert stage.driver.stats().in_flight == 0
