"""The shell of the simulator: order of moments, alarms, and no re-entry."""

import pytest

from loadtests.sim.driver import VirtualDriver, replay
from service.domain.command import Dispatch, Enqueue, Refuse
from service.domain.errors import InvariantError
from service.domain.event import PermitEnded, RequestArrived, Woken, WorkerHealthChanged, WorkerJoined
from service.domain.permit import PermitEnding
from service.flow.config import FlowConfig
from service.runtime.journal import Journal, JournalHeader
from service.runtime.recording import JournalRing
from tests.support.flow import build_controller, build_request


def arrival(name, at=0.0, ttl_s=10.0):
    return RequestArrived(build_request(name, arrived_at=at, ttl_s=ttl_s))


def test_events_happen_in_order_of_moments_and_then_of_scheduling():
    ring = JournalRing(10)
    driver = VirtualDriver(build_controller("abc"), observers=[ring])
    for name, at in (("r", 2.0), ("s", 1.0), ("t", 2.0)):
        driver.schedule(at, arrival(name, at))
    driver.run()
    assert [(at, event.request.request_id) for at, event, _ in ring] == [(1.0, "s"), (2.0, "r"), (2.0, "t")]


def test_commands_can_be_answered_with_events():
    seen = []

    def serve(now, command):
        seen.append((now, type(command)))
        if isinstance(command, Dispatch):
            driver.schedule(now + 1.0, PermitEnded(command.request_id, PermitEnding.SERVED))

    driver = VirtualDriver(build_controller(), serve)
    for name in "rst":
        driver.schedule(0.0, arrival(name))
    driver.run()
    assert seen == [(0.0, Dispatch), (0.0, Enqueue), (0.0, Enqueue), (1.0, Dispatch), (2.0, Dispatch)]
    assert driver.now == 3.0


def test_the_alarm_of_the_core_rings_at_its_moment_and_before_events():
    ring = JournalRing(10)
    driver = VirtualDriver(build_controller(), observers=[ring])
    driver.submit(arrival("r"))
    driver.submit(arrival("s", ttl_s=5.0))
    driver.schedule(5.0, PermitEnded("r", PermitEnding.SERVED))
    driver.run()
    assert [(at, type(event)) for at, event, _ in ring][2:] == [(5.0, Woken), (5.0, PermitEnded)]


def test_an_event_submitted_while_commands_are_carried_out_waits_its_turn():
    order = []

    def answer(now, command):
        order.append(command.request_id)
        if isinstance(command, Dispatch) and command.request_id == "r":
            driver.submit(PermitEnded("r", PermitEnding.SERVED))
            order.append("answered")

    driver = VirtualDriver(build_controller(), answer)
    driver.submit(arrival("r"))
    driver.submit(arrival("s"))
    assert order == ["r", "answered", "s"]


def test_functions_can_be_scheduled_and_may_stop_the_run():
    driver = VirtualDriver(build_controller())
    driver.schedule(1.0, driver.stop)
    driver.schedule(2.0, arrival("r", 2.0))
    driver.run()
    assert driver.now == 1.0
    driver.run(until=1.5)
    assert driver.now == 1.5
    driver.run(until=3.0)
    assert driver.now == 3.0


@pytest.mark.parametrize("at", [0.5, float("nan")])
def test_the_past_is_over(at):
    driver = VirtualDriver(build_controller(), now=1.0)
    with pytest.raises(ValueError, match=r"is before 1\.0"):
        driver.schedule(at, Woken())


def test_a_core_that_never_sleeps_is_a_fault():
    controller = build_controller()
    controller.next_wake_at = lambda: 0.0
    with pytest.raises(InvariantError, match=r"woken at 0\.0"):
        VirtualDriver(controller).run()


def test_replay_orders_what_was_ordered():
    header = JournalHeader(3, FlowConfig(requests_per_worker=1))
    events = [WorkerJoined("a"), WorkerHealthChanged("a", True), arrival("r"), arrival("s", ttl_s=0.0), Woken()]
    records = list(replay(Journal(header, tuple((1.0, event, ()) for event in events))))
    assert [event for _, event, _ in records] == events
    assert [type(command) for _, _, commands in records for command in commands] == [Dispatch, Refuse]
    assert list(replay(Journal(header, tuple(records)))) == records


def test_a_journal_with_gaps_cannot_be_played():
    with pytest.raises(ValueError, match="2 events are missing"):
        list(replay(Journal(JournalHeader(1, FlowConfig()), (), 2)))
