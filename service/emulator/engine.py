"""Decides what one continuous-batching engine does in each step.

Modelled after vLLM's V1 engine: one token budget per step; running requests before waiting ones; prompts computed in
chunks; full prompt blocks reused by hash; when KV runs out, the running request with the lowest rank is preempted and
recomputed later; a waiting request never displaces a running one. The caller owns the clock: it calls ``step(now)`` at
``next_step_at()``.

*Trade-offs*: decoding requests are placed before half-computed prompts even where vLLM would keep admission order; the
length of an output is known to the engine from the start (nothing but its end depends on it); one decode of a request
costs the same whatever its context is, except through the total of held KV.
"""

from __future__ import annotations

import random
from itertools import count

from service.emulator.frontend import FrontQueue
from service.emulator.profiles import EngineProfile
from service.emulator.scheduler import Prefills, Scheduler
from service.emulator.sequence import Sequence
from service.emulator.speculation import TABLE_SIZE, Drafting
from service.emulator.stepcost import StepClock
from service.emulator.steps import (
    Conditions,
    EngineConfig,
    EngineRequest,
    EngineStats,
    RefusalReason,
    StepResult,
)


class Engine:
    """One engine. Not thread-safe; every method returns at once and none raises for what a caller can send."""

    def __init__(self, profile: EngineProfile, config: EngineConfig, chance: random.Random) -> None:
        self._config = config
        self._block_size = profile.block_size
        self._kv_blocks = config.kv_blocks or profile.kv_blocks
        self._long_context = profile.cost.long_context_tokens
        self._draw = chance.random
        self._clock = StepClock(profile.cost, chance)
        self._drafting = Drafting(profile.speculation)
        self._scheduler = Scheduler(profile, config)
        self._front = FrontQueue(profile.frontend)
        self._conditions = Conditions()
        self._serials = count()
        self._in_step: tuple[list[Sequence], Prefills] | None = None
        self._table: tuple[int, ...] = ()
        self._drafts_per_request = 0
        self._step_began_at = 0.0
        self._wake_at = 0.0
        self._steps = self._prompt_tokens = self._cached_tokens = self._generated = 0
        self._drafts = self._draft_tokens = 0
        self._accepts = [0] * (profile.speculation.max_drafts + 2)
        self._trace = config.trace_accepts

    # ------------------------------------------------------------------ input

    def choose_refusal(self, requests: int = 1) -> RefusalReason | None:
        """The valve that would refuse this many new requests, if any (vLLM asks before it submits)."""
        limit = self._config.max_num_queued_reqs
        if limit is not None and len(self._scheduler.live) + requests > limit:
            return RefusalReason.QUEUED_REQUESTS
        limit = self._config.max_num_queued_tokens
        if limit is not None and self._scheduler.waiting_tokens >= limit:
            return RefusalReason.QUEUED_TOKENS
        return None

    def submit(self, request: EngineRequest, now: float) -> None:
        """Queue a request. A second one with a living id is ignored."""
        if request.request_id in self._scheduler.live:
            return
        sequence = Sequence(request, now, next(self._serials))
        if self._trace:
            sequence.accepts = [0] * (len(self._accepts) - 1)
        self._scheduler.announce(sequence)
        if self._front.is_instant:
            self._scheduler.enqueue(sequence)
            if self._in_step is None:
                self._wake_at = now
            return
        self._front.take(sequence, now, self._in_step is not None)
        if self._in_step is None:
            self._wake_at = max(now, self._front.next_at() or now)

    def abort(self, request_id: str, now: float) -> None:
        """Give a request up; it leaves at the next step boundary. Unknown ids are ignored."""
        sequence = self._scheduler.live.get(request_id)
        if sequence is None or sequence.dead:
            return
        self._scheduler.doom(sequence)
        if self._in_step is None:
            self._wake_at = now

    def change(self, conditions: Conditions) -> None:
        """From the next step on, run under these conditions."""
        self._conditions = conditions
        self._drafting.rescale(conditions.accept_scale)
        self._scheduler.pool.resize(self._kv_blocks if conditions.kv_blocks is None else conditions.kv_blocks)

    # ------------------------------------------------------------------ steps

    def next_step_at(self) -> float | None:
        """When ``step`` wants to be called: at the end of the step, or at once if work waits; ``None`` if idle."""
        return self._wake_at if self._in_step is not None or self._scheduler.live else None

    def step(self, now: float) -> StepResult:
        """End the running step, hand out its tokens, and start the next one."""
        result = StepResult()
        self._scheduler.bury(result)
        if not self._front.is_instant:
            for sequence in self._front.give(now):
                self._scheduler.enqueue(sequence)
        in_step, self._in_step = self._in_step, None
        if in_step is not None:
            self._deliver(result, in_step, now)
        self._start(result, now)
        return result

    def count_output_tokens(self, request_id: str) -> int:
        """Tokens handed out so far for a living request; 0 for one that is not known."""
        sequence = self._scheduler.live.get(request_id)
        return 0 if sequence is None else sequence.goal - sequence.left

    def stats(self) -> EngineStats:
        scheduler, accepts = self._scheduler, self._accepts
        positions = tuple(sum(accepts[gain:]) for gain in range(2, len(accepts)))
        return EngineStats(
            running=scheduler.running,
            waiting=scheduler.waiting_requests,
            queued_tokens=scheduler.waiting_tokens,
            kv_blocks_used=scheduler.pool.used,
            kv_blocks_total=scheduler.pool.total,
            kv_tokens=scheduler.kv_tokens,
            steps=self._steps,
            preemptions=scheduler.preemptions,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            generation_tokens=self._generated,
            prefix_queries=scheduler.prefix_queries,
            prefix_hits=scheduler.prefix_hits,
            drafts=self._drafts,
            draft_tokens=self._draft_tokens,
            accepted_tokens=sum(positions),
            accepted_per_position=positions,
        )

    # ------------------------------------------------------------------ inside

    def _deliver(self, result: StepResult, in_step: tuple[list[Sequence], Prefills], now: float) -> None:
        decodes, prefills = in_step
        self._steps += 1
        result.duration_s = now - self._step_began_at
        done = self._deliver_decodes(result, decodes)
        for sequence, computed in prefills:
            if sequence.dead:
                continue
            result.prefill_tokens += computed
            sequence.computed += computed
            self._scheduler.kv_tokens += computed
            sequence.publish(self._scheduler.pool, sequence.computed // self._block_size)
            if sequence.computed >= sequence.target:
                self._deliver_first(result, sequence, now, done)
        self._scheduler.retire(done)
        result.finished += [sequence.describe(now) for sequence in done]

    def _deliver_decodes(self, result: StepResult, decodes: list[Sequence]) -> list[Sequence]:
        """Hot: once per decoding request and step."""
        done: list[Sequence] = []
        hungry, add = self._scheduler.hungry, result.tokens.append
        draw, table, accepts, trace = self._draw, self._table, self._accepts, self._trace
        total = 0
        batch = 0
        for sequence in decodes:
            if sequence.dead:
                continue
            batch += 1
            gain = 1
            if table:
                gain = table[int(draw() * TABLE_SIZE)]
                accepts[gain] += 1
                if trace:
                    sequence.accepts[gain - 1] += 1
                    sequence.draft_tokens += self._drafts_per_request
            left = sequence.left - gain
            if left <= 0:
                gain += left
                left = 0
                done.append(sequence)
            sequence.left = left
            sequence.slack -= gain
            total += gain
            add((sequence.request_id, gain))
            if sequence.slack < 0:
                hungry.append(sequence)
        result.decoding = batch
        self._scheduler.kv_tokens += total
        self._generated += total
        if table:
            self._drafts += batch
            self._draft_tokens += batch * self._drafts_per_request
        return done

    def _deliver_first(self, result: StepResult, sequence: Sequence, now: float, done: list[Sequence]) -> None:
        """The step that completes a prompt also brings one token."""
        self._scheduler.promote(sequence)
        sequence.left -= 1
        self._generated += 1
        result.tokens.append((sequence.request_id, 1))
        if sequence.first_token_at is None:
            sequence.first_token_at = now
            self._prompt_tokens += sequence.request.prompt_tokens
            self._cached_tokens += sequence.cached_tokens
            result.first_tokens.append((sequence.request_id, now - sequence.arrived_at, sequence.cached_tokens))
        if sequence.left <= 0:
            done.append(sequence)
        elif sequence.slack < 0:
            self._scheduler.hungry.append(sequence)

    def _start(self, result: StepResult, now: float) -> None:
        scheduler = self._scheduler
        scheduler.feed_hungry(result)
        drafts, self._table = self._drafting.lookup(len(scheduler.decoding))
        self._drafts_per_request = drafts
        decodes, prefills = scheduler.plan(result, 1 + drafts, now)
        self._wake_at = now
        if not decodes and not prefills:
            self._wake_at = max(now, self._front.next_at() or now)
            return
        tokens = 0
        products = 0.0
        for sequence, computed in prefills:
            tokens += computed
            reach = sequence.computed + computed
            if reach > self._long_context:
                products += computed * reach
        self._in_step = (decodes, prefills)
        self._step_began_at = now
        duration_s = self._clock.compute_duration(
            len(decodes) * (1 + drafts), scheduler.kv_tokens, tokens, products, self._conditions.step_factor
        )
        self._wake_at = now + duration_s + self._front.collect_stall()
