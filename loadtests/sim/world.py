"""Lets clients, one gateway core and the engines meet in virtual time.

It does what ``runtime.journey`` does around the core: sends what is dispatched, tells first tokens and ends, aborts
what is revoked or abandoned. Each request that reaches the gateway becomes one :class:`Attempt` with one ending.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import assert_never

from loadtests.sim.driver import Core, VirtualDriver
from loadtests.sim.engine import HOP_S, SimWorker
from loadtests.sim.lengths import find_marks
from loadtests.sim.population import Bucket, Client, Offer, Retry, find_ttft_target_s, iterate_offers
from loadtests.sim.scenario import Fault, FaultKind, Scenario
from loadtests.sim.sensor import Sensor
from service.domain.command import Command, Dispatch, Enqueue, Refuse, Revoke
from service.domain.event import (
    AttemptFailed,
    FailureCause,
    FirstTokenSeen,
    PermitEnded,
    RequestAbandoned,
    RequestArrived,
    WorkerDrainChanged,
    WorkerHealthChanged,
    WorkerJoined,
)
from service.domain.outcome import Outcome
from service.domain.permit import PermitEnding
from service.domain.request import Request
from service.domain.units import RequestId, TenantId, WorkerId
from service.emulator.steps import EngineConfig, EngineRequest, Finished
from service.runtime.ports import Observer

DEATH_SEEN_AFTER_S = 2.0
"""From a worker's death to the health monitor's verdict, and from its return to being taken back: a guess."""

STALL_SEEN_AFTER_S = 9.0
"""From a worker's last progress to the verdict (``workers.health``: ``stall_after_s``)."""

BYTES_PER_TOKEN = 3.2
"""The gateway's first guess, by which a deadline is chosen."""


class Attempt:
    """One request at the gateway, from arrival to its one ending."""

    __slots__ = (
        "arrived_at",
        "bound_s",
        "cached_tokens",
        "dispatched_at",
        "dispatches",
        "ended_at",
        "first_token_at",
        "in_contract",
        "name",
        "offer",
        "outcome",
        "output_tokens",
        "predicted_at",
        "prediction",
        "queued",
        "request_id",
        "retry_after_s",
        "tries",
        "wasted_tokens",
        "worker",
    )

    def __init__(self, request_id: RequestId, offer: Offer, tries: int, in_contract: bool, now: float) -> None:
        self.request_id = request_id
        self.offer = offer
        self.tries = tries
        self.in_contract = in_contract
        self.arrived_at = now
        self.dispatched_at: float | None = None
        self.first_token_at: float | None = None
        self.ended_at: float | None = None
        self.outcome: Outcome | None = None
        self.output_tokens = 0
        self.cached_tokens = 0
        self.wasted_tokens = 0
        self.dispatches = 0
        self.queued = False
        self.retry_after_s: float | None = None
        self.worker: SimWorker | None = None
        self.name = ""
        self.predicted_at: float | None = None
        self.prediction: tuple[float, float] | None = None
        """Median and P95 of the time from the latest dispatch to the first token, as the core foresaw them."""
        self.bound_s: float | None = None
        """P95 of the time from arrival to the first token, as foreseen at arrival."""


class World:
    """One run. ``attempts`` holds every request that reached the gateway, in order; ``gauges`` a line per second."""

    def __init__(
        self,
        scenario: Scenario,
        build_core: Callable[[], Core],
        seed: int,
        engine: EngineConfig | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.scenario = scenario
        self.attempts: list[Attempt] = []
        self.gauges: list[tuple[float, int, int]] = []
        self.capacity_rps = scenario.compute_capacity_rps()
        self._build_core = build_core
        self._live: dict[RequestId, Attempt] = {}
        self._sent: dict[str, Attempt] = {}
        self._queued = 0
        self._sick: set[int] = set()
        tiers = {spec.tier.name: spec.tier for spec in scenario.tiers}
        self.tiers = [tiers[tenant.tier] for tenant in scenario.tenants]  # type: ignore[index]
        self._buckets = []
        for tenant in scenario.tenants:
            ratio = tenant.contract_ratio
            rate = None if ratio is None else ratio * self.capacity_rps
            self._buckets.append(Bucket(rate, (rate or 0.0) * tenant.burst_s))
        core = build_core()
        self.driver = driver = VirtualDriver(core, self._on_command, observers)
        config = engine or EngineConfig()
        self._by_rank = config.priority_scheduling
        self.workers = [
            SimWorker(WorkerId(f"w{index}"), scenario.engine_profile, config, driver, self, f"{seed}:engine")
            for index in range(scenario.workers)
        ]
        self._by_id = {worker.worker_id: worker for worker in self.workers}
        self._introduce_workers()
        chance = random.Random(f"{seed}:sensor")  # noqa: S311 - repeatable on purpose
        self.sensor = Sensor(scenario.sensor, driver, self.workers, chance)
        for fault in scenario.faults:
            driver.schedule(fault.at_s, partial(self._begin_fault, fault))
            if fault.until_s is not None:
                driver.schedule(fault.until_s, partial(self._end_fault, fault))
        rate = scenario.load * self.capacity_rps
        self._offers = iterate_offers(scenario.tenants, scenario.mix, rate, scenario.until_s, seed)
        self._schedule_next()
        driver.schedule(1.0, self._gauge)

    def run(self) -> None:
        """Let it all happen."""
        end = self.scenario.until_s + self.scenario.settle_s
        self.driver.run(end)
        for attempt in self._live.values():
            if attempt.worker is not None:
                attempt.output_tokens = attempt.worker.count_output_tokens(attempt.name)

    def live(self) -> tuple[Attempt, ...]:
        """Requests that wait or run."""
        return tuple(self._live.values())

    # ---------------------------------------------------------------- clients

    def _schedule_next(self) -> None:
        offer = next(self._offers, None)
        if offer is not None:
            self.driver.schedule(offer.at, partial(self._offer, offer))

    def _offer(self, offer: Offer) -> None:
        self._schedule_next()
        self._arrive(offer, 0)

    def _arrive(self, offer: Offer, tries: int) -> None:
        now = self.driver.now
        tenant = self.scenario.tenants[offer.tenant]
        tier = self.tiers[offer.tenant]
        request_id = RequestId(f"r{offer.number}" if not tries else f"r{offer.number}.{tries}")
        attempt = Attempt(request_id, offer, tries, self._buckets[offer.tenant].take(now), now)
        self.attempts.append(attempt)
        self._live[request_id] = attempt
        patience_s = tenant.client.patience_s
        if patience_s is not None:
            self.driver.schedule(now + patience_s, partial(self._lose_patience, attempt))
        wait_s = tier.queue_ttl_s or find_ttft_target_s(tier, offer.prompt_bytes / BYTES_PER_TOKEN)
        size = offer.size
        request = Request(
            request_id,
            TenantId(tenant.name),
            tier.name,
            tier.rank,
            offer.prompt_bytes,
            size.max_output_tokens,
            True,
            now,
            now + wait_s,
            size.session,
            None,
            find_marks(size),
        )
        self.driver.submit(RequestArrived(request))

    def _lose_patience(self, attempt: Attempt) -> None:
        if attempt.outcome is None and attempt.first_token_at is None:
            self._leave(attempt)

    def _leave(self, attempt: Attempt) -> None:
        """The client closes its connection."""
        if attempt.worker is None:
            self._end(attempt, Outcome.CLIENT_GONE_QUEUED)
            self.driver.submit(RequestAbandoned(attempt.request_id))
        else:
            output = self._take_back(attempt)
            self._end(attempt, Outcome.CLIENT_GONE)
            self.driver.submit(PermitEnded(attempt.request_id, PermitEnding.IGNORED, output))

    def _react(self, client: Client, attempt: Attempt) -> None:
        """What the client of a refused request does."""
        offer, tries = attempt.offer, attempt.tries + 1
        if client.retry is Retry.NEVER or tries > client.retries_max:
            return
        if client.retry is Retry.TOLD:
            wait_s = attempt.retry_after_s or 1.0
        else:
            wait_s = client.storm_gap_s * (0.5 + offer.draw)
        at = self.driver.now + 2 * HOP_S + wait_s
        if at < self.scenario.until_s:
            self.driver.schedule(at, partial(self._arrive, offer, tries))

    # ---------------------------------------------------------------- orders of the core

    def _on_command(self, now: float, command: Command) -> None:
        match command:
            case Dispatch():
                self._dispatch(command, now)
            case Refuse():
                self._refuse(command)
            case Enqueue():
                attempt = self._live[command.request_id]
                attempt.queued = True
                self._queued += 1
                if command.grounds is not None and not attempt.dispatches:
                    attempt.bound_s = command.grounds.bound_s
            case Revoke():
                self._revoke(command)
            case _:
                assert_never(command)

    def _dispatch(self, command: Dispatch, now: float) -> None:
        attempt = self._live[command.request_id]
        self._unqueue(attempt)
        worker = self._by_id[command.worker_id]
        attempt.dispatched_at = now
        attempt.dispatches += 1
        attempt.worker = worker
        count = attempt.dispatches
        attempt.name = name = attempt.request_id if count == 1 else f"{attempt.request_id}:{count}"
        self._sent[name] = attempt
        size = attempt.offer.size
        priority = 10 * self.tiers[attempt.offer.tenant].rank if self._by_rank else 0
        worker.send(EngineRequest(name, size.prompt_tokens, size.output_tokens, priority, size.hashes))
        grounds = command.grounds
        if grounds is not None and grounds.ttft_s is not None and grounds.bound_s is not None:
            attempt.prediction, attempt.predicted_at = (grounds.ttft_s, grounds.bound_s), now
            if count == 1 and now == attempt.arrived_at:
                attempt.bound_s = grounds.bound_s

    def _refuse(self, command: Refuse) -> None:
        attempt = self._live[command.request_id]
        attempt.retry_after_s = command.retry_after_s
        self._end(attempt, command.outcome)
        self._react(self.scenario.tenants[attempt.offer.tenant].client, attempt)

    def _revoke(self, command: Revoke) -> None:
        attempt = self._live[command.request_id]
        if attempt.worker is None:
            return
        # A core may say how a stream that has begun is to end.
        outcome: Outcome = getattr(command, "outcome", Outcome.STREAM_BROKEN)
        self._give_up_worker(attempt, FailureCause.REVOKED, self._take_back(attempt), outcome)

    def _take_back(self, attempt: Attempt) -> int:
        """Abort upstream; what the worker had done is wasted."""
        worker, attempt.worker = attempt.worker, None
        if worker is None:
            return 0
        self._sent.pop(attempt.name, None)
        output = worker.abort(attempt.name)
        attempt.wasted_tokens += output
        return output

    def _give_up_worker(
        self, attempt: Attempt, cause: FailureCause, output: int, outcome: Outcome = Outcome.STREAM_BROKEN
    ) -> None:
        if attempt.first_token_at is None:
            self.driver.submit(AttemptFailed(attempt.request_id, cause))
        else:
            attempt.output_tokens = output
            self._end(attempt, outcome)
            self.driver.submit(PermitEnded(attempt.request_id, PermitEnding.DROPPED, output))

    def _unqueue(self, attempt: Attempt) -> None:
        if attempt.queued:
            attempt.queued = False
            self._queued -= 1

    def _end(self, attempt: Attempt, outcome: Outcome) -> None:
        self._unqueue(attempt)
        attempt.outcome = outcome
        attempt.ended_at = self.driver.now
        attempt.worker = None
        del self._live[attempt.request_id]

    # ---------------------------------------------------------------- word from the workers

    def on_first_token(self, worker: SimWorker, name: str, cached_tokens: int) -> None:
        """See ``engine.Gateway``."""
        attempt = self._sent[name]
        attempt.first_token_at = self.driver.now
        attempt.cached_tokens = cached_tokens
        self.driver.submit(FirstTokenSeen(attempt.request_id))

    def on_finished(self, worker: SimWorker, name: str, finished: Finished) -> None:
        """See ``engine.Gateway``."""
        attempt = self._sent.pop(name)
        attempt.output_tokens = finished.output_tokens
        self._end(attempt, Outcome.COMPLETED)
        self.driver.submit(
            PermitEnded(
                attempt.request_id,
                PermitEnding.SERVED,
                finished.output_tokens,
                finished.prompt_tokens,
                finished.cached_tokens,
            )
        )

    def on_failed(self, worker: SimWorker, name: str, cause: FailureCause) -> None:
        """See ``engine.Gateway``."""
        attempt = self._sent.pop(name)
        output = worker.count_output_tokens(name)
        attempt.wasted_tokens += output
        attempt.worker = None
        self._give_up_worker(attempt, cause, output)

    # ---------------------------------------------------------------- faults

    def _introduce_workers(self) -> None:
        for index, worker in enumerate(self.workers):
            self.driver.submit(WorkerJoined(worker.worker_id))
            if index not in self._sick:
                self.driver.submit(WorkerHealthChanged(worker.worker_id, healthy=True))

    def _judge(self, index: int, healthy: bool, after_s: float) -> None:
        """The health monitor comes to a verdict later."""

        def speak() -> None:
            if (index in self._sick) is healthy:
                self._sick ^= {index}
                self.driver.submit(WorkerHealthChanged(self.workers[index].worker_id, healthy))

        self.driver.schedule(self.driver.now + after_s, speak)

    def _list_struck(self, fault: Fault) -> list[int]:
        return list(range(len(self.workers))) if fault.worker is None else [fault.worker]

    def _begin_fault(self, fault: Fault) -> None:
        if fault.kind is FaultKind.GATEWAY_RESTART:
            self._restart_gateway()
        elif fault.kind is FaultKind.ALL_CANCEL:
            for attempt in tuple(self._live.values()):
                if attempt.outcome is None:
                    self._leave(attempt)
        else:
            for index in self._list_struck(fault):
                self._strike(index, fault, begins=True)

    def _end_fault(self, fault: Fault) -> None:
        for index in self._list_struck(fault):
            self._strike(index, fault, begins=False)

    def _strike(self, index: int, fault: Fault, begins: bool) -> None:
        worker = self.workers[index]
        blocks = int(self.scenario.engine_profile.kv_blocks * fault.factor)
        match fault.kind:
            case FaultKind.DEATH:
                worker.die() if begins else worker.restart()
                self._judge(index, not begins, DEATH_SEEN_AFTER_S)
            case FaultKind.ZOMBIE:
                worker.hang(begins)
                self._judge(index, not begins, STALL_SEEN_AFTER_S if begins else DEATH_SEEN_AFTER_S)
            case FaultKind.SLOW:
                worker.change(lambda now: replace(now, step_factor=fault.factor if begins else 1.0))
            case FaultKind.ACCEPT_COLLAPSE:
                worker.change(lambda now: replace(now, accept_scale=fault.factor if begins else 1.0))
            case FaultKind.KV_CLIFF:
                worker.change(lambda now: replace(now, kv_blocks=blocks if begins else None))
            case FaultKind.DRAIN:
                self.driver.submit(WorkerDrainChanged(worker.worker_id, begins))
            case FaultKind.GATEWAY_RESTART | FaultKind.ALL_CANCEL:
                pass
            case _:
                assert_never(fault.kind)

    def _restart_gateway(self) -> None:
        for attempt in tuple(self._live.values()):
            self._take_back(attempt)
            self._end(attempt, Outcome.GATEWAY_FAULT)
        core = self._build_core()
        self.driver.replace(core)
        self._introduce_workers()

    def _gauge(self) -> None:
        now = self.driver.now
        self.gauges.append((now, self._queued, len(self._live) - self._queued))
        self.driver.schedule(now + 1.0, self._gauge)
