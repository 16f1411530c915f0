"""Holds the state of one request inside the engine."""

from __future__ import annotations

from service.emulator.blocks import BlockPool
from service.emulator.steps import EngineRequest, Finished


class Sequence:
    """A request as the engine sees it.

    While its prompt is computed, ``computed`` counts its tokens in the cache. While it decodes, ``slack`` does: it is
    what its blocks can still hold beyond the next step's lookahead, so that the hot loop touches one number less.
    """

    __slots__ = (
        "accepts",
        "admission",
        "arrived_at",
        "blocks",
        "cached_tokens",
        "computed",
        "dead",
        "decoding",
        "draft_tokens",
        "first_token_at",
        "goal",
        "left",
        "named",
        "preemptions",
        "published",
        "request",
        "request_id",
        "running",
        "scheduled_at",
        "serial",
        "slack",
        "target",
    )

    def __init__(self, request: EngineRequest, now: float, serial: int) -> None:
        self.request = request
        self.request_id = request.request_id
        self.arrived_at = now
        self.serial = serial
        self.goal = max(1, request.output_tokens)
        self.left = self.goal
        self.target = max(1, request.prompt_tokens)
        self.computed = 0
        self.slack = 0
        self.blocks = 0
        self.named: list[int] = []
        self.published = 0
        self.cached_tokens = 0
        self.preemptions = 0
        self.admission = 0
        self.accepts: list[int] = []
        self.draft_tokens = 0
        self.dead = False
        self.running = False
        self.decoding = False
        self.scheduled_at: float | None = None
        self.first_token_at: float | None = None

    def begin(self, admission: int, cached: tuple[int, ...], computed: int, blocks: int) -> None:
        """Start on the engine with these cached blocks at the front."""
        self.admission = admission
        self.named = list(cached)
        self.published = len(cached)
        self.computed = computed
        self.blocks = blocks
        self.running = True

    def begin_decoding(self, lookahead: int, block_size: int) -> None:
        self.decoding = True
        self.slack = self.blocks * block_size - self.computed - lookahead

    def held_tokens(self, lookahead: int, block_size: int) -> int:
        """Tokens of this request in the cache."""
        return self.blocks * block_size - lookahead - self.slack if self.decoding else self.computed

    def publish(self, pool: BlockPool, full_blocks: int) -> None:
        """Name the blocks that have become full, so that others can reuse them."""
        hashes = self.request.block_hashes
        for index in range(self.published, min(full_blocks, len(hashes))):
            if pool.publish(hashes[index]):
                self.named.append(hashes[index])
            self.published = index + 1

    def forget(self) -> None:
        """Lose everything computed: prompt and output so far must be computed again."""
        self.preemptions += 1
        self.target = max(1, self.request.prompt_tokens) + self.goal - self.left
        self.computed = 0
        self.slack = 0
        self.blocks = 0
        self.named = []
        self.published = 0
        self.decoding = False

    def describe(self, now: float) -> Finished:
        """The life of this request, ended now."""
        return Finished(
            request_id=self.request_id,
            prompt_tokens=self.request.prompt_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=self.goal,
            preemptions=self.preemptions,
            arrived_at=self.arrived_at,
            scheduled_at=now if self.scheduled_at is None else self.scheduled_at,
            first_token_at=now if self.first_token_at is None else self.first_token_at,
            last_token_at=now,
            draft_tokens=self.draft_tokens,
            accept_histogram=tuple(self.accepts),
        )
