"""What the core knows and has learned of one worker."""

from dataclasses import dataclass, field

from service.domain.load import WorkerLoad
from service.domain.units import RequestId, WorkerId
from service.flow.breaker import BreakerState
from service.flow.limit import WorkerLimit
from service.flow.pace import DecodePace, PrefillPace

STALE_AFTER_S = 3.0
"""A reading older than this counts for less: predictions are widened and nothing beyond contracts is sent."""


@dataclass(slots=True)
class WorkerState:
    """One worker. ``held`` are the requests on it, in order of dispatch; ``backlog_tokens`` the uncached prompt tokens
    sent to it whose first token has not come; ``decoding`` how many have theirs."""

    worker_id: WorkerId
    healthy: bool = False
    draining: bool = False
    listed: bool = True
    held: dict[RequestId, None] = field(default_factory=dict)
    breaker: BreakerState = field(default_factory=BreakerState)
    load: WorkerLoad | None = None
    backlog_tokens: int = 0
    decoding: int = 0
    pace: DecodePace = field(default_factory=DecodePace)
    prefill: PrefillPace = field(default_factory=PrefillPace)
    limit: WorkerLimit = field(default_factory=WorkerLimit)
    _area: float = 0.0
    _area_at: float | None = None

    @property
    def in_flight(self) -> int:
        """Permits held on this worker."""
        return len(self.held)

    def count_decoding(self, change: int, now: float) -> None:
        """One request more or fewer gets tokens; the mean over time is kept for the next reading."""
        if self._area_at is not None:
            self._area += self.decoding * (now - self._area_at)
        self._area_at = now
        self.decoding += change

    def observe_load(self, load: WorkerLoad, target_s: float | None, now: float) -> None:
        """Take in a reading: what was generated since the last one, and by how many at once, gives the pace."""
        before, self.load = self.load, load
        self.count_decoding(0, now)
        area, self._area = self._area, 0.0
        if before is None or load.observed_at <= before.observed_at:
            return
        length_s = load.observed_at - before.observed_at
        batch = area / length_s
        made = _grown(before.generation_tokens, load.generation_tokens)
        if made is not None and made >= batch and batch >= 0.5:
            self.pace.observe(batch, batch * length_s / made)
        self.limit.observe(load, batch, self.prefilling_s, target_s, self.pace)

    @property
    def prefilling_s(self) -> float:
        """Seconds it will take to read the prompts that were sent to it."""
        return self.backlog_tokens * self.prefill.per_kilotoken_s * 1e-3

    def is_stale(self, now: float) -> bool:
        """Whether its own word is too old to build on; a worker that never spoke is not stale, only unknown."""
        return self.load is not None and self.load.age_s(now) > STALE_AFTER_S


def _grown(before: int | None, after: int | None) -> int | None:
    if before is None or after is None or after < before:
        return None
    return after - before
