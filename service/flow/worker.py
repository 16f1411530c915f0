"""What the core knows and has learned of one worker."""

from dataclasses import dataclass, field
from math import inf

from service.domain.load import WorkerLoad
from service.domain.units import RequestId, WorkerId
from service.flow.breaker import BreakerState
from service.flow.calibration import Medians
from service.flow.limit import WorkerLimit
from service.flow.pace import DecodePace, PrefillPace, ReadingPace
from service.flow.prefix import CacheTrust
from service.flow.slack import Slack
from service.flow.waiting import Waiting

STALE_AFTER_S = 3.0
"""A reading older than this counts for less: predictions are widened and nothing beyond contracts is sent."""

_LONG_PREFILL_S = 0.1
_PREFILL_WEIGHT = 0.1
"""Weight of one reading in the share of time that prompts take: about the last ten seconds count. Long prompts come
in lumps, so it has to be slower than the pace."""


READING_KEEP, READING_WEIGHT = 0.99, 20.0
"""A worker's own pace of reading: the last hundred prompts count, and the pool's figure as much as twenty thousand
tokens. Guesses; a machine that is half as fast is known after a few seconds under load."""


@dataclass(slots=True)
class WorkerState:
    """One worker. ``held`` are the requests on it, in order of dispatch; ``backlog_tokens`` the uncached prompt tokens
    sent to it whose first token has not come; ``decoding`` how many have theirs. ``common`` is
    the pace of all workers of the pool, shared between them. ``permits`` is how many requests it may hold: its limit,
    within the operator's cap. ``share`` is the part of its limit that this gateway may use where several serve the
    same workers, ``foreign`` how many requests the others have there; ``decoding``, ``backlog_tokens`` and ``promises``
    count theirs too (``flow.replicas``). ``cache`` is the number of its prefix cache (``flow.prefix``), another after
    each start.
    """

    worker_id: WorkerId
    healthy: bool = False
    known: bool = False
    """It has been healthy at least once; before that it starts."""
    draining: bool = False
    listed: bool = True
    held: dict[RequestId, None] = field(default_factory=dict)
    breaker: BreakerState = field(default_factory=BreakerState)
    load: WorkerLoad | None = None
    backlog_tokens: int = 0
    decoding: int = 0
    pace: DecodePace = field(default_factory=DecodePace)
    common: DecodePace = field(default_factory=DecodePace)
    prefill: PrefillPace = field(default_factory=PrefillPace)
    reading: ReadingPace = field(default_factory=lambda: ReadingPace(READING_KEEP, READING_WEIGHT))
    read_at: float = 0.0
    limit: WorkerLimit = field(default_factory=WorkerLimit)
    permits: int = 0
    promises: dict[float, int] = field(default_factory=dict)
    tightest_s: float = inf
    """The smallest time per token that somebody on this worker was promised and that can be kept; infinity where
    there is none."""
    strain: float = 0.0
    prefill_ratio: float = 0.0
    prefilled_tokens: int = 0
    slack: Slack = field(default_factory=Slack)
    _was_prefilling: bool = False
    next_lesson_at: float = 0.0
    share: int | None = None
    foreign: int = 0
    sent_tokens: int = 0
    widened: int = 0
    cache: int = 0
    trust: CacheTrust = field(default_factory=CacheTrust)
    medians: Medians = field(default_factory=Medians)
    _peak: int = 0
    _area: float = 0.0
    _area_at: float | None = None

    @property
    def in_flight(self) -> int:
        """Permits held on this worker."""
        return len(self.held)

    def promise(self, tpot_s: float | None, change: int) -> None:
        """A request with this promise came (+1) or went (-1)."""
        if tpot_s is not None:
            self.strain += change / tpot_s
            count = self.promises.get(tpot_s, 0) + change
            if not count:
                del self.promises[tpot_s]
                self._find_tightest()
                return
            self.promises[tpot_s] = count
            if count == change:  # the first of them
                self._find_tightest()

    def _find_tightest(self) -> None:
        lone_s = self.read_pace().lone_s
        self.tightest_s = min([tpot_s for tpot_s in self.promises if tpot_s >= lone_s], default=inf)

    def read_pace(self) -> DecodePace:
        """Its own pace, or that of all workers as long as its own could not be measured."""
        return self.pace if self.pace.known else self.common

    def foresee_tpot_s(self, batch: float) -> float | None:
        """Time per token with ``batch`` requests beside each other, prompts taking the share of time they do now."""
        tpot_s = self.read_pace().predict_s(batch)
        return None if tpot_s is None else tpot_s / (1.0 - min(self.prefill_ratio, 0.8))

    def count_decoding(self, change: int, now: float) -> None:
        """One request more or fewer gets tokens; the mean over time is kept for the next reading."""
        if self._area_at is not None:
            self._area += self.decoding * (now - self._area_at)
        self._area_at = now
        self.decoding += change
        if self.decoding > self._peak:
            self._peak = self.decoding

    def observe_load(self, load: WorkerLoad, loosest_s: float | None, now: float) -> None:
        """Take in a reading: what was generated since the last one, and by how many at once, gives the pace.

        Steps that read prompts are slow for everybody. The time they took (prompt tokens read x time per token) is
        taken off, so that the pace is that of decoding alone; a reading in which a long prompt was being read is not
        used for it. ``loosest_s`` is the loosest promise that any tier makes: a worker on which nobody was promised
        anything is kept fit for that. What share of the time goes to prompts is kept beside it.
        """
        before, self.load = self.load, load
        self.limit.begin(load, len(self.held) + self.foreign)
        self.count_decoding(0, now)
        area, self._area = self._area, 0.0
        peak, self._peak = self._peak, self.decoding
        prefilled_s = self.prefilled_tokens * self.reading.per_kilotoken_s * 1e-3
        self.prefilled_tokens = 0
        prefilling = self.prefilling_s > _LONG_PREFILL_S
        clean = not (prefilling or self._was_prefilling)
        self._was_prefilling = prefilling
        if before is None or load.observed_at <= before.observed_at:
            return
        length_s = load.observed_at - before.observed_at
        self.prefill_ratio += _PREFILL_WEIGHT * (prefilled_s / length_s - self.prefill_ratio)
        batch = area / length_s
        made = _grown(before.generation_tokens, load.generation_tokens)
        if clean and made is not None and made >= batch >= 0.5:
            tpot_s = batch * max(length_s - prefilled_s, 0.2 * length_s) / made
            self.pace.observe(batch, tpot_s)
            self.common.observe(batch, tpot_s)
        self._find_tightest()
        target_s = self.tightest_s if self.tightest_s < inf else loosest_s
        self.slack.learn(self.read_pace().predict_s(max(float(self.decoding), 1.0)), target_s)
        if target_s is not None:
            target_s *= 1.0 - min(self.prefill_ratio, 0.8)  # what prompts take, decoding cannot have
        if load.age_s(now) > STALE_AFTER_S:
            return  # it tells of another time: nothing is granted because of it
        self.limit.observe(
            load, max(batch, float(len(self.held) + self.foreign)), peak, self.prefilling_s, target_s, self.read_pace()
        )

    def has_restarted(self, load: WorkerLoad) -> bool:
        """Whether ``load``, which has not been taken in yet, tells of another start than the last reading."""
        before = None if self.load is None else self.load.generation_tokens
        return before is not None and load.generation_tokens is not None and load.generation_tokens < before

    @property
    def prefilling_s(self) -> float:
        """Seconds it will take to read the prompts that were sent to it."""
        return self.backlog_tokens * self.reading.per_kilotoken_s * 1e-3

    def is_stale(self, now: float) -> bool:
        """Whether its own word is too old to build on; a worker that never spoke is not stale, only unknown."""
        return self.find_stale_s(now) > 0.0

    def find_stale_s(self, now: float) -> float:
        """For how long its own word has been too old."""
        load = self.load
        return 0.0 if load is None else max(now - load.observed_at - STALE_AFTER_S, 0.0)


def widen_for(stale_s: float) -> float:
    """What a first token foreseen for a worker is multiplied with, when it is held against a promise, ``stale_s`` after
    its word became too old: a fifth more each three seconds, up to 2.5."""
    return float(min(1.2 ** (stale_s / STALE_AFTER_S), 2.5))


def find_unread_tokens(entry: Waiting, worker: WorkerState) -> int:
    """Prompt tokens that ``worker`` would have to read for ``entry``: what its prefix cache does not hold."""
    tokens = entry.estimate.prompt_tokens
    if entry.known is None:
        return tokens
    known_ratio = find_known_ratio(entry, worker)
    return max(int(tokens * (1.0 - known_ratio * worker.trust.ratio)), 1)


def find_known_ratio(entry: Waiting, worker: WorkerState) -> float:
    """The part of the prompt whose beginning ``worker`` has read before, 0..1."""
    known = entry.known
    return min(known.get(worker.cache, 0) / max(entry.request.prompt_bytes, 1), 1.0) if known else 0.0


def _grown(before: int | None, after: int | None) -> int | None:
    if before is None or after is None or after < before:
        return None
    return after - before
