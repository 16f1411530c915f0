"""One emulated worker in virtual time: the pure step model of ``service.emulator`` behind one network hop.

What the gateway learns goes through ``Gateway``: first tokens, ends, failures, each a hop after it happened. A request
that was taken back is forgotten at once on our side and leaves the engine at the next step after the hop.
"""

import random
from collections.abc import Callable
from functools import partial
from typing import Protocol

from loadtests.sim.driver import VirtualDriver
from service.domain.event import FailureCause
from service.domain.load import WorkerLoad
from service.domain.units import WorkerId
from service.emulator.engine import Engine
from service.emulator.profiles import EngineProfile
from service.emulator.steps import Conditions, EngineConfig, EngineRequest, Finished, StepResult

HOP_S = 0.001
"""One way between gateway and worker, HTTP parsing included: a guess for one data centre."""

_STUCK_S = 0.001
"""An engine that wants to step but has nothing it can do is asked again after this."""


class Gateway(Protocol):
    """Hears from workers. ``name`` is that under which the request was sent."""

    def on_first_token(self, worker: "SimWorker", name: str, cached_tokens: int) -> None:
        """The first token reached the gateway."""
        ...

    def on_finished(self, worker: "SimWorker", name: str, finished: Finished) -> None:
        """The answer is complete."""
        ...

    def on_failed(self, worker: "SimWorker", name: str, cause: FailureCause) -> None:
        """There will be no (further) answer."""
        ...


class SimWorker:
    """A worker process. ``held`` are the names of requests for which the gateway still has a connection open."""

    def __init__(
        self,
        worker_id: WorkerId,
        profile: EngineProfile,
        config: EngineConfig,
        driver: VirtualDriver,
        gateway: Gateway,
        seed: str,
    ) -> None:
        self.worker_id = worker_id
        self.alive = True
        self.held: dict[str, None] = {}
        self._profile, self._config, self._driver, self._gateway, self._seed = profile, config, driver, gateway, seed
        self._starts = 0
        self._conditions = Conditions()
        self._ticking = False
        self._hung = False
        self._start()

    def _start(self) -> None:
        chance = random.Random(f"{self._seed}:{self.worker_id}:{self._starts}")  # noqa: S311 - repeatable on purpose
        self._starts += 1
        self._engine = Engine(self._profile, self._config, chance)
        self._engine.change(self._conditions)
        self._prefilled = self._finished = self._rejected = 0

    @property
    def rejected(self) -> int:
        """How many requests its valves have refused since it started."""
        return self._rejected

    # ---------------------------------------------------------------- requests

    def send(self, request: EngineRequest) -> None:
        """Send a request; it arrives a hop later."""
        self.held[request.request_id] = None
        self._driver.schedule(self._driver.now + HOP_S, partial(self._arrive, request))

    def abort(self, name: str) -> int:
        """Close the connection of a request and return how many tokens it had yielded."""
        self.held.pop(name, None)
        self._driver.schedule(self._driver.now + HOP_S, partial(self._abort, name, self._starts))
        return self._engine.count_output_tokens(name)

    def count_output_tokens(self, name: str) -> int:
        """How many tokens a request has yielded."""
        return self._engine.count_output_tokens(name)

    def _arrive(self, request: EngineRequest) -> None:
        name = request.request_id
        if name not in self.held:
            return
        if not self.alive:
            self._fail(name, FailureCause.UNREACHABLE)
        elif self._engine.choose_refusal() is not None:
            self._rejected += 1
            self._driver.schedule(self._driver.now + HOP_S, partial(self._fail, name, FailureCause.BUSY))
        else:
            self._engine.submit(request, self._driver.now)
            self._arm()

    def _abort(self, name: str, start: int) -> None:
        if start == self._starts and self.alive:
            self._engine.abort(name, self._driver.now)
            self._arm()

    def _fail(self, name: str, cause: FailureCause) -> None:
        if name in self.held:
            del self.held[name]
            self._gateway.on_failed(self, name, cause)

    # ---------------------------------------------------------------- steps

    def _arm(self) -> None:
        if self._ticking or self._hung or not self.alive:
            return
        at = self._engine.next_step_at()
        if at is not None:
            self._ticking = True
            self._driver.schedule(max(at, self._driver.now), partial(self._tick, self._starts))

    def _tick(self, start: int) -> None:
        if start != self._starts or not self.alive:
            return
        self._ticking = False
        if self._hung:
            return
        now = self._driver.now
        engine = self._engine
        result = engine.step(now)
        self._prefilled += result.prefill_tokens
        if result.first_tokens or result.finished or result.aborted:
            self._finished += len(result.finished)
            self._driver.schedule(now + HOP_S, partial(self._report, result))
        at = engine.next_step_at()
        if at is not None:
            self._ticking = True
            at = at if at > now else now + _STUCK_S
            self._driver.schedule(at, partial(self._tick, start))

    def _report(self, result: StepResult) -> None:
        held, gateway = self.held, self._gateway
        for name, _, cached_tokens in result.first_tokens:
            if name in held:
                gateway.on_first_token(self, name, cached_tokens)
        for finished in result.finished:
            if finished.request_id in held:
                del held[finished.request_id]
                gateway.on_finished(self, finished.request_id, finished)
        for name in result.aborted:
            self._fail(name, FailureCause.BROKEN)

    # ---------------------------------------------------------------- faults

    def change(self, update: Callable[[Conditions], Conditions]) -> None:
        """From the next step on, run under other conditions."""
        self._conditions = update(self._conditions)
        self._engine.change(self._conditions)

    def hang(self, hung: bool) -> None:
        """Accept requests and connections, and yield nothing (or go on)."""
        self._hung = hung
        self._arm()

    def die(self) -> None:
        """Be gone: every connection breaks now, new ones are refused."""
        self.alive = False
        self._ticking = False
        for name in tuple(self.held):
            self._fail(name, FailureCause.BROKEN)

    def restart(self) -> None:
        """Come back with an empty cache and counters at zero."""
        self.alive = True
        self._hung = self._ticking = False
        self._start()

    # ---------------------------------------------------------------- what a scrape reads

    def read_load(self, now: float) -> WorkerLoad | None:
        """The metrics page of this moment; ``None`` when nobody answers. All that HTTP shows, and nothing else."""
        if not self.alive:
            return None
        stats = self._engine.stats()
        speculates = self._profile.speculation.enabled
        return WorkerLoad(
            observed_at=now,
            running_requests=stats.running,
            waiting_requests=stats.waiting,
            kv_cache_ratio=min(1.0, stats.kv_usage_ratio),
            progress_tokens=float(self._prefilled + stats.generation_tokens),
            prompt_tokens=stats.prompt_tokens,
            generation_tokens=stats.generation_tokens,
            finished_requests=self._finished,
            rejected_requests=self._rejected,
            preemptions=stats.preemptions,
            prefix_queried_tokens=stats.prefix_queries,
            prefix_hit_tokens=stats.prefix_hits,
            drafts=stats.drafts if speculates else None,
            draft_tokens=stats.draft_tokens if speculates else None,
            accepted_tokens=stats.accepted_tokens if speculates else None,
        )
