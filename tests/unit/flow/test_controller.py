"""The controller by example: what follows from each event. Long random histories are in tests/property."""

from dataclasses import replace

import pytest

from service.domain.command import Dispatch, Enqueue, Refuse, Revoke
from service.domain.contract import Allowance, Measure
from service.domain.errors import InvariantError
from service.domain.event import (
    AttemptFailed,
    DrainBegan,
    FailureCause,
    FirstTokenSeen,
    PermitEnded,
    RequestAbandoned,
    RequestArrived,
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
from service.domain.tier import Tier
from service.domain.units import TierName
from service.flow.config import BreakerConfig, FlowConfig, Reconfigured, RetryConfig
from tests.support.flow import arrive as arrive_as_is
from tests.support.flow import build_controller, build_request

ONE = FlowConfig(requests_per_worker=1)


GOLD = Tier("gold", 0, ttft_targets_s=((100_000, 1.0),))
BATCH = Tier("batch", 2, best_effort=True)
TIERS = {"gold": GOLD, "batch": BATCH}
BOTH = FlowConfig(requests_per_worker=1, tiers=TIERS)


def bare(commands):
    """Commands without their grounds."""
    return [command if isinstance(command, Revoke) else replace(command, grounds=None) for command in commands]


def handle(controller, event, now):
    return bare(controller.handle(event, now))


def arrive(controller, name, now=0.0, **how):
    return bare(arrive_as_is(controller, name, now, **how))


def end(controller, name, now, ending=PermitEnding.SERVED, tokens=None):
    return handle(controller, PermitEnded(name, ending, tokens), now)


def fail(controller, name, now, cause=FailureCause.BROKEN, retry_after_s=None):
    return handle(controller, AttemptFailed(name, cause, retry_after_s), now)


def join(controller, name, now=0.0):
    handle(controller, WorkerJoined(name), now)
    return handle(controller, WorkerHealthChanged(name, True), now)


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
        assert handle(controller, WorkerJoined("a"), 0.0) == []
        assert outcomes(arrive(controller, "r")) == [("r", Outcome.NO_WORKERS)]

    def test_a_draining_gateway_refuses_and_finishes_what_it_has(self):
        controller = build_controller()
        arrive(controller, "r")
        arrive(controller, "s")
        assert handle(controller, DrainBegan(), 1.0) == []
        assert outcomes(arrive(controller, "t", 1.0)) == [("t", Outcome.DRAINING)]
        assert end(controller, "r", 2.0) == [Dispatch("s", "a", 1)]
        assert controller.stats(2.0).draining

    def test_the_queue_has_a_bound_of_requests(self):
        controller = build_controller(config=FlowConfig(requests_per_worker=1, queued_requests_max=1))
        arrive(controller, "r")
        arrive(controller, "s")
        assert outcomes(arrive(controller, "t")) == [("t", Outcome.QUEUE_FULL)]

    def test_the_queue_has_a_bound_of_tokens(self):
        controller = build_controller(config=FlowConfig(requests_per_worker=1, queued_tokens_max=152))
        arrive(controller, "r")
        arrive(controller, "s")  # 100 tokens
        assert outcomes(arrive(controller, "t")) == [("t", Outcome.QUEUE_FULL)]
        assert arrive(controller, "u", prompt_bytes=160) == [Enqueue("u", 2)]

    def test_a_full_queue_refuses_nobody_who_has_a_place(self):
        controller = build_controller(config=FlowConfig(requests_per_worker=1, queued_requests_max=0))
        assert arrive(controller, "r") == [Dispatch("r", "a", 1)]
        assert outcomes(arrive(controller, "s")) == [("s", Outcome.QUEUE_FULL)]

    def test_what_is_promised_takes_the_place_of_what_is_not(self):
        controller = build_controller(config=replace(BOTH, queued_requests_max=2))
        arrive(controller, "r")
        arrive(controller, "b1", tier="batch", rank=2)
        arrive(controller, "b2", tier="batch", rank=2)
        assert outcomes(arrive(controller, "b3", tier="batch", rank=2)) == [("b3", Outcome.QUEUE_FULL)]
        commands = arrive(controller, "g", tier="gold", rank=0)
        assert outcomes(commands) == [("b2", Outcome.SHED)]
        assert commands[-1] == Enqueue("g", 2)

    def test_a_deadline_that_cannot_be_met_is_refused_at_the_door(self):
        controller = build_controller()
        arrive(controller, "r")
        handle(controller, FirstTokenSeen("r"), 0.0)
        end(controller, "r", 9.9, tokens=100)  # a token takes 0.1 s, so an answer of 211 some 21 s
        arrive(controller, "s", 20.0)
        arrive(controller, "t", 20.0, ttl_s=9.0)
        (refusal,) = arrive(controller, "u", 20.0, ttl_s=10.0, tenant="tenant")
        assert refusal.outcome is Outcome.DEADLINE_UNATTAINABLE
        assert 0.8 * 15.0 <= refusal.retry_after_s <= 1.3 * 22.0
        assert arrive(controller, "v", 20.0, ttl_s=61.0) == [Enqueue("v", 2)]

    def test_one_past_its_promise_is_refused(self):
        controller = build_controller(config=BOTH)
        (refusal,) = controller.handle(RequestArrived(build_request("r", arrived_at=0.0, tier="gold", rank=0)), 0.97)
        assert refusal.outcome is Outcome.DEADLINE_UNATTAINABLE

    def test_a_request_that_arrives_twice_is_a_fault(self):
        controller = build_controller()
        arrive(controller, "r")
        arrive(controller, "s")
        for name in "rs":
            with pytest.raises(InvariantError, match=f"request {name} arrived twice"):
                arrive(controller, name)
        assert controller.stats(0.0).queued_tokens == 101


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
        handle(controller, WorkerLeft("b"), 1.0)
        assert end(controller, "r", 2.0) == []
        assert handle(controller, WorkerDrainChanged("a", True), 3.0) == []
        assert outcomes(handle(controller, Woken(), 5.0)) == [("s", Outcome.NO_WORKERS)]

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

    @pytest.mark.parametrize(("ending", "mean_s"), [(PermitEnding.SERVED, 0.1), (PermitEnding.IGNORED, None)])
    def test_only_what_was_served_is_a_sample(self, ending, mean_s):
        controller = build_controller()
        arrive(controller, "r")
        handle(controller, FirstTokenSeen("r"), 1.0)
        end(controller, "r", 10.9, ending, tokens=100)
        assert controller.stats(11.0).mean_tpot_s == mean_s

    def test_dropped_three_times_the_worker_rests(self):
        controller = build_controller()
        for name in "rst":
            arrive(controller, name)
            end(controller, name, 0.0, PermitEnding.DROPPED)
        assert arrive(controller, "u") == [Enqueue("u", 1)]
        assert controller.next_wake_at() == 1.0
        assert handle(controller, Woken(), 1.0) == [Dispatch("u", "a", 1)]

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
        assert handle(controller, Woken(), 1.0) == [Dispatch("r", "a", 1)]
        assert handle(controller, FirstTokenSeen("r"), 1.5) == [Dispatch("s", "a", 1)]
        assert handle(controller, FirstTokenSeen("s"), 1.6) == []


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
        assert len(controller._state.alarms) == 1

    def test_many_failures_of_one_worker_wake_once(self):
        controller = build_controller(config=FlowConfig(requests_per_worker=3))
        for name in "rst":
            arrive(controller, name)
        for name in "rst":
            fail(controller, name, 0.0, FailureCause.UNREACHABLE)
        assert controller._state.alarms._rests == [1.0]


class TestQueue:
    def test_the_client_leaves(self):
        controller = build_controller()
        for name in "rst":
            arrive(controller, name)
        assert handle(controller, RequestAbandoned("s"), 0.5) == []
        assert end(controller, "r", 1.0) == [Dispatch("t", "a", 1)]

    def test_leaving_a_queue_one_does_not_stand_in_is_a_fault(self):
        controller = build_controller()
        arrive(controller, "r")
        with pytest.raises(InvariantError, match="request r left the queue"):
            handle(controller, RequestAbandoned("r"), 0.5)

    def test_it_expires(self):
        controller = build_controller()
        arrive(controller, "r")
        arrive(controller, "s", ttl_s=5.0)
        assert controller.next_wake_at() == 5.0
        assert handle(controller, Woken(), 4.9) == []
        assert outcomes(handle(controller, Woken(), 5.0)) == [("s", Outcome.EXPIRED)]
        assert controller.next_wake_at() is None

    def test_the_end_of_a_rest_comes_before_a_deadline(self):
        controller = build_controller()
        arrive(controller, "r")
        arrive(controller, "s", ttl_s=5.0)
        fail(controller, "r", 0.0, FailureCause.BUSY)
        assert controller.next_wake_at() == 0.5
        assert handle(controller, Woken(), 0.5) == [Dispatch("s", "a", 1)]

    def test_an_operator_grants_more(self):
        controller = build_controller()
        for name in "rst":
            arrive(controller, name)
        commands = handle(controller, Reconfigured(FlowConfig(requests_per_worker=2)), 1.0)
        assert commands == [Dispatch("s", "a", 1)]

    def test_an_operator_grants_less_and_what_runs_goes_on(self):
        controller = build_controller(config=FlowConfig(requests_per_worker=2))
        for name in "rst":
            arrive(controller, name)
        assert handle(controller, Reconfigured(ONE), 1.0) == []
        assert end(controller, "r", 2.0) == []
        assert end(controller, "s", 2.0) == [Dispatch("t", "a", 1)]

    def test_a_worker_with_much_room_takes_several(self):
        controller = build_controller()
        for name in "rst":
            arrive(controller, name)
        join(controller, "b", 1.0)
        handle(controller, Reconfigured(FlowConfig(requests_per_worker=1)), 1.0)
        assert controller.stats(1.0).in_flight == 2
        handle(controller, WorkerDrainChanged("a", True), 1.0)
        assert [c.request_id for c in end(controller, "s", 2.0)] == ["t"]


class TestWorkers:
    def test_a_sick_worker_loses_its_requests_once(self):
        controller = build_controller("a", FlowConfig(requests_per_worker=2))
        arrive(controller, "r")
        arrive(controller, "s")
        assert handle(controller, WorkerHealthChanged("a", False), 1.0) == [
            Revoke("r", Outcome.STREAM_BROKEN),
            Revoke("s", Outcome.STREAM_BROKEN),
        ]
        assert handle(controller, WorkerHealthChanged("a", False), 2.0) == []

    def test_what_was_taken_back_goes_to_another_free_of_charge(self):
        controller = build_controller("ab", FlowConfig(requests_per_worker=2, retry=RetryConfig(budget_burst=0.0)))
        arrive(controller, "r", pinned_to=None)
        holder = next(worker.worker_id for worker in controller.stats(0.0).workers if worker.in_flight)
        handle(controller, WorkerHealthChanged(holder, False), 1.0)
        commands = fail(controller, "r", 1.0, FailureCause.REVOKED)
        assert [type(command) for command in commands] == [Enqueue, Dispatch]

    def test_a_healed_worker_starts_with_a_clean_record(self):
        controller = build_controller()
        arrive(controller, "r")
        fail(controller, "r", 0.0, FailureCause.UNREACHABLE)
        arrive(controller, "s", 0.1)
        assert handle(controller, WorkerHealthChanged("a", True), 0.2) == [Dispatch("s", "a", 1)]

    def test_a_draining_worker_keeps_its_streams_and_gets_no_more(self):
        controller = build_controller()
        arrive(controller, "r")
        arrive(controller, "s")
        assert handle(controller, WorkerDrainChanged("a", True), 1.0) == []
        assert end(controller, "r", 2.0) == []
        assert handle(controller, WorkerDrainChanged("a", False), 3.0) == [Dispatch("s", "a", 1)]

    def test_a_worker_that_left_gets_nothing_and_may_come_back(self):
        controller = build_controller()
        arrive(controller, "r")
        handle(controller, WorkerLeft("a"), 1.0)
        handle(controller, WorkerHealthChanged("a", True), 1.5)
        assert outcomes(arrive(controller, "s", 2.0)) == [("s", Outcome.NO_WORKERS)]
        end(controller, "r", 3.0)
        assert controller.stats(3.0).workers == ()
        join(controller, "a", 4.0)
        assert arrive(controller, "t", 4.0) == [Dispatch("t", "a", 1)]

    def test_the_load_is_kept(self):
        controller = build_controller()
        load = WorkerLoad(1.0, 3, 4, 0.5)
        assert handle(controller, WorkerLoadSeen("a", load), 1.0) == []
        assert controller._state.ledger.worker("a").load == load

    def test_news_of_an_unknown_worker_is_a_fault(self):
        with pytest.raises(InvariantError, match="worker z is not known"):
            build_controller().handle(WorkerLeft("z"), 0.0)


def test_a_snapshot_shows_all():
    controller = build_controller("ab")
    for name in "rst":
        arrive(controller, name)
    stats = controller.stats(0.0)
    assert (stats.queued_requests, stats.queued_tokens, stats.in_flight, stats.draining) == (1, 101, 2, False)
    assert [(worker.worker_id, worker.in_flight, worker.resting) for worker in stats.workers] == [
        ("a", 1, False),
        ("b", 1, False),
    ]


class TestBands:
    def test_promises_go_first_and_best_effort_last(self):
        controller = build_controller(config=BOTH)
        arrive(controller, "r")
        for name, tier, rank in (("b", "batch", 2), ("s", "standard", 1), ("g", "gold", 0)):
            arrive(controller, name, tier=tier, rank=rank)
        order = []
        for name in "rgsb":
            order += [command.request_id for command in end(controller, name, 0.1)]
        assert order == ["g", "s", "b"]

    def test_beyond_its_contract_a_dear_tenant_waits_behind_the_cheap(self):
        contracts = {"tenant": Allowance(0.0, 1.0, Measure.REQUESTS)}
        controller = build_controller(config=replace(BOTH, contracts=contracts))
        arrive(controller, "within", tier="gold", rank=0)
        arrive(controller, "beyond", tier="gold", rank=0)
        arrive(controller, "cheap", tenant="other")
        assert end(controller, "within", 0.1) == [Dispatch("cheap", "a", 1)]

    def test_what_is_not_promised_is_shed_and_what_is_expires(self):
        controller = build_controller(config=BOTH)
        arrive(controller, "r")
        arrive(controller, "b", tier="batch", rank=2, ttl_s=3.0)
        arrive(controller, "s", ttl_s=3.0)
        assert sorted(outcomes(handle(controller, Woken(), 3.0))) == sorted(
            [("b", Outcome.SHED), ("s", Outcome.EXPIRED)]
        )

    def test_best_effort_with_room_is_sent_though_nobody_is_promised_anything(self):
        assert arrive(build_controller(config=BOTH), "b", tier="batch", rank=2) == [Dispatch("b", "a", 1)]


class TestRevocation:
    def test_best_effort_makes_room_for_a_promise_and_waits_again(self):
        controller = build_controller(config=BOTH)
        arrive(controller, "b", tier="batch", rank=2)
        assert arrive(controller, "g", tier="gold", rank=0) == [Enqueue("g", 1), Revoke("b", Outcome.REVOKED)]
        assert arrive(controller, "h", tier="gold", rank=0) == [Enqueue("h", 2)]  # nobody is taken back twice
        assert fail(controller, "b", 0.1, FailureCause.REVOKED) == [Enqueue("b", 3), Dispatch("g", "a", 1)]

    def test_it_ends_when_its_answer_had_begun(self):
        controller = build_controller(config=BOTH)
        arrive(controller, "b", tier="batch", rank=2)
        handle(controller, FirstTokenSeen("b"), 0.1)
        assert arrive(controller, "g", 0.2, tier="gold", rank=0)[1] == Revoke("b", Outcome.REVOKED)
        assert end(controller, "b", 0.3, PermitEnding.DROPPED) == [Dispatch("g", "a", 1)]
        assert controller.stats(0.3).workers[0].resting is False

    def test_what_comes_back_is_given_any_free_worker(self):
        controller = build_controller("a", BOTH)
        arrive(controller, "b", tier="batch", rank=2)
        arrive(controller, "g", tier="gold", rank=0)
        controller.handle(RequestAbandoned("g"), 0.05)
        join(controller, "c", 0.1)
        handle(controller, WorkerDrainChanged("a", True), 0.1)
        assert fail(controller, "b", 0.2, FailureCause.REVOKED)[1] == Dispatch("b", "c", 1)

    def test_past_its_patience_it_is_not_sent_again(self):
        controller = build_controller("ab", BOTH)
        arrive(controller, "b", tier="batch", rank=2, ttl_s=1.0)
        arrive(controller, "r", tier="batch", rank=2, ttl_s=9.0)
        arrive(controller, "g", tier="gold", rank=0, ttl_s=9.0)
        arrive(controller, "h", tier="gold", rank=0, ttl_s=9.0)
        assert ("b", Outcome.SHED) in outcomes(fail(controller, "b", 5.0, FailureCause.REVOKED))

    def test_a_promise_that_would_be_refused_takes_one_back(self):
        controller = build_controller("ab", BOTH)
        arrive(controller, "r", pinned_to="a")
        handle(controller, FirstTokenSeen("r"), 0.0)
        end(controller, "r", 9.9, tokens=100)
        arrive(controller, "s", 10.0, pinned_to="a")
        arrive(controller, "b", 10.0, tier="batch", rank=2)
        for name in "tuvw":
            arrive(controller, name, 10.0, tenant=name, ttl_s=1e3)
        assert arrive(controller, "g0", 10.0, tier="gold", rank=0)[1] == Revoke("b", Outcome.REVOKED)
        assert outcomes(arrive(controller, "g1", 10.0, tier="gold", rank=0)) == [("g1", Outcome.DEADLINE_UNATTAINABLE)]


class TestSlack:
    def test_who_waits_for_prompts_to_be_read_is_looked_at_again(self):
        tier = Tier(TierName("standard"), 1, tpot_target_s=0.05)
        controller = build_controller(config=FlowConfig(requests_per_worker=16, tiers={tier.name: tier}))
        for number in range(8):
            arrive(controller, f"r{number}")
            handle(controller, FirstTokenSeen(f"r{number}"), 0.0)
        assert arrive(controller, "s", prompt_bytes=32_000) == [Enqueue("s", 1)]
        wake_at = controller.next_wake_at()
        assert 0.0 < wake_at < 1.0
        assert handle(controller, Woken(), wake_at - 0.01) == []
        assert handle(controller, Woken(), wake_at) == [Dispatch("s", "a", 1)]


def test_a_worker_that_started_again_has_forgotten_what_it_read():
    controller = build_controller(("a",), FlowConfig())

    def send(name, now):
        request = build_request(name, arrived_at=now, prompt_bytes=4096)
        request.prefix = (4000 << 32,)
        return controller.handle(RequestArrived(request), now)[0].grounds.cached_tokens

    def read(generated, now):
        controller.handle(WorkerLoadSeen("a", WorkerLoad(now, 1, 0, generation_tokens=generated)), now)

    assert send("r", 0.0) == 0
    read(1000, 1.0)
    read(1100, 2.0)
    assert send("s", 2.0) > 500
    read(10, 3.0)
    assert send("t", 3.0) == 0
