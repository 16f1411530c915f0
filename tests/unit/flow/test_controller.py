"""The controller by example: what follows from each event. Long random histories are in tests/property."""

import pytest

from service.domain.command import Dispatch, Enqueue, Refuse, Revoke
from service.domain.errors import InvariantError
from service.domain.event import (
    AttemptFailed,
    DrainBegan,
    FailureCause,
    FirstTokenSeen,
    PermitEnded,
    RequestAbandoned,
    Woken,
    WorkerDrainChanged,
    WorkerHealthChanged,
    WorkerJoined,
    WorkerLeft,
    WorkerLoadSeen,
)
from service.domain.load import WorkerLoad
from service.domain.outcome import Outcome
from service.domain.permit import PermitEnding
from service.flow.config import BreakerConfig, FlowConfig, Reconfigured, RetryConfig
from tests.support.flow import arrive, build_controller

ONE = FlowConfig(requests_per_worker=1)


def end(controller, name, now, ending=PermitEnding.SERVED):
    return controller.handle(PermitEnded(name, ending), now)


def fail(controller, name, now, cause=FailureCause.BROKEN, retry_after_s=None):
    return controller.handle(AttemptFailed(name, cause, retry_after_s), now)


def join(controller, name, now=0.0):
    controller.handle(WorkerJoined(name), now)
    return controller.handle(WorkerHealthChanged(name, True), now)


def outcomes(commands):
    return [(command.request_id, command.outcome) for command in commands if isinstance(command, Refuse)]


class TestArrival:
    def test_a_free_worker_gets_it_at_once(self):
        assert arrive(build_controller(), "r") == [Dispatch("r", "a", 1)]

    def test_it_waits_when_all_are_full(self):
        controller = build_controller()
        arrive(controller, "r")
        assert arrive(controller, "s") == [Enqueue("s", 1)]
        assert arrive(controller, "t") == [Enqueue("t", 2)]

    def test_without_workers_it_is_refused(self):
        assert outcomes(arrive(build_controller(()), "r")) == [("r", Outcome.NO_WORKERS)]

    def test_a_worker_must_be_said_to_be_healthy_first(self):
        controller = build_controller(())
        assert controller.handle(WorkerJoined("a"), 0.0) == []
        assert outcomes(arrive(controller, "r")) == [("r", Outcome.NO_WORKERS)]

    def test_a_draining_gateway_refuses_and_finishes_what_it_has(self):
        controller = build_controller()
        arrive(controller, "r")
        arrive(controller, "s")
        assert controller.handle(DrainBegan(), 1.0) == []
        assert outcomes(arrive(controller, "t", 1.0)) == [("t", Outcome.DRAINING)]
        assert end(controller, "r", 2.0) == [Dispatch("s", "a", 1)]
        assert controller.stats(2.0).draining

    def test_the_queue_has_a_bound_of_requests(self):
        controller = build_controller(config=FlowConfig(requests_per_worker=1, queued_requests_max=1))
        arrive(controller, "r")
        arrive(controller, "s")
        assert outcomes(arrive(controller, "t")) == [("t", Outcome.QUEUE_FULL)]

    def test_the_queue_has_a_bound_of_tokens(self):
        controller = build_controller(config=FlowConfig(requests_per_worker=1, queued_tokens_max=150))
        arrive(controller, "r")
        arrive(controller, "s")  # 100 tokens
        assert outcomes(arrive(controller, "t")) == [("t", Outcome.QUEUE_FULL)]
        assert arrive(controller, "u", prompt_bytes=160) == [Enqueue("u", 2)]

    def test_a_deadline_that_cannot_be_met_is_refused_at_the_door(self):
        controller = build_controller()
        arrive(controller, "r")
        end(controller, "r", 20.0)  # a request takes 20 s
        arrive(controller, "s", 20.0)
        (refusal,) = arrive(controller, "t", 20.0, ttl_s=10.0)
        assert refusal.outcome is Outcome.DEADLINE_UNATTAINABLE
        assert 16.0 <= refusal.retry_after_s <= 26.0
        assert arrive(controller, "u", 20.0, ttl_s=21.0) == [Enqueue("u", 1)]

    def test_a_request_that_arrives_twice_is_a_fault(self):
        controller = build_controller()
        arrive(controller, "r")
        arrive(controller, "s")
        for name in "rs":
            with pytest.raises(InvariantError, match=f"request {name} arrived twice"):
                arrive(controller, name)
        assert controller.stats(0.0).queued_tokens == 100


class TestPinned:
    def test_it_goes_to_its_worker_only(self):
        controller = build_controller("ab")
        assert arrive(controller, "r", pinned_to="b") == [Dispatch("r", "b", 1)]
        assert arrive(controller, "s", pinned_to="b") == [Enqueue("s", 1)]
        assert end(controller, "r", 1.0) == [Dispatch("s", "b", 1)]

    def test_its_worker_is_gone(self):
        assert arrive(build_controller(), "r", pinned_to="z") == [Refuse("r", Outcome.UNKNOWN_RESPONSE, None)]

    def test_it_does_not_hold_up_those_behind_it(self):
        controller = build_controller("ab")
        arrive(controller, "r", pinned_to="b")
        arrive(controller, "s", pinned_to="b")
        assert arrive(controller, "t") == [Dispatch("t", "a", 1)]

    def test_its_worker_leaves_while_it_waits(self):
        controller = build_controller("ab")
        arrive(controller, "r", pinned_to="b")
        arrive(controller, "s", pinned_to="b", ttl_s=5.0)
        controller.handle(WorkerLeft("b"), 1.0)
        assert end(controller, "r", 2.0) == []
        assert controller.handle(WorkerDrainChanged("a", True), 3.0) == []
        assert outcomes(controller.handle(Woken(), 5.0)) == [("s", Outcome.NO_WORKERS)]

    def test_it_is_never_tried_elsewhere(self):
        controller = build_controller("ab")
        arrive(controller, "r", pinned_to="b")
        assert outcomes(fail(controller, "r", 1.0)) == [("r", Outcome.WORKER_FAILED)]


class TestEnding:
    def test_the_next_in_line_follows(self):
        controller = build_controller()
        for name in "rst":
            arrive(controller, name)
        assert end(controller, "r", 1.0) == [Dispatch("s", "a", 1)]
        assert end(controller, "s", 2.0) == [Dispatch("t", "a", 1)]
        assert end(controller, "t", 3.0) == []
        assert controller.stats(3.0).mean_service_s == 1.0

    def test_only_what_was_served_is_a_sample(self):
        controller = build_controller()
        arrive(controller, "r")
        end(controller, "r", 9.0, PermitEnding.IGNORED)
        assert controller.stats(9.0).mean_service_s is None

    def test_dropped_three_times_the_worker_rests(self):
        controller = build_controller()
        for name in "rst":
            arrive(controller, name)
            end(controller, name, 0.0, PermitEnding.DROPPED)
        assert arrive(controller, "u") == [Enqueue("u", 1)]
        assert controller.next_wake_at() == 1.0
        assert controller.handle(Woken(), 1.0) == [Dispatch("u", "a", 1)]

    def test_the_end_of_nothing_is_a_fault(self):
        with pytest.raises(InvariantError, match="request r holds no permit"):
            end(build_controller(), "r", 0.0)

    def test_the_first_token_of_nothing_is_a_fault(self):
        with pytest.raises(InvariantError, match="first token of request r"):
            build_controller().handle(FirstTokenSeen("r"), 0.0)

    def test_the_first_token_of_a_probe_lets_the_others_in(self):
        controller = build_controller(config=FlowConfig(requests_per_worker=3))
        arrive(controller, "q")
        fail(controller, "q", 0.0, FailureCause.UNREACHABLE)
        arrive(controller, "r", 0.5)
        arrive(controller, "s", 0.5)
        assert controller.handle(Woken(), 1.0) == [Dispatch("r", "a", 1)]
        assert controller.handle(FirstTokenSeen("r"), 1.5) == [Dispatch("s", "a", 1)]
        assert controller.handle(FirstTokenSeen("s"), 1.6) == []


class TestFailure:
    def test_another_worker_tries(self):
        controller = build_controller("ab")
        (first,) = arrive(controller, "r")
        other = {"a": "b", "b": "a"}[first.worker_id]
        assert fail(controller, "r", 1.0) == [Enqueue("r", 1), Dispatch("r", other, 2)]

    def test_it_waits_for_another_worker_and_holds_up_nobody(self):
        controller = build_controller("ab")
        arrive(controller, "r", pinned_to="a")
        end(controller, "r", 0.0)
        arrive(controller, "pin", pinned_to="b")
        assert arrive(controller, "r2") == [Dispatch("r2", "a", 1)]
        assert fail(controller, "r2", 1.0) == [Enqueue("r2", 1)]
        assert arrive(controller, "s", 1.0) == [Dispatch("s", "a", 1)]
        assert end(controller, "pin", 2.0) == [Dispatch("r2", "b", 2)]

    def test_the_only_worker_is_not_tried_again(self):
        controller = build_controller()
        arrive(controller, "r")
        assert outcomes(fail(controller, "r", 1.0)) == [("r", Outcome.WORKER_FAILED)]

    def test_it_never_returns_to_a_worker_on_which_it_failed(self):
        config = FlowConfig(requests_per_worker=1, retry=RetryConfig(attempts_max=9))
        controller = build_controller("abc", config)
        tried = {arrive(controller, "r")[0].worker_id}
        for attempt in (2, 3):
            _, dispatch = fail(controller, "r", 0.0)
            assert dispatch.attempt == attempt
            tried.add(dispatch.worker_id)
        assert tried == {"a", "b", "c"}
        assert outcomes(fail(controller, "r", 0.0)) == [("r", Outcome.WORKER_FAILED)]

    def test_past_its_deadline_it_ends_as_the_workers_failure(self):
        controller = build_controller("ab")
        arrive(controller, "r", ttl_s=5.0)
        assert outcomes(fail(controller, "r", 5.0)) == [("r", Outcome.WORKER_FAILED)]

    def test_without_budget_it_ends(self):
        controller = build_controller("ab", FlowConfig(retry=RetryConfig(budget_burst=0.5)))
        arrive(controller, "r")
        assert outcomes(fail(controller, "r", 1.0)) == [("r", Outcome.WORKER_FAILED)]

    def test_a_busy_workers_wish_is_passed_on(self):
        controller = build_controller()
        arrive(controller, "r")
        (refusal,) = fail(controller, "r", 1.0, FailureCause.BUSY, retry_after_s=10.0)
        assert refusal.outcome is Outcome.WORKER_BUSY
        assert 8.0 <= refusal.retry_after_s <= 13.0

    def test_a_rest_that_ended_unnoticed_wakes_nobody(self):
        controller = build_controller(config=FlowConfig(requests_per_worker=1, breaker=BreakerConfig(busy_rest_s=1.0)))
        for turn in range(100):
            arrive(controller, f"r{turn}", float(turn))
            fail(controller, f"r{turn}", float(turn), FailureCause.BUSY)
        assert controller.next_wake_at() is None
        assert len(controller._wakes) == 1

    def test_many_failures_of_one_worker_wake_once(self):
        controller = build_controller(config=FlowConfig(requests_per_worker=3))
        for name in "rst":
            arrive(controller, name)
        for name in "rst":
            fail(controller, name, 0.0, FailureCause.UNREACHABLE)
        assert controller._wakes == [1.0]


class TestQueue:
    def test_the_client_leaves(self):
        controller = build_controller()
        for name in "rst":
            arrive(controller, name)
        assert controller.handle(RequestAbandoned("s"), 0.5) == []
        assert end(controller, "r", 1.0) == [Dispatch("t", "a", 1)]

    def test_leaving_a_queue_one_does_not_stand_in_is_a_fault(self):
        controller = build_controller()
        arrive(controller, "r")
        with pytest.raises(InvariantError, match="request r left the queue"):
            controller.handle(RequestAbandoned("r"), 0.5)

    def test_it_expires(self):
        controller = build_controller()
        arrive(controller, "r")
        arrive(controller, "s", ttl_s=5.0)
        assert controller.next_wake_at() == 5.0
        assert controller.handle(Woken(), 4.9) == []
        assert outcomes(controller.handle(Woken(), 5.0)) == [("s", Outcome.EXPIRED)]
        assert controller.next_wake_at() is None

    def test_the_end_of_a_rest_comes_before_a_deadline(self):
        controller = build_controller()
        arrive(controller, "r")
        arrive(controller, "s", ttl_s=5.0)
        fail(controller, "r", 0.0, FailureCause.BUSY)
        assert controller.next_wake_at() == 0.5
        assert controller.handle(Woken(), 0.5) == [Dispatch("s", "a", 1)]

    def test_an_operator_grants_more(self):
        controller = build_controller()
        for name in "rst":
            arrive(controller, name)
        commands = controller.handle(Reconfigured(FlowConfig(requests_per_worker=2)), 1.0)
        assert commands == [Dispatch("s", "a", 1)]

    def test_an_operator_grants_less_and_what_runs_goes_on(self):
        controller = build_controller(config=FlowConfig(requests_per_worker=2))
        for name in "rst":
            arrive(controller, name)
        assert controller.handle(Reconfigured(ONE), 1.0) == []
        assert end(controller, "r", 2.0) == []
        assert end(controller, "s", 2.0) == [Dispatch("t", "a", 1)]

    def test_a_worker_with_much_room_takes_several(self):
        controller = build_controller()
        for name in "rst":
            arrive(controller, name)
        join(controller, "b", 1.0)
        controller.handle(Reconfigured(FlowConfig(requests_per_worker=1)), 1.0)
        assert controller.stats(1.0).in_flight == 2
        controller.handle(WorkerDrainChanged("a", True), 1.0)
        assert [c.request_id for c in end(controller, "s", 2.0)] == ["t"]


class TestWorkers:
    def test_a_sick_worker_loses_its_requests_once(self):
        controller = build_controller("a", FlowConfig(requests_per_worker=2))
        arrive(controller, "r")
        arrive(controller, "s")
        assert controller.handle(WorkerHealthChanged("a", False), 1.0) == [Revoke("r"), Revoke("s")]
        assert controller.handle(WorkerHealthChanged("a", False), 2.0) == []

    def test_what_was_taken_back_goes_to_another_free_of_charge(self):
        controller = build_controller("ab", FlowConfig(requests_per_worker=2, retry=RetryConfig(budget_burst=0.0)))
        arrive(controller, "r", pinned_to=None)
        holder = next(worker.worker_id for worker in controller.stats(0.0).workers if worker.in_flight)
        controller.handle(WorkerHealthChanged(holder, False), 1.0)
        commands = fail(controller, "r", 1.0, FailureCause.REVOKED)
        assert [type(command) for command in commands] == [Enqueue, Dispatch]

    def test_a_healed_worker_starts_with_a_clean_record(self):
        controller = build_controller()
        arrive(controller, "r")
        fail(controller, "r", 0.0, FailureCause.UNREACHABLE)
        arrive(controller, "s", 0.1)
        assert controller.handle(WorkerHealthChanged("a", True), 0.2) == [Dispatch("s", "a", 1)]

    def test_a_draining_worker_keeps_its_streams_and_gets_no_more(self):
        controller = build_controller()
        arrive(controller, "r")
        arrive(controller, "s")
        assert controller.handle(WorkerDrainChanged("a", True), 1.0) == []
        assert end(controller, "r", 2.0) == []
        assert controller.handle(WorkerDrainChanged("a", False), 3.0) == [Dispatch("s", "a", 1)]

    def test_a_worker_that_left_gets_nothing_and_may_come_back(self):
        controller = build_controller()
        arrive(controller, "r")
        controller.handle(WorkerLeft("a"), 1.0)
        controller.handle(WorkerHealthChanged("a", True), 1.5)
        assert outcomes(arrive(controller, "s", 2.0)) == [("s", Outcome.NO_WORKERS)]
        end(controller, "r", 3.0)
        assert controller.stats(3.0).workers == ()
        join(controller, "a", 4.0)
        assert arrive(controller, "t", 4.0) == [Dispatch("t", "a", 1)]

    def test_the_load_is_kept(self):
        controller = build_controller()
        load = WorkerLoad(1.0, 3, 4, 0.5)
        assert controller.handle(WorkerLoadSeen("a", load), 1.0) == []
        assert controller._ledger.worker("a").load == load

    def test_news_of_an_unknown_worker_is_a_fault(self):
        with pytest.raises(InvariantError, match="worker z is not known"):
            build_controller().handle(WorkerLeft("z"), 0.0)


def test_a_snapshot_shows_all():
    controller = build_controller("ab")
    for name in "rst":
        arrive(controller, name)
    stats = controller.stats(0.0)
    assert (stats.queued_requests, stats.queued_tokens, stats.in_flight, stats.draining) == (1, 100, 2, False)
    assert [(worker.worker_id, worker.in_flight, worker.resting) for worker in stats.workers] == [
        ("a", 1, False),
        ("b", 1, False),
    ]
