"""A Hypothesis state machine that lives through random histories of one flow controller under a referee's eye."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from service.domain.command import Command
from service.domain.contract import Allowance, Measure, Ramp
from service.domain.event import (
    AttemptFailed,
    DrainBegan,
    Event,
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
from service.domain.permit import PermitEnding
from service.domain.tier import Tier
from service.domain.units import TenantId, TierName, WorkerId
from service.flow.config import BreakerConfig, FlowConfig, Reconfigured, RetryConfig, SheddingConfig
from service.flow.controller import FlowController
from tests.support.flow import build_request
from tests.support.referee import Case, Referee

WORKERS = st.sampled_from([WorkerId(name) for name in "abc"])
WHICH = st.integers(0, 63)
LENGTHS_S = st.sampled_from([0.0, 0.01, 0.25, 0.5, 1.0, 3.0, 40.0])
TIERS = {
    TierName(name): tier
    for name, tier in {
        "gold": Tier(TierName("gold"), 0, ttft_targets_s=((200, 0.5), (100_000, 2.0)), tpot_target_s=0.05),
        "standard": Tier(TierName("standard"), 1),
        "silver": Tier(TierName("silver"), 1, ttft_targets_s=((100_000, 4.0),)),
        "batch": Tier(TierName("batch"), 2, best_effort=True),
    }.items()
}
CONTRACTS = {
    TenantId("small"): Allowance(0.5, 2.0, Measure.REQUESTS),
    TenantId("work"): Allowance(0.2, 5.0, ramp=Ramp(2.0, 10.0, 0.1)),
    TenantId("nothing"): Allowance(0.0, 0.0),
}
KINDS = st.sampled_from(
    [
        ("tenant", "standard", 1),
        ("tenant", "standard", 1),
        ("tenant", "gold", 0),
        ("other", "gold", 0),
        ("tenant", "silver", 1),
        ("small", "gold", 0),
        ("small", "standard", 1),
        ("work", "silver", 1),
        ("nothing", "standard", 1),
        ("nothing", "gold", 0),
        ("other", "batch", 2),
        ("tenant", "batch", 2),
    ]
)
"""Tenant, tier and rank: without and with promises, within contracts and beyond, and best effort."""

ROOMY = FlowConfig(
    requests_per_worker=2,
    tiers=TIERS,
    contracts=CONTRACTS,
    breaker=BreakerConfig(open_max_s=4.0),
    retry=RetryConfig(attempts_max=3, budget_burst=3.0),
)
"""One with which retries go far; drawn often, since a random one seldom lets a request fail three times."""

CONFIGS = st.just(ROOMY) | st.builds(
    FlowConfig,
    requests_per_worker=st.sampled_from([1, 2, 3, 1024]),
    tiers=st.just(TIERS) | st.just({}),
    contracts=st.just(CONTRACTS),
    shedding=st.just(SheddingConfig(floor_ratio=0.2))
    | st.builds(
        SheddingConfig,
        floor_ratio=st.sampled_from([0.0, 0.02, 0.5]),
        revoked_ratio=st.sampled_from([0.0, 0.05]),
        brownout_forced=st.sampled_from([0, 0, 0, 1, 2, 3]),
    ),
    queued_requests_max=st.sampled_from([0, 2, 8]),
    queued_tokens_max=st.sampled_from([200, 10_000]),
    retry_after_max_s=st.sampled_from([0.5, 60.0]),
    breaker=st.builds(
        BreakerConfig,
        failures_to_open=st.integers(1, 3),
        open_s=st.sampled_from([0.5, 1.0]),
        open_max_s=st.just(4.0),
        busy_rest_s=st.sampled_from([0.0, 0.5]),
    ),
    retry=st.builds(
        RetryConfig,
        attempts_max=st.integers(1, 3),
        budget_ratio=st.sampled_from([0.0, 0.1]),
        budget_burst=st.sampled_from([0.0, 1.0, 3.0]),
    ),
)


class FlowMachine(RuleBasedStateMachine):
    """Every rule lets one thing happen; after each the referee compares the books. ``build`` makes the controller."""

    build: ClassVar[Callable[[FlowConfig, random.Random], FlowController]] = FlowController
    sound = False

    @initialize(config=CONFIGS, seed=st.integers(0, 3), workers=st.sampled_from(["", "a", "ab", "abc", "abc"]))
    def begin(self, config, seed, workers):
        self.config, self.seed = config, seed
        self.controller = type(self).build(config, random.Random(seed))
        self.referee = Referee(config)
        self.now = 0.0
        self.count = 0
        self.history: list[tuple[float, Event | Reconfigured, list[Command]]] = []
        self.sound = True
        for name in workers:
            self.join_healthy(WorkerId(name))

    def happen(self, event):
        """Let ``event`` happen and serve the wakes that are due; the first wake must leave none due."""
        self.sound = False  # until all has been looked at
        self.take(event)
        self.look()

    def look(self):
        """Serve the wakes that are due, then compare the books."""
        self.sound = False
        wake_at = self.controller.next_wake_at()
        if wake_at is not None and wake_at <= self.now:
            self.take(Woken())
            wake_at = self.controller.next_wake_at()
            assert wake_at is None or wake_at > self.now, "woken, and at once wants to be woken again"
        self.referee.check(self.controller, self.now)
        self.sound = True

    def take(self, event):
        commands = self.controller.handle(event, self.now)
        self.history.append((self.now, event, commands))
        self.referee.see(self.controller, event, self.now, commands)

    def pick(self, cases: list[Case], which: int):
        return cases[which % len(cases)].request.request_id

    # ---------------------------------------------------------------- requests

    @rule(
        ttl_s=st.sampled_from([0.0, 0.5, 2.0, 30.0]),
        prompt_bytes=st.integers(0, 500) | st.just(50_000),
        pinned_to=st.none() | st.none() | WORKERS,
        kind=KINDS,
    )
    def arrive(self, ttl_s, prompt_bytes, pinned_to, kind):
        self.count += 1
        tenant, tier, rank = kind
        request = build_request(
            f"r{self.count}",
            arrived_at=self.now,
            ttl_s=ttl_s,
            prompt_bytes=prompt_bytes,
            pinned_to=pinned_to,
            tenant=tenant,
            tier=tier,
            rank=rank,
        )
        self.happen(RequestArrived(request))

    @rule(times=st.integers(2, 6), kind=KINDS, prompt_bytes=st.sampled_from([32, 32, 20_000]))
    def arrive_many(self, times, kind, prompt_bytes):
        for _ in range(times):
            self.arrive(ttl_s=5.0, prompt_bytes=prompt_bytes, pinned_to=None, kind=kind)

    @rule(talk=st.integers(1, 3), turns=st.integers(1, 4), ttl_s=st.sampled_from([0.5, 5.0, 30.0]), kind=KINDS)
    def talk_on(self, talk, turns, ttl_s, kind):
        """Turns of a conversation so long that reading it anew is worth waiting for who has read it."""
        for _ in range(turns):
            self.count += 1
            ends = [400_000, 500_000]
            tenant, tier, rank = kind
            request = build_request(
                f"r{self.count}",
                arrived_at=self.now,
                ttl_s=ttl_s,
                prompt_bytes=ends[-1],
                tenant=tenant,
                tier=tier,
                rank=rank,
                prefix=tuple(end << 32 | talk for end in ends),
            )
            self.happen(RequestArrived(request))

    @rule()
    def promised_after_the_rest(self):
        """Workers full of what is beyond contracts, and then somebody who was promised something."""
        self.arrive_many(times=4, kind=("other", "batch", 2), prompt_bytes=32)
        self.arrive_many(times=2, kind=("tenant", "gold", 0), prompt_bytes=32)

    @precondition(lambda self: self.referee.running)
    @rule(which=WHICH)
    def first_token(self, which):
        self.happen(FirstTokenSeen(self.pick(self.referee.running, which)))

    @precondition(lambda self: self.referee.running)
    @rule(
        which=WHICH,
        ending=st.sampled_from([PermitEnding.SERVED, *PermitEnding]),
        tokens=st.sampled_from([None, 1, 50, 400]),
    )
    def end(self, which, ending, tokens):
        self.happen(PermitEnded(self.pick(self.referee.running, which), ending, tokens, tokens and 2 * tokens))

    @precondition(lambda self: self.referee.waiting and self.referee.running)
    @rule(times=st.integers(1, 6), length_s=st.sampled_from([0.01, 0.25]))
    def serve(self, times, length_s):
        """The oldest get their tokens and end, one after the other."""
        for _ in range(times):
            if self.referee.running:
                name = self.pick(self.referee.running, 0)
                self.happen(FirstTokenSeen(name))
                self.pass_time(length_s, late=False)
                if name in self.referee.live:
                    self.happen(PermitEnded(name, PermitEnding.SERVED, 50, 100))

    @precondition(lambda self: any(case.revoked for case in self.referee.running))
    @rule()
    def give_back(self):
        """What is to be taken back is taken back."""
        for case in [case for case in self.referee.running if case.revoked]:
            name = case.request.request_id
            if case.first_token_seen:
                self.happen(PermitEnded(name, PermitEnding.DROPPED, None))
            else:
                self.happen(AttemptFailed(name, FailureCause.REVOKED, None))

    @precondition(lambda self: any(not case.first_token_seen for case in self.referee.running))
    @rule(which=WHICH, cause=st.sampled_from(FailureCause), wish_s=st.sampled_from([None, 0.0, 1.0, 100.0]))
    def fail(self, which, cause, wish_s):
        silent = [case for case in self.referee.running if not case.first_token_seen]
        name = self.pick(silent, which)
        if cause is FailureCause.REVOKED and not self.referee.live[name].revoked:
            cause = FailureCause.BROKEN
        self.happen(AttemptFailed(name, cause, wish_s))

    @precondition(lambda self: any(not case.first_token_seen for case in self.referee.running))
    @rule(which=WHICH)
    def fail_until_it_ends(self, which):
        silent = [case for case in self.referee.running if not case.first_token_seen]
        name = self.pick(silent, which)
        while name in self.referee.live and self.referee.live[name].worker_id is not None:
            self.happen(AttemptFailed(name, FailureCause.BROKEN, None))

    @precondition(lambda self: self.referee.waiting)
    @rule(which=WHICH)
    def abandon(self, which):
        self.happen(RequestAbandoned(self.pick(self.referee.waiting, which)))

    # ---------------------------------------------------------------- workers

    @rule(worker_id=WORKERS)
    def join_healthy(self, worker_id):
        self.happen(WorkerJoined(worker_id))
        self.happen(WorkerHealthChanged(worker_id, True))

    @rule(worker_id=WORKERS)
    def join(self, worker_id):
        self.happen(WorkerJoined(worker_id))

    @rule(worker_id=WORKERS, healthy=st.booleans())
    def change_health(self, worker_id, healthy):
        if worker_id in self.referee.stations:
            self.happen(WorkerHealthChanged(worker_id, healthy))

    @rule(worker_id=WORKERS, draining=st.booleans())
    def change_drain(self, worker_id, draining):
        if worker_id in self.referee.stations:
            self.happen(WorkerDrainChanged(worker_id, draining))

    @rule(worker_id=WORKERS)
    def leave(self, worker_id):
        if worker_id in self.referee.stations:
            self.happen(WorkerLeft(worker_id))

    @rule(
        worker_id=WORKERS,
        age_s=st.sampled_from([0.0, 0.0, 0.5, 5.0]),
        running=st.none() | st.integers(0, 4),
        waiting=st.none() | st.integers(0, 2),
        made=st.none() | st.integers(0, 100),
    )
    def see_load(self, worker_id, age_s, running, waiting, made):
        if worker_id in self.referee.stations:
            tokens = None if made is None else int(20.0 * self.now) + made
            load = WorkerLoad(self.now - age_s, running, waiting, 0.5, generation_tokens=tokens)
            self.happen(WorkerLoadSeen(worker_id, load))

    @rule()
    def news_of_yesterday(self):
        """All that is known is old when work comes that nobody was promised."""
        for worker_id in list(self.referee.stations):
            self.see_load(worker_id, age_s=5.0, running=0, waiting=0, made=None)
        self.arrive_many(times=2, kind=("tenant", "batch", 2), prompt_bytes=32)

    @rule(worker_id=WORKERS, times=st.integers(2, 4))
    def see_loads(self, worker_id, times):
        """Readings one after the other, all busy: limits are found."""
        for _ in range(times):
            self.pass_time(length_s=1.0, late=False)
            self.see_load(worker_id, age_s=0.0, running=8, waiting=0, made=50)

    # ---------------------------------------------------------------- the rest

    @rule(config=CONFIGS)
    def reconfigure(self, config):
        self.happen(Reconfigured(config))

    @precondition(lambda self: self.referee.waiting)
    @rule()
    def grant_more(self):
        self.happen(Reconfigured(replace(self.referee.config, requests_per_worker=1024)))

    @rule(told=st.booleans())
    def busy_for_a_second(self, told):
        """Many get tokens side by side, and the workers say so, or say nothing of it."""
        self.happen(Reconfigured(replace(ROOMY, requests_per_worker=1024)))
        self.arrive_many(times=6, kind=("tenant", "standard", 1), prompt_bytes=32)
        for case in [case for case in self.referee.running if not case.first_token_seen]:
            self.happen(FirstTokenSeen(case.request.request_id))
        for length_s, running in ((0.0, 8), (1.0, 8 if told else None)):
            self.pass_time(length_s, late=False)
            for worker_id in list(self.referee.stations):
                self.see_load(worker_id, age_s=0.0, running=running, waiting=0, made=None)

    @precondition(lambda self: len(self.history) > 40)
    @rule()
    def begin_drain(self):
        self.happen(DrainBegan())

    @rule(length_s=LENGTHS_S, late=st.booleans())
    def pass_time(self, length_s, late):
        """Time passes; alarms ring at their moment, or all ``late`` at the end."""
        until = self.now + length_s
        while not late and (wake_at := self.controller.next_wake_at()) is not None and wake_at <= until:
            self.now = max(self.now, wake_at)
            self.happen(Woken())
        self.now = until
        self.look()

    def teardown(self):
        """Let all end, see that nothing is left, and live through the same history again."""
        if not self.sound:  # the fault was found: nothing that follows says more
            return
        while self.referee.running:
            self.end(which=0, ending=PermitEnding.SERVED, tokens=10)
        self.pass_time(length_s=100.0, late=False)
        while self.referee.running:
            self.end(which=0, ending=PermitEnding.SERVED, tokens=10)
        stats = self.controller.stats(self.now)
        assert (stats.queued_requests, stats.queued_tokens, stats.in_flight) == (0, 0, 0), "something is left over"
        assert all(worker.in_flight == 0 for worker in stats.workers), "something is left over"
        assert self.controller.next_wake_at() is None, "nobody waits and a wake is asked for"
        twin = type(self).build(self.config, random.Random(self.seed))
        for now, event, commands in self.history:
            again = twin.handle(event, now)
            assert again == commands, f"the same history, other commands: {commands}, then {again}"
