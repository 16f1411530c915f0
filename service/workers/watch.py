"""Watches one worker process: asks it what is due, folds each answer into the evidence, tells what changed.

``/metrics`` is asked every interval; ``/health`` with it while there is trouble, else more slowly; ``/v1/models`` until
it was read, then more slowly still; one token when only that can settle a doubt. Each call runs on its own, so a page
that hangs does not hold up the others or the clock that counts starvation.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from service.domain.event import Event, WorkerHealthChanged, WorkerLoadSeen
from service.domain.units import WorkerId
from service.workers.addresses import WorkerAddress
from service.workers.evidence import (
    Answer,
    Evidence,
    begin,
    observe_deviations,
    observe_ejection,
    observe_health,
    observe_leaving,
    observe_load,
    observe_models,
    observe_scrape_failure,
    observe_tick,
    observe_token,
)
from service.workers.guard import run_guarded
from service.workers.health import Health, HealthConfig, Reason, settle, stall_limit_s, wants_token
from service.workers.identity import Incarnation, is_other, merge
from service.workers.pacing import Chance, compute_backoff_s, spread, wait_until_set
from service.workers.probe import Probe, ProbeConfig
from service.workers.scrape import read_page

_LOG = logging.getLogger("sluice.workers")


FindDeviations = Callable[[bytes], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class MonitorConfig:
    """Paces of probing.

    ``interval_s``: of ``/metrics``. ``eager_s``: first pace while a worker is not usable; grows to ``interval_s``.
    ``health_interval_s`` and ``models_interval_s``: of the other pages while all is well. ``token_gap_s``: least time
    between two one-token requests. ``parole_s``: after so long an ejected worker whose ``/health`` is good is tried
    again even though it cannot be asked for a token (an embedding model answers 4xx). ``shortest_gap_s``: least time
    between two turns, however often the worker is suspected. ``jitter_ratio``: spread of the pace.
    ``find_deviations``: reads from a metrics page in what a worker runs other than its profile asks.
    """

    interval_s: float = 1.0
    eager_s: float = 0.1
    health_interval_s: float = 5.0
    models_interval_s: float = 30.0
    token_gap_s: float = 2.0
    parole_s: float = 30.0
    shortest_gap_s: float = 0.05
    jitter_ratio: float = 0.1
    find_deviations: FindDeviations | None = None
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    health: HealthConfig = field(default_factory=HealthConfig)


TrafficView = Callable[[WorkerId], tuple[int, float | None]]
"""Requests in flight on a worker, and when a byte of an answer last came from it."""


class Watch:
    """One worker process under watch. ``on_other`` is called when another process answers in its place."""

    def __init__(
        self,
        worker_id: WorkerId,
        address: WorkerAddress,
        incarnation: Incarnation,
        probe: Probe,
        config: MonitorConfig,
        now: Callable[[], float],
        chance: Chance,
        traffic: TrafficView,
        submit: Callable[[Event], None],
        on_other: Callable[["Watch", Incarnation], None],
    ) -> None:
        self.worker_id = worker_id
        self.address = address
        self.incarnation = incarnation
        self.evidence: Evidence = begin(now())
        self.health = Health(Reason.UNPROVEN, now())
        self.faults = 0
        self._probe = probe
        self._config = config
        self._now = now
        self._chance = chance
        self._traffic = traffic
        self._submit = submit
        self._on_other = on_other
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._asked_at: dict[str, float] = {}
        self._wake = asyncio.Event()
        self._suspected = False
        self._troubled_turns = 0
        self._closed = False

    def suspect(self) -> None:
        """Somebody had trouble with it: ask everything at once."""
        self._suspected = True
        self._wake.set()

    def set_leaving(self, leaving: bool) -> None:
        """The platform is about to end it, or is not after all."""
        self.address = self.address.as_leaving(leaving)
        self._learn(observe_leaving(self.evidence, leaving), self._now())

    def close(self) -> None:
        """From now on tell nothing, whatever calls still bring."""
        self._closed = True

    async def run(self) -> None:
        """Watch until cancelled; no call outlives this."""
        try:
            while True:
                await self._guarded("a turn", self._turn)
                await wait_until_set(self._wake, self._compute_delay_s())
        finally:
            calls = tuple(self._calls.values())
            for call in calls:
                call.cancel()
            if calls:
                await asyncio.wait(calls)
            await self._probe.aclose()

    # ------------------------------------------------------------------ asking

    async def _turn(self) -> None:
        now = self._now()
        in_flight, last_byte_at = self._traffic(self.worker_id)
        self.evidence = observe_tick(self.evidence, in_flight, last_byte_at, self._config.health.longest_tick_s, now)
        self._settle(now)
        if not self._is_due("metrics", self._config.shortest_gap_s, now):
            return  # woken again too soon
        trouble = self._suspected or not self.health.healthy or self.evidence.scrape_failures > 0
        self._suspected = False
        self._troubled_turns = 0 if self.health.healthy else self._troubled_turns + 1
        models_known = self.evidence.served_models is not None and self.health.reason is not Reason.WRONG_MODEL
        self._start("metrics", self._ask_metrics, now)
        if self.evidence.scrape is not Answer.REFUSED:  # else nobody is there to be asked anything else
            if self._is_due("health", 0.0 if trouble else self._config.health_interval_s, now):
                self._start("health", self._ask_health, now)
            if self._is_due("models", self._config.models_interval_s if models_known else 0.0, now):
                self._start("models", self._ask_models, now)
        wanted = wants_token(self.evidence, self.health, self._config.health, now)
        if wanted and self._is_due("token", self._config.token_gap_s, now):
            self._start("token", self._ask_token, now)

    def _compute_delay_s(self) -> float:
        config = self._config
        delay_s = spread(config.interval_s, config.jitter_ratio, self._chance)
        if not self.health.healthy:
            delay_s = min(delay_s, compute_backoff_s(config.eager_s, config.interval_s, self._troubled_turns - 1))
        if self._suspected:
            delay_s = config.shortest_gap_s
        left_s = stall_limit_s(self.evidence, config.health, self._now()) - self.evidence.starved_s
        if self.evidence.busy and left_s > 0:  # be there when the limit is reached
            delay_s = min(delay_s, max(left_s, config.shortest_gap_s))
        return delay_s

    def _is_due(self, call: str, gap_s: float, now: float) -> bool:
        asked_at = self._asked_at.get(call)
        return asked_at is None or now - asked_at >= gap_s

    def _start(self, name: str, ask: Callable[[], Awaitable[None]], now: float) -> None:
        """Begin a call unless the one before is still under way."""
        if name in self._calls:
            return
        self._asked_at[name] = now
        task = asyncio.ensure_future(self._guarded(name, ask))
        self._calls[name] = task
        task.add_done_callback(lambda _: self._calls.pop(name, None))

    async def _guarded(self, what: str, step: Callable[[], Awaitable[None]]) -> None:
        if not await run_guarded(f"worker {self.worker_id}: {what}", step):
            self.faults += 1

    # ------------------------------------------------------------------ answers

    async def _ask_metrics(self) -> None:
        reply = await self._probe.fetch_metrics()
        if self._closed:
            return
        now = self._now()
        page = read_page(reply.body, now) if reply.answer is Answer.OK else None
        if page is None or not page.recognised:
            answer = reply.answer if page is None else Answer.BROKEN
            self._learn(observe_scrape_failure(self.evidence, answer), now)
            return
        if is_other(self.incarnation, page.incarnation):
            self._on_other(self, page.incarnation)
            return
        self.incarnation = merge(self.incarnation, page.incarnation)
        if self.evidence.scrape_failures > 0:
            self.suspect()  # it is back: ask the rest without waiting
        evidence = observe_load(self.evidence, page.load)
        required = self._config.health.required_model
        if evidence.served_models is None and required is not None and page.incarnation.model == required:
            evidence = observe_models(evidence, frozenset({required}))
        if evidence.deviations != () and self._config.find_deviations is not None:  # until it is confirmed
            deviations = self._config.find_deviations(reply.body)
            for deviation in set(deviations) - set(evidence.deviations or ()):
                _LOG.warning("worker %s is off its profile: %s", self.worker_id, deviation)
            evidence = observe_deviations(evidence, deviations)
        self._submit(WorkerLoadSeen(self.worker_id, page.load))
        self._learn(evidence, now)

    async def _ask_health(self) -> None:
        reply = await self._probe.fetch_health()
        self._learn(observe_health(self.evidence, reply.answer), self._now())

    async def _ask_models(self) -> None:
        models = await self._probe.fetch_models()
        if models is not None:
            self._learn(observe_models(self.evidence, models), self._now())

    async def _ask_token(self) -> None:
        served = self.evidence.served_models
        model = self._config.health.required_model or self.incarnation.model or (min(served) if served else None)
        if model is None:
            return
        reply = await self._probe.fetch_token(model)
        now = self._now()
        cannot_tell = reply.status is not None and 400 <= reply.status < 500
        on_parole = cannot_tell and not self.health.healthy and now - self.health.since >= self._config.parole_s
        if reply.answer is Answer.OK or (on_parole and self.evidence.health is Answer.OK):
            self._learn(observe_token(self.evidence, now), now)

    def _learn(self, evidence: Evidence, now: float) -> None:
        self.evidence = evidence
        self._settle(now)

    def _settle(self, now: float) -> None:
        if self._closed:
            return
        before = self.health
        self.health = settle(before, self.evidence, self._config.health, now)
        if self.health.reason is not before.reason:
            level = logging.INFO if self.health.healthy else logging.WARNING
            _LOG.log(level, "worker %s: %s (was %s)", self.worker_id, self.health.reason.value, before.reason.value)
        if self.health.healthy == before.healthy:
            return
        if before.healthy:
            self.evidence = observe_ejection(self.evidence)
            self._troubled_turns = 0
            self._wake.set()
        self._submit(WorkerHealthChanged(self.worker_id, self.health.healthy))
