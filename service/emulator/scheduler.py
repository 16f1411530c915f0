"""Decides which requests are part of the next engine step, and who gives way when KV runs out."""

from __future__ import annotations

import heapq
from itertools import count

from service.emulator.blocks import BlockPool
from service.emulator.profiles import EngineProfile
from service.emulator.sequence import Sequence
from service.emulator.steps import EngineConfig, StepResult

Prefills = list[tuple[Sequence, int]]


class Scheduler:
    """The waiting and the running of one engine. ``live`` holds every request that has not ended."""

    def __init__(self, profile: EngineProfile, config: EngineConfig) -> None:
        self._priority = config.priority_scheduling
        self._prefix_caching = config.prefix_caching
        self._block_size = profile.block_size
        self._max_seqs = config.max_num_seqs or profile.max_num_seqs
        self._budget = config.max_num_batched_tokens or profile.max_num_batched_tokens
        self._lookahead = 1 + profile.speculation.max_drafts
        self._admissions = count()
        self._waiting: list[tuple[int, float, int, Sequence]] = []
        self._doomed: list[Sequence] = []
        self.pool = BlockPool(config.kv_blocks or profile.kv_blocks)
        self.live: dict[str, Sequence] = {}
        self.decoding: list[Sequence] = []
        self.prefilling: list[Sequence] = []
        self.hungry: list[Sequence] = []
        self.waiting_requests = 0
        self.waiting_tokens = 0
        self.kv_tokens = 0
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0

    @property
    def running(self) -> int:
        return len(self.decoding) + len(self.prefilling)

    # ------------------------------------------------------------------ coming and going

    def announce(self, sequence: Sequence) -> None:
        """Count a request as waiting; ``enqueue`` makes it one that can be started."""
        self.live[sequence.request_id] = sequence
        self._count_waiting(sequence)

    def enqueue(self, sequence: Sequence) -> None:
        """Put an announced request, unless it was given up since, into the waiting list."""
        if not sequence.dead:
            self._push_waiting(sequence)

    def doom(self, sequence: Sequence) -> None:
        """Mark a request as given up; ``bury`` lets go of it."""
        sequence.dead = True
        self._doomed.append(sequence)

    def bury(self, result: StepResult) -> None:
        """Let go of the doomed."""
        if not self._doomed:
            return
        doomed, self._doomed = self._doomed, []
        for sequence in doomed:
            del self.live[sequence.request_id]
            if sequence.running:
                self._release(sequence)
            else:
                self.waiting_requests -= 1
                self.waiting_tokens -= sequence.request.prompt_tokens
            result.aborted.append(sequence.request_id)
        self.decoding = [sequence for sequence in self.decoding if not sequence.dead]
        self.prefilling = [sequence for sequence in self.prefilling if not sequence.dead]
        if not self.waiting_requests:
            self._waiting.clear()

    def promote(self, sequence: Sequence) -> None:
        """A prompt is complete: its request decodes from here on."""
        self.prefilling.remove(sequence)
        self.decoding.append(sequence)
        sequence.begin_decoding(self._lookahead, self._block_size)

    def retire(self, done: list[Sequence]) -> None:
        """Let go of requests that have produced everything."""
        for sequence in done:
            sequence.dead = True
            full_blocks = sequence.held_tokens(self._lookahead, self._block_size) // self._block_size
            sequence.publish(self.pool, full_blocks)
            self._release(sequence)
            del self.live[sequence.request_id]
        if done:
            self.decoding = [sequence for sequence in self.decoding if not sequence.dead]

    # ------------------------------------------------------------------ planning

    def plan(self, result: StepResult, per_request: int, now: float) -> tuple[list[Sequence], Prefills]:
        """The next step: who decodes (``per_request`` tokens each), and whose prompt gets how many tokens."""
        preemptions = self.preemptions
        decodes = self.decoding[: max(1, self._budget // per_request)]
        budget = max(0, self._budget - len(decodes) * per_request)
        prefills: Prefills = []
        budget = self._continue_prefills(result, prefills, budget)
        if self.preemptions == preemptions:
            self._admit(result, prefills, budget, now)
            return decodes, prefills
        # A victim may have been placed already.
        return (
            [sequence for sequence in decodes if sequence.running],
            [(sequence, tokens) for sequence, tokens in prefills if sequence.running],
        )

    def feed_hungry(self, result: StepResult) -> None:
        """Give a block to each decoding request that may cross into the next one."""
        hungry, self.hungry = self.hungry, []
        for sequence in hungry:
            while sequence.running and sequence.slack < 0:
                if self.pool.take(1):
                    sequence.blocks += 1
                    sequence.slack += self._block_size
                else:
                    self._preempt(result, sequence)

    def _continue_prefills(self, result: StepResult, prefills: Prefills, budget: int) -> int:
        for sequence in tuple(self.prefilling):
            if budget <= 0:
                break
            tokens = min(sequence.target - sequence.computed, budget)
            wanted = -(-(sequence.computed + tokens) // self._block_size) - sequence.blocks
            while sequence.running and not self.pool.take(wanted):
                self._preempt(result, sequence)
            if sequence.running:
                sequence.blocks += wanted
                prefills.append((sequence, tokens))
                budget -= tokens
        return budget

    def _admit(self, result: StepResult, prefills: Prefills, budget: int, now: float) -> None:
        """Take from the waiting list while budget, places and blocks last."""
        size, pool = self._block_size, self.pool
        while self._waiting and budget > 0 and self.running < self._max_seqs:
            sequence = self._waiting[0][3]
            if sequence.dead:
                heapq.heappop(self._waiting)
                continue
            hashes = sequence.request.block_hashes if self._prefix_caching else ()
            hits = pool.count_hits(hashes, (sequence.target - 1) // size)
            cached = hashes[:hits]
            tokens = min(sequence.target - hits * size, budget)
            wanted = -(-(hits * size + tokens) // size) - hits
            if wanted > pool.available - pool.count_idle(cached):
                if self.running:
                    return
                self._give_up(result, sequence)  # it does not fit into an empty cache
                continue
            heapq.heappop(self._waiting)
            self.waiting_requests -= 1
            self.waiting_tokens -= sequence.request.prompt_tokens
            pool.acquire(cached)
            pool.take(wanted)
            if sequence.scheduled_at is None:
                sequence.scheduled_at = max(now, sequence.arrived_at)
                sequence.cached_tokens = hits * size
                self.prefix_queries += sequence.request.prompt_tokens
                self.prefix_hits += hits * size
            sequence.begin(next(self._admissions), cached, hits * size, hits + wanted)
            self.kv_tokens += hits * size
            self.prefilling.append(sequence)
            prefills.append((sequence, tokens))
            budget -= tokens

    # ------------------------------------------------------------------ taking back

    def _preempt(self, result: StepResult, asking: Sequence) -> None:
        """Free the blocks of the running request of lowest rank; one that is alone and still too large is given up."""
        running = [*self.decoding, *self.prefilling]
        if self._priority:
            victim = max(running, key=lambda one: (one.request.priority, one.arrived_at, one.serial))
        else:
            victim = max(running, key=lambda one: one.admission)
        self._release(victim)
        self.decoding = [sequence for sequence in self.decoding if sequence is not victim]
        self.prefilling = [sequence for sequence in self.prefilling if sequence is not victim]
        self.preemptions += 1
        if victim is asking and len(running) == 1:
            victim.dead = True
            del self.live[victim.request_id]
            result.aborted.append(victim.request_id)
            return
        victim.forget()
        self._count_waiting(victim)
        self._push_waiting(victim)
        result.preempted.append(victim.request_id)

    def _give_up(self, result: StepResult, sequence: Sequence) -> None:
        heapq.heappop(self._waiting)
        self.waiting_requests -= 1
        self.waiting_tokens -= sequence.request.prompt_tokens
        sequence.dead = True
        del self.live[sequence.request_id]
        result.aborted.append(sequence.request_id)

    def _release(self, sequence: Sequence) -> None:
        self.kv_tokens -= sequence.held_tokens(self._lookahead, self._block_size)
        self.pool.release(sequence.blocks - len(sequence.named), sequence.named)
        sequence.running = False

    def _push_waiting(self, sequence: Sequence) -> None:
        rank = sequence.request.priority if self._priority else 0
        heapq.heappush(self._waiting, (rank, sequence.arrived_at, sequence.serial, sequence))

    def _count_waiting(self, sequence: Sequence) -> None:
        self.waiting_requests += 1
        self.waiting_tokens += sequence.request.prompt_tokens
