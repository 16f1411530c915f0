"""Folds settled requests, events and commands into plain numbers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol, assert_never

from service.domain.command import Command, Dispatch, Enqueue, Refuse, Revoke
from service.domain.errors import InvariantError
from service.domain.event import AttemptFailed, Event, FailureCause
from service.domain.kind import GENERATING_KINDS
from service.domain.outcome import Outcome
from service.domain.tier import Tier
from service.domain.units import TierName
from service.flow.config import Reconfigured
from service.telemetry.histogram import Histogram, merge_edges
from service.telemetry.kinds import Distributions, Family, Metric
from service.telemetry.labels import KINDS, NO_TIER, OTHER_KIND, STORED_KIND, Stage, can_occur
from service.telemetry.metrics import (
    ATTEMPT_FAILURES,
    CACHED_TOKENS,
    DISPATCHES,
    E2E,
    OUTPUT_TOKENS,
    OUTPUT_TOKENS_ESTIMATED,
    PROMPT_TOKENS,
    QUEUE_WAIT,
    REQUESTS,
    RETRIES,
    REVOCATIONS,
    STAGE,
    TPOT,
    TTFT,
)

_COMPLETED = Outcome.COMPLETED


class Settled(Protocol):
    """What is read of a request that has ended; see ``runtime.account.Settlement``."""

    outcome: Outcome | None
    kind: str
    tier: TierName | None
    stream: bool
    arrived_at: float
    admitted_at: float | None
    dispatched_at: float | None
    first_token_at: float | None
    last_token_at: float | None
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    output_estimated: bool


class _Lane:
    """Requests of one tier and kind. ``works``: it occupies a worker's engine; ``generates``: it yields tokens."""

    __slots__ = ("counts", "generates", "works")

    def __init__(self, kind: str, known: bool) -> None:
        self.counts = {outcome.label: 0 for outcome in Outcome if can_occur(outcome, kind, known)}
        self.works = kind in KINDS and kind != STORED_KIND
        self.generates = kind in GENERATING_KINDS


class _Tally:
    """All figures of one tier."""

    __slots__ = (
        "cached_tokens", "e2e", "estimated_tokens", "lanes", "name", "output_tokens", "prompt_tokens", "queue_wait",
        "tpot", "ttft",
    )  # fmt: skip

    def __init__(self, name: str, edges: Mapping[str, tuple[float, ...]]) -> None:
        self.name = name
        self.lanes = {kind: _Lane(kind, name != NO_TIER) for kind in KINDS}
        self.ttft = Histogram(edges[TTFT.name])
        self.queue_wait = Histogram(edges[QUEUE_WAIT.name])
        self.tpot = Histogram(edges[TPOT.name])
        self.e2e = Histogram(edges[E2E.name])
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0
        self.estimated_tokens = 0

    def other(self) -> _Lane:
        """The lane of a kind that nobody declared: one for all of them."""
        lane = self.lanes.get(OTHER_KIND)
        if lane is None:
            lane = self.lanes[OTHER_KIND] = _Lane(OTHER_KIND, self.name != NO_TIER)
            lane.counts.clear()
        return lane


class Recorder:
    """An accountant and an observer; every moment is an argument or a stamp, so it works in virtual time too.

    Bucket edges: each tier's targets (TTFT, TPOT) and time to live in the queue are edges, and ``extra_edges`` by
    metric name beside them; all tiers share the union, so that they can be added up. A tier that is not configured
    counts as ``none`` and makes no series.

    Cost in CPU, CPython 3.11, two busy shared cores, best of nine with ``timeit`` and ``process_time``: 2.0 us for a
    streamed request that fills all six histograms, of which its three ``observe`` calls take 0.3 us; 0.4 us for a
    refusal. The budget is 3 us.

    Trade-offs: one pass over six histograms per request is paid even when nobody scrapes; figures by tenant or model
    are not here (the ledger has them); the figures of one process start at zero when it does.
    """

    def __init__(self, tiers: Iterable[Tier], extra_edges: Mapping[str, Iterable[float]] | None = None) -> None:
        tiers = tuple(tiers)
        edges = _merge_all(tiers, extra_edges or {})
        self._tallies: dict[str | None, _Tally] = {tier.name: _Tally(tier.name, edges) for tier in tiers}
        if NO_TIER in self._tallies or len(self._tallies) != len(tiers):
            raise ValueError(f"tiers need different names, none of them {NO_TIER!r}")
        self._edges = edges
        self._nameless = self._tallies[None] = _Tally(NO_TIER, edges)
        self._edge = Histogram(edges[STAGE.name])
        self._prefill = Histogram(edges[STAGE.name])
        self._generation = Histogram(edges[STAGE.name])
        self._dispatches = 0
        self._retries = 0
        self._revocations = 0
        self._failures = {cause.value: 0 for cause in FailureCause}

    def reconfigure(self, tiers: Iterable[Tier]) -> None:
        """Tiers that are not known begin at zero. One that is gone keeps its series, since counters do not go away;
        bucket edges stay as they were built, so the targets of another tier become edges at the next start."""
        for tier in tiers:
            if tier.name not in self._tallies:
                self._tallies[tier.name] = _Tally(tier.name, self._edges)

    # ---------------------------------------------------------------- the fold

    def settle(self, settled: Settled) -> None:
        """Count a request that has ended.

        Raises:
            InvariantError: it has no outcome.
        """
        outcome = settled.outcome
        if outcome is None:
            raise InvariantError("a request was settled without an outcome")
        tally = self._tallies.get(settled.tier, self._nameless)
        lane = tally.lanes.get(settled.kind)
        if lane is None:
            lane = tally.other()
        try:
            lane.counts[outcome.label] += 1
        except KeyError:  # can_occur says no; it happened
            lane.counts[outcome.label] = 1
        admitted_at = settled.admitted_at
        if admitted_at is None or not lane.works:
            return
        self._edge.observe(admitted_at - settled.arrived_at)
        dispatched_at = settled.dispatched_at
        if dispatched_at is None:
            return
        tally.queue_wait.observe(dispatched_at - admitted_at)
        _count_tokens(tally, settled)
        if lane.generates:
            self._time(tally, settled, dispatched_at, outcome)

    def observe(self, now: float, event: Event | Reconfigured, commands: Sequence[Command]) -> None:
        """Count what the core was told and ordered; ``now`` is not needed by any figure."""
        if type(event) is AttemptFailed:
            self._failures[event.cause.value] += 1
        for command in commands:
            match command:
                case Dispatch():
                    self._dispatches += 1
                    if command.attempt > 1:
                        self._retries += 1
                case Revoke():
                    self._revocations += 1
                case Enqueue() | Refuse():
                    pass  # a state, and an outcome
                case _:
                    assert_never(command)

    def _time(self, tally: _Tally, settled: Settled, dispatched_at: float, outcome: Outcome) -> None:
        arrived_at = settled.arrived_at
        last_at = settled.last_token_at
        done = outcome is _COMPLETED and last_at is not None
        if last_at is not None and done:
            tally.e2e.observe(last_at - arrived_at)
        first_at = settled.first_token_at
        if first_at is None or not settled.stream:
            return
        tally.ttft.observe(first_at - arrived_at)
        self._prefill.observe(first_at - dispatched_at)
        if last_at is None:
            return
        generation_s = last_at - first_at
        self._generation.observe(generation_s)
        tokens = settled.output_tokens
        if done and tokens is not None and tokens > 1 and not settled.output_estimated:
            tally.tpot.observe(generation_s / (tokens - 1))

    # ---------------------------------------------------------------- reading

    def families(self) -> Iterator[Family]:
        """All counters with their present values."""
        tallies = tuple(self._tallies.values())
        yield Family(
            REQUESTS,
            [
                ((tally.name, kind, label), count)
                for tally in tallies
                for kind, lane in tally.lanes.items()
                for label, count in lane.counts.items()
            ],
        )
        known = [tally for tally in tallies if tally is not self._nameless]
        yield Family(PROMPT_TOKENS, [((tally.name,), tally.prompt_tokens) for tally in known])
        yield Family(CACHED_TOKENS, [((tally.name,), tally.cached_tokens) for tally in known])
        yield Family(OUTPUT_TOKENS, [((tally.name,), tally.output_tokens) for tally in known])
        yield Family(OUTPUT_TOKENS_ESTIMATED, [((tally.name,), tally.estimated_tokens) for tally in known])
        yield Family(DISPATCHES, [((), self._dispatches)])
        yield Family(RETRIES, [((), self._retries)])
        yield Family(ATTEMPT_FAILURES, [((cause,), count) for cause, count in self._failures.items()])
        yield Family(REVOCATIONS, [((), self._revocations)])

    def distributions(self) -> Iterator[Distributions]:
        """All histograms; they are the recorder's own and go on changing."""
        known = [tally for tally in self._tallies.values() if tally is not self._nameless]
        yield Distributions(TTFT, [((tally.name,), tally.ttft) for tally in known])
        yield Distributions(QUEUE_WAIT, [((tally.name,), tally.queue_wait) for tally in known])
        yield Distributions(TPOT, [((tally.name,), tally.tpot) for tally in known])
        yield Distributions(E2E, [((tally.name,), tally.e2e) for tally in known])
        stages = {Stage.EDGE: self._edge, Stage.PREFILL: self._prefill, Stage.GENERATION: self._generation}
        yield Distributions(STAGE, [((stage.value,), histogram) for stage, histogram in stages.items()])


def _count_tokens(tally: _Tally, settled: Settled) -> None:
    """Add what the usage says; a worker that reports a negative number is not believed."""
    tokens = settled.prompt_tokens
    if tokens is not None and tokens > 0:
        tally.prompt_tokens += tokens
    tokens = settled.cached_tokens
    if tokens is not None and tokens > 0:
        tally.cached_tokens += tokens
    tokens = settled.output_tokens
    if tokens is not None and tokens > 0:
        if settled.output_estimated:
            tally.estimated_tokens += tokens
        else:
            tally.output_tokens += tokens


_TIMED: tuple[Metric, ...] = (TTFT, QUEUE_WAIT, TPOT, E2E, STAGE)


def _merge_all(tiers: Sequence[Tier], extra: Mapping[str, Iterable[float]]) -> dict[str, tuple[float, ...]]:
    """Edges by metric name."""
    unknown = set(extra) - {metric.name for metric in _TIMED}
    if unknown:
        raise ValueError(f"no histogram of the recorder is called {sorted(unknown)}")
    promised: dict[str, list[float]] = {metric.name: list(extra.get(metric.name, ())) for metric in _TIMED}
    for tier in tiers:
        promised[TTFT.name] += [target_s for _, target_s in tier.ttft_targets_s]
        promised[TPOT.name] += [] if tier.tpot_target_s is None else [tier.tpot_target_s]
        promised[QUEUE_WAIT.name] += [] if tier.queue_ttl_s is None else [tier.queue_ttl_s]
    return {metric.name: merge_edges(metric.edges, promised[metric.name]) for metric in _TIMED}
