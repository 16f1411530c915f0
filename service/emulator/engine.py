"""Decides what one continuous-batching engine does in each step.

Modelled after vLLM's V1 scheduler: one token budget per step; running requests before waiting ones; prompts computed in chunks;
full prompt blocks reused by hash; when KV runs out, the running request with the lowest rank is preempted and recomputed later;
a waiting request never displaces a running one. The caller owns the clock: it calls ``step(now)`` at ``next_step_at()``.

*Trade-offs*: decoding requests are placed before half-computed prompts even where vLLM would keep admission order; the length of
an output is known to the engine from the start (nothing but its end depends on it); one decode of a request costs the same
whatever its context is, except through the total of held KV.
"""

from __future__ import annotations

import heapq
import random
from itertools import count

from service.emulator.blocks import BlockPool
from service.emulator.profiles import EngineProfile
from service.emulator.sequence import Sequence
from service.emulator.speculation import TABLE_SIZE, Drafting
from service.emulator.stepcost import StepClock
from service.emulator.steps import (
    Conditions,
    EngineConfig,
    EngineRequest,
    EngineStats,
    Finished,
    RefusalReason,
    StepResult,
)


class Engine:
    """One engine. Not thread-safe; every method returns at once."""

    def __init__(self, profile: EngineProfile, config: EngineConfig, chance: random.Random) -> None:
        self._config = config
        self._block_size = profile.block_size
        self._max_seqs = config.max_num_seqs or profile.max_num_seqs
        self._budget = config.max_num_batched_tokens or profile.max_num_batched_tokens
        self._kv_blocks = config.kv_blocks or profile.kv_blocks
        self._long_context = profile.cost.long_context_tokens
        self._lookahead = 1 + profile.speculation.max_drafts
        self._draw = chance.random
        self._clock = StepClock(profile.cost, chance)
        self._drafting = Drafting(profile.speculation)
        self._pool = BlockPool(self._kv_blocks)
        self._conditions = Conditions()
        self._serials = count()
        self._admissions = count()
        self._live: dict[str, Sequence] = {}
        self._waiting: list[tuple[int, float, int, Sequence]] = []
        self._waiting_requests = 0
        self._waiting_tokens = 0
        self._decoding: list[Sequence] = []
        self._prefilling: list[Sequence] = []
        self._hungry: list[Sequence] = []
        self._doomed: list[Sequence] = []
        self._in_step: tuple[list[Sequence], list[tuple[Sequence, int]]] | None = None
        self._table: tuple[int, ...] = ()
        self._drafts_per_request = 0
        self._step_began_at = 0.0
        self._wake_at = 0.0
        self._kv_tokens = 0
        self._steps = self._preemptions = self._prompt_tokens = self._cached_tokens = self._generated = 0
        self._prefix_queries = self._prefix_hits = self._drafts = self._draft_tokens = 0
        self._accepts = [0] * (profile.speculation.max_drafts + 2)

    # ------------------------------------------------------------------ input

    def choose_refusal(self, requests: int = 1) -> RefusalReason | None:
        """The valve that would refuse this many new requests, if any (vLLM asks before it submits)."""
        config = self._config
        if config.max_num_queued_reqs is not None and len(self._live) + requests > config.max_num_queued_reqs:
            return RefusalReason.QUEUED_REQUESTS
        if config.max_num_queued_tokens is not None and self._waiting_tokens >= config.max_num_queued_tokens:
            return RefusalReason.QUEUED_TOKENS
        return None

    def submit(self, request: EngineRequest, now: float) -> None:
        """Queue a request. A second one with a living id is ignored."""
        if request.request_id in self._live:
            return
        sequence = Sequence(request, now, next(self._serials))
        self._live[request.request_id] = sequence
        self._push_waiting(sequence)
        if self._in_step is None:
            self._wake_at = now

    def abort(self, request_id: str, now: float) -> None:
        """Give a request up; it leaves at the next step boundary. Unknown ids are ignored."""
        sequence = self._live.get(request_id)
        if sequence is None or sequence.dead:
            return
        sequence.dead = True
        self._doomed.append(sequence)
        if self._in_step is None:
            self._wake_at = now

    def change(self, conditions: Conditions) -> None:
        """From the next step on, run under these conditions."""
        self._conditions = conditions
        self._drafting.rescale(conditions.accept_scale)
        self._pool.resize(self._kv_blocks if conditions.kv_blocks is None else conditions.kv_blocks)

    # ------------------------------------------------------------------ steps

    def next_step_at(self) -> float | None:
        """When ``step`` wants to be called: the end of the running step, or at once if work waits; ``None`` when idle."""
        return self._wake_at if self._in_step is not None or self._live else None

    def step(self, now: float) -> StepResult:
        """End the running step, hand out its tokens, and start the next one."""
        result = StepResult()
        if self._doomed:
            self._bury(result)
        if self._in_step is not None:
            self._deliver(result, now)
        self._start(result, now)
        return result

    def stats(self) -> EngineStats:
        accepts = self._accepts
        positions = tuple(sum(accepts[gain:]) for gain in range(2, len(accepts)))
        return EngineStats(
            running=len(self._decoding) + len(self._prefilling),
            waiting=self._waiting_requests,
            queued_tokens=self._waiting_tokens,
            kv_blocks_used=self._pool.used,
            kv_blocks_total=self._pool.total,
            kv_tokens=self._kv_tokens,
            steps=self._steps,
            preemptions=self._preemptions,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            generation_tokens=self._generated,
            prefix_queries=self._prefix_queries,
            prefix_hits=self._prefix_hits,
            drafts=self._drafts,
            draft_tokens=self._draft_tokens,
            accepted_tokens=sum(positions),
            accepted_per_position=positions,
        )

    # ------------------------------------------------------------------ the end of a step

    def _deliver(self, result: StepResult, now: float) -> None:
        assert self._in_step is not None
        decodes, prefills = self._in_step
        self._in_step = None
        self._steps += 1
        result.duration_s = now - self._step_began_at
        done = self._deliver_decodes(result, decodes)
        for sequence, computed in prefills:
            if sequence.dead:
                continue
            result.prefill_tokens += computed
            sequence.computed += computed
            self._kv_tokens += computed
            sequence.publish(self._pool, sequence.computed // self._block_size)
            if sequence.computed >= sequence.target:
                self._deliver_first(result, sequence, now, done)
        for sequence in done:
            self._finish(result, sequence, now)
        if done:
            self._decoding = [sequence for sequence in self._decoding if not sequence.dead]

    def _deliver_decodes(self, result: StepResult, decodes: list[Sequence]) -> list[Sequence]:
        """Hot: once per decoding request and step."""
        done: list[Sequence] = []
        hungry, add, draw, table, accepts = self._hungry, result.tokens.append, self._draw, self._table, self._accepts
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
        self._kv_tokens += total
        self._generated += total
        if table:
            self._drafts += batch
            self._draft_tokens += batch * self._drafts_per_request
        return done

    def _deliver_first(self, result: StepResult, sequence: Sequence, now: float, done: list[Sequence]) -> None:
        """The step that completes a prompt also brings one token."""
        self._prefilling.remove(sequence)
        self._decoding.append(sequence)
        sequence.begin_decoding(self._lookahead, self._block_size)
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
            self._hungry.append(sequence)

    def _finish(self, result: StepResult, sequence: Sequence, now: float) -> None:
        sequence.dead = True
        computed = sequence.held_tokens(self._lookahead, self._block_size)
        sequence.publish(self._pool, computed // self._block_size)
        self._release(sequence)
        del self._live[sequence.request_id]
        result.finished.append(
            Finished(
                request_id=sequence.request_id,
                prompt_tokens=sequence.request.prompt_tokens,
                cached_tokens=sequence.cached_tokens,
                output_tokens=sequence.goal,
                preemptions=sequence.preemptions,
                arrived_at=sequence.arrived_at,
                scheduled_at=now if sequence.scheduled_at is None else sequence.scheduled_at,
                first_token_at=now if sequence.first_token_at is None else sequence.first_token_at,
                last_token_at=now,
            )
        )

    def _bury(self, result: StepResult) -> None:
        """Let go of the aborted."""
        doomed, self._doomed = self._doomed, []
        for sequence in doomed:
            if self._live.pop(sequence.request_id, None) is None:
                continue
            if sequence.running:
                self._release(sequence)
            else:
                self._waiting_requests -= 1
                self._waiting_tokens -= sequence.request.prompt_tokens
            result.aborted.append(sequence.request_id)
        self._decoding = [sequence for sequence in self._decoding if not sequence.dead]
        self._prefilling = [sequence for sequence in self._prefilling if not sequence.dead]
        if not self._waiting_requests:
            self._waiting.clear()

    # ------------------------------------------------------------------ the start of a step

    def _start(self, result: StepResult, now: float) -> None:
        preemptions = self._preemptions
        self._feed_hungry(result)
        drafts, self._table = self._drafting.lookup(len(self._decoding))
        self._drafts_per_request = drafts
        per_request = 1 + drafts
        decodes = self._decoding[: max(1, self._budget // per_request)]
        budget = max(0, self._budget - len(decodes) * per_request)
        prefills: list[tuple[Sequence, int]] = []
        budget = self._continue_prefills(result, prefills, budget)
        if self._preemptions == preemptions:
            self._admit(result, prefills, budget, now)
        else:  # a victim may have been placed already
            decodes = [sequence for sequence in decodes if sequence.running]
            prefills = [(sequence, tokens) for sequence, tokens in prefills if sequence.running]
        if not decodes and not prefills:
            self._wake_at = now
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
        self._wake_at = now + self._clock.compute_duration(
            len(decodes) * per_request, self._kv_tokens, tokens, products, self._conditions.step_factor
        )

    def _feed_hungry(self, result: StepResult) -> None:
        """Give a block to each decoding request that may cross into the next one."""
        hungry, self._hungry = self._hungry, []
        for sequence in hungry:
            while sequence.running and sequence.slack < 0:
                if self._pool.take(1):
                    sequence.blocks += 1
                    sequence.slack += self._block_size
                else:
                    self._preempt(result, sequence)

    def _continue_prefills(self, result: StepResult, prefills: list[tuple[Sequence, int]], budget: int) -> int:
        for sequence in tuple(self._prefilling):
            if budget <= 0:
                break
            tokens = min(sequence.target - sequence.computed, budget)
            wanted = -(-(sequence.computed + tokens) // self._block_size) - sequence.blocks
            while sequence.running and not self._pool.take(wanted):
                self._preempt(result, sequence)
            if sequence.running:
                sequence.blocks += wanted
                prefills.append((sequence, tokens))
                budget -= tokens
        return budget

    def _admit(self, result: StepResult, prefills: list[tuple[Sequence, int]], budget: int, now: float) -> None:
        """Take from the waiting list while budget, places and blocks last."""
        size, pool = self._block_size, self._pool
        while self._waiting and budget > 0 and len(self._decoding) + len(self._prefilling) < self._max_seqs:
            sequence = self._waiting[0][3]
            if sequence.dead:
                heapq.heappop(self._waiting)
                continue
            hashes = sequence.request.block_hashes if self._config.prefix_caching else ()
            hits = pool.count_hits(hashes, (sequence.target - 1) // size)
            cached = hashes[:hits]
            tokens = min(sequence.target - hits * size, budget)
            wanted = -(-(hits * size + tokens) // size) - hits
            if wanted > pool.available - pool.count_idle(cached):
                if self._decoding or self._prefilling:
                    return
                self._give_up(result, sequence)  # it does not fit into an empty cache
                continue
            heapq.heappop(self._waiting)
            self._waiting_requests -= 1
            self._waiting_tokens -= sequence.request.prompt_tokens
            pool.acquire(cached)
            pool.take(wanted)
            if sequence.scheduled_at is None:
                sequence.scheduled_at = max(now, sequence.arrived_at)
                sequence.cached_tokens = hits * size
                self._prefix_queries += sequence.request.prompt_tokens
                self._prefix_hits += hits * size
            sequence.begin(next(self._admissions), cached, hits * size, hits + wanted)
            self._kv_tokens += hits * size
            self._prefilling.append(sequence)
            prefills.append((sequence, tokens))
            budget -= tokens

    # ------------------------------------------------------------------ taking back

    def _preempt(self, result: StepResult, asking: Sequence) -> None:
        """Free the blocks of the running request of lowest rank; one that is alone and still too large is given up."""
        running = [*self._decoding, *self._prefilling]
        if self._config.priority_scheduling:
            victim = max(running, key=lambda one: (one.request.priority, one.arrived_at, one.serial))
        else:
            victim = max(running, key=lambda one: one.admission)
        self._release(victim)
        self._decoding = [sequence for sequence in self._decoding if sequence is not victim]
        self._prefilling = [sequence for sequence in self._prefilling if sequence is not victim]
        self._preemptions += 1
        if victim is asking and len(running) == 1:
            victim.dead = True
            del self._live[victim.request_id]
            result.aborted.append(victim.request_id)
            return
        victim.forget()
        self._push_waiting(victim)
        result.preempted.append(victim.request_id)

    def _give_up(self, result: StepResult, sequence: Sequence) -> None:
        heapq.heappop(self._waiting)
        self._waiting_requests -= 1
        self._waiting_tokens -= sequence.request.prompt_tokens
        sequence.dead = True
        del self._live[sequence.request_id]
        result.aborted.append(sequence.request_id)

    def _release(self, sequence: Sequence) -> None:
        self._kv_tokens -= sequence.held_tokens(self._lookahead, self._block_size)
        self._pool.release(sequence.blocks - len(sequence.named), sequence.named)
        sequence.running = False

    def _push_waiting(self, sequence: Sequence) -> None:
        rank = sequence.request.priority if self._config.priority_scheduling else 0
        heapq.heappush(self._waiting, (rank, sequence.arrived_at, sequence.serial, sequence))
        self._waiting_requests += 1
        self._waiting_tokens += sequence.request.prompt_tokens
