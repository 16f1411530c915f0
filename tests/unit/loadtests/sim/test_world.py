"""Runs of the whole simulator: repeatable, nothing lost, faults that bite, an honest sensor."""

import random
from collections import Counter
from dataclasses import fields, replace

import pytest

from loadtests.sim.arms import ARMS, StaticConcurrency
from loadtests.sim.driver import VirtualDriver
from loadtests.sim.engine import SimWorker
from loadtests.sim.measure import check_conservation, measure
from loadtests.sim.population import Client, Retry
from loadtests.sim.run import Job, build_world
from loadtests.sim.scenario import SCENARIOS, Fault, FaultKind
from loadtests.sim.sensor import Sensor, SensorConfig
from loadtests.sim.world import World
from service.domain.command import Revoke
from service.domain.event import WorkerHealthChanged, WorkerLoadSeen
from service.domain.outcome import Outcome
from service.emulator.steps import EngineRequest

SMALL = replace(SCENARIOS["uniform"], workers=2, warmup_s=1.0, duration_s=7.0, settle_s=3.0, load=2.0)
SERVICE = replace(SCENARIOS["mixed"], workers=2, warmup_s=2.0, duration_s=8.0, settle_s=4.0, load=1.5)


def run(scenario=SMALL, arm="static", seed=1):
    world = build_world(Job(scenario, arm, seed))
    world.run()
    check_conservation(world.attempts)
    return world


def describe(world):
    return [
        (a.request_id, a.arrived_at, a.dispatched_at, a.first_token_at, a.ended_at, a.outcome, a.output_tokens)
        for a in world.attempts
    ]


@pytest.mark.parametrize("arm", ARMS)
def test_the_same_seed_gives_the_same_run_and_loses_nobody(arm):
    world = run(SERVICE, arm)
    assert describe(world) == describe(run(SERVICE, arm))
    assert describe(world) != describe(run(SERVICE, arm, seed=2))
    stats = world.driver._controller.stats(world.driver.now)
    live = sum(attempt.outcome is None for attempt in world.attempts)
    assert stats.in_flight + stats.queued_requests == live


def test_all_arms_are_offered_the_same():
    offered = {tuple((a.request_id, a.arrived_at) for a in run(arm=arm).attempts) for arm in ("static", "valves")}
    assert len(offered) == 1


def with_fault(kind, until_s=None, factor=1.0, scenario=SMALL, worker=0):
    return replace(scenario, load=0.8, faults=(Fault(kind, 3.0, until_s, worker, factor),))


def count_outcomes(world):
    return Counter(attempt.outcome for attempt in world.attempts)


def test_a_death_breaks_streams_and_the_other_worker_takes_over():
    world = run(with_fault(FaultKind.DEATH, 5.0))
    outcomes = count_outcomes(world)
    assert outcomes[Outcome.STREAM_BROKEN] > 0
    broken = [attempt for attempt in world.attempts if attempt.outcome is Outcome.STREAM_BROKEN]
    assert {attempt.ended_at for attempt in broken} == {3.0}
    assert sum(attempt.wasted_tokens for attempt in broken) > 0
    hole = [attempt for attempt in world.attempts if 3.0 < attempt.arrived_at < 5.0]
    assert any(attempt.outcome is Outcome.WORKER_UNREACHABLE for attempt in hole)  # nobody knows yet
    after = [attempt for attempt in world.attempts if attempt.arrived_at > 5.1]
    assert sum(attempt.outcome is Outcome.COMPLETED for attempt in after) > 0.8 * len(after)
    assert not world._sick  # back before the end


class TakesBack(StaticConcurrency):
    """Takes back what an unhealthy worker holds."""

    def handle(self, event, now):
        commands = super().handle(event, now)
        if isinstance(event, WorkerHealthChanged) and not event.healthy:
            held = [name for name, place in self.running.items() if place.worker_id == event.worker_id]
            commands += [build_revoke(name) for name in held]
        return commands


def build_revoke(name):
    """Cores may be asked to say how a stream ends that has begun."""
    return Revoke(**{field.name: name if field.name == "request_id" else BROKEN for field in fields(Revoke)})


BROKEN = Outcome.STREAM_BROKEN


def test_a_zombie_holds_what_it_has_until_it_is_found_out():
    scenario = replace(with_fault(FaultKind.ZOMBIE), duration_s=12.0)
    world = World(scenario, lambda: TakesBack(16, 64), 1)
    world.run()
    check_conservation(world.attempts)
    assert world._sick == {0}
    outcomes = count_outcomes(world)
    assert outcomes[BROKEN] > 0
    broken = [attempt for attempt in world.attempts if attempt.outcome is BROKEN]
    assert {attempt.ended_at for attempt in broken} == {12.0}
    assert not world.workers[0].held


def test_a_slow_worker_slows_its_answers():
    slow, quick = run(with_fault(FaultKind.SLOW, None, 3.0, worker=None)), run(replace(SMALL, load=0.8))

    def mean_time(world):
        times = [a.ended_at - a.first_token_at for a in world.attempts if a.outcome is Outcome.COMPLETED]
        return sum(times) / len(times)

    assert mean_time(slow) > 1.5 * mean_time(quick)


def test_lost_blocks_and_drafts_cost_throughput():
    plain = replace(SERVICE, load=1.0)
    done = len([a for a in run(plain).attempts if a.outcome is Outcome.COMPLETED])
    for kind, factor in ((FaultKind.KV_CLIFF, 0.01), (FaultKind.ACCEPT_COLLAPSE, 0.0)):
        world = run(replace(plain, faults=(Fault(kind, 0.5, None, None, factor),)))
        assert len([a for a in world.attempts if a.outcome is Outcome.COMPLETED]) < done


def test_a_draining_worker_gets_nothing():
    world = run(with_fault(FaultKind.DRAIN))
    late = [a for a in world.attempts if a.dispatched_at is not None and a.dispatched_at > 3.0]
    assert late
    assert not world.workers[0].held


def test_after_a_restart_the_gateway_serves_on():
    world = run(with_fault(FaultKind.GATEWAY_RESTART))
    outcomes = count_outcomes(world)
    assert outcomes[Outcome.GATEWAY_FAULT] > 0
    assert sum(a.arrived_at > 4.0 and a.outcome is Outcome.COMPLETED for a in world.attempts) > 100


def test_when_all_clients_leave_nothing_is_left():
    scenario = replace(SMALL, duration_s=2.0, faults=(Fault(FaultKind.ALL_CANCEL, 3.0),))
    world = run(scenario)
    assert count_outcomes(world)[Outcome.CLIENT_GONE] > 0
    assert count_outcomes(world)[None] == 0
    for worker in world.workers:
        load = worker.read_load(world.driver.now)
        assert (load.running_requests, load.waiting_requests, load.kv_cache_ratio) == (0, 0, 0.0)


def with_client(client):
    return replace(SMALL, load=3.0, tenants=tuple(replace(tenant, client=client) for tenant in SMALL.tenants))


def test_clients_without_patience_leave():
    world = run(with_client(Client(patience_s=0.5)), "round-robin")
    gone = [attempt for attempt in world.attempts if attempt.outcome is Outcome.CLIENT_GONE]
    assert gone
    assert all(attempt.ended_at - attempt.arrived_at == pytest.approx(0.5) for attempt in gone)


def test_clients_come_back_when_told():
    world = run(with_client(Client(Retry.TOLD, retries_max=2)), "valves")
    again = [attempt for attempt in world.attempts if attempt.tries]
    assert {attempt.tries for attempt in again} == {1, 2}
    firsts = {attempt.offer.number: attempt for attempt in world.attempts if not attempt.tries}
    assert all(a.arrived_at >= firsts[a.offer.number].ended_at + 1.0 for a in again)
    assert 0.0 < measure(world, "valves").honesty < 1.0


def test_a_storm_is_many_requests_for_few_wishes():
    world = run(with_client(Client(Retry.STORM, retries_max=30, storm_gap_s=0.05)), "valves")
    figures = measure(world, "valves")
    assert sum(tier.offered for tier in figures.tiers.values()) > 2 * figures.intents
    assert 0 < figures.intents_good < figures.intents


def test_what_the_core_foresees_is_noted_and_judged():
    world = run(SMALL, "sluice")
    figures = measure(world, "sluice")
    error, worst, covered = figures.tiers["hi"].compute_calibration()
    assert error < 1.0
    assert 0.5 < worst <= covered <= 1.0
    assert figures.tiers["hi"].admitted
    assert all(bound_s > 0.0 and seen_s > 0.0 for _, bound_s, seen_s in figures.tiers["hi"].admitted)


def test_a_policy_that_says_nothing_is_not_judged():
    assert measure(run(SMALL, "static"), "static").tiers["hi"].compute_calibration() is None


# --------------------------------------------------------------------------- one worker, the sensor


class Ears:
    def __init__(self):
        self.heard = []

    def on_first_token(self, worker, name, cached_tokens):
        self.heard.append(("first", name))

    def on_finished(self, worker, name, finished):
        self.heard.append(("finished", name, finished.output_tokens))

    def on_failed(self, worker, name, cause):
        self.heard.append((cause.value, name))


class Silence:
    def __init__(self):
        self.events = []

    def handle(self, event, now):
        self.events.append((now, event))
        return []

    def next_wake_at(self):
        return None


@pytest.fixture
def bench():
    core, ears = Silence(), Ears()
    driver = VirtualDriver(core)
    world = build_world(Job(SMALL, "static", 1))
    worker = SimWorker("w", SMALL.engine_profile, world.workers[0]._config, driver, ears, "seed")
    return core, ears, driver, worker


def test_a_worker_serves_and_forgets(bench):
    _, ears, driver, worker = bench
    worker.send(EngineRequest("a", 16, 4))
    driver.run(1.0)
    assert ears.heard == [("first", "a"), ("finished", "a", 4)]
    assert not worker.held


def test_an_aborted_request_is_not_heard_of_again(bench):
    _, ears, driver, worker = bench
    worker.send(EngineRequest("a", 16, 400))
    driver.run(0.1)
    yielded = worker.abort("a")
    assert yielded > 1
    driver.run(5.0)
    assert ears.heard == [("first", "a")]
    assert worker.read_load(5.0).running_requests == 0


def test_an_aborted_request_that_is_still_under_way_never_starts(bench):
    _, ears, driver, worker = bench
    worker.send(EngineRequest("a", 16, 4))
    assert worker.abort("a") == 0
    driver.run(1.0)
    assert ears.heard == []
    assert worker.read_load(1.0).generation_tokens == 0


def test_a_dead_worker_refuses_and_comes_back_empty(bench):
    _, ears, driver, worker = bench
    worker.send(EngineRequest("a", 16, 4000))
    driver.run(0.1)
    worker.die()
    assert worker.read_load(0.1) is None
    worker.send(EngineRequest("b", 16, 4))
    driver.run(0.5)
    assert ears.heard == [("first", "a"), ("broken", "a"), ("unreachable", "b")]
    worker.restart()
    assert worker.read_load(0.5).generation_tokens == 0
    worker.send(EngineRequest("c", 16, 4))
    driver.run(1.0)
    assert ears.heard[-1] == ("finished", "c", 4)


def test_a_hung_worker_yields_nothing_and_still_answers_scrapes(bench):
    _, ears, driver, worker = bench
    worker.hang(True)
    worker.send(EngineRequest("a", 16, 4))
    driver.run(1.0)
    assert ears.heard == []
    assert worker.read_load(1.0).waiting_requests == 1
    worker.hang(False)
    driver.run(2.0)
    assert ears.heard[-1] == ("finished", "a", 4)


def readings(config, bench, until=10.0):
    core, _, driver, worker = bench
    Sensor(config, driver, [worker], random.Random(1))
    driver.run(until)
    return [(at, event) for at, event in core.events if isinstance(event, WorkerLoadSeen)]


def test_scrapes_come_each_second_and_late(bench):
    seen = readings(SensorConfig(lag_s=0.4), bench)
    assert [at for at, _ in seen] == pytest.approx([second + 0.4 for second in range(1, 10)])
    assert all(event.load.age_s(at) == pytest.approx(0.4) for at, event in seen)
    assert all(value is not None for value in vars_of(seen[0][1].load, "drafts", "draft_tokens", "accepted_tokens"))


def vars_of(load, *without):
    return [getattr(load, name) for name in type(load).__slots__ if name not in without]


def test_in_the_dark_nothing_is_seen(bench):
    assert readings(SensorConfig(dark=(0.0, 5.5)), bench)[0][0] == pytest.approx(6.05)


def test_lost_scrapes_are_few_and_other_workers_see(bench):
    assert 0 < len(readings(SensorConfig(loss_ratio=0.5, dark=(0.0, 99.0), dark_workers=(1,)), bench, 40.0)) < 35


def test_noise_touches_gauges_only(bench):
    worker = bench[3]
    for name in "abcdefgh":
        worker.send(EngineRequest(name, 16, 100_000))
    seen = [event.load for _, event in readings(SensorConfig(noise_cv=0.5), bench, 20.0)]
    assert len({load.running_requests for load in seen}) > 2
    tokens = [load.generation_tokens for load in seen]
    assert tokens == sorted(tokens)
