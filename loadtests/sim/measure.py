"""Turns the attempts of a run into figures: verdicts per request, then counts, then ratios of summed counts.

Percentiles come from raw samples, never from percentiles. What counts is what arrived while it was measured.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import assert_never

from loadtests.sim.bounds import Work, compute_ideal_attainment, compute_token_cost_s, count_most_good
from loadtests.sim.population import Retry, find_ttft_target_s
from loadtests.sim.scenario import Scenario
from loadtests.sim.world import Attempt, World
from service.domain.outcome import Outcome, Phase
from service.domain.tier import Tier

BIN_S = 1.0
RECOVERED_RATIO = 0.99
RECOVERED_FOR_S = 5
OSCILLATION_BAND = 0.05
WINDOW_S = 600.0
EXCESS = 1000
"""Added to a tier's rank for what exceeds its contracts."""


GONE = (Outcome.CLIENT_GONE_QUEUED, Outcome.CLIENT_GONE, Outcome.CLIENT_STALLED)
"""The client gave up. Other endings for which the ledger excuses us (excess that was shed) count here as what they
are to the client: no answer."""


class Fate(Enum):
    """How an attempt stands at the end: the closed set of the conservation law."""

    COMPLETED = "completed"
    REFUSED = "refused"
    EXPIRED = "expired"
    ABANDONED = "abandoned"
    FAILED = "failed"
    LIVE = "live"


class Verdict(Enum):
    """Whether the SLA was kept. ``EXCLUDED``: the client left in time, or nothing can be said yet."""

    GOOD = "good"
    BAD = "bad"
    EXCLUDED = "excluded"


def find_fate(attempt: Attempt) -> Fate:
    """Where an attempt ended."""
    outcome = attempt.outcome
    if outcome is None:
        return Fate.LIVE
    if outcome is Outcome.COMPLETED:
        return Fate.COMPLETED
    if outcome is Outcome.EXPIRED:
        return Fate.EXPIRED
    if outcome in GONE:
        return Fate.ABANDONED
    if outcome.phase is Phase.ADMIT or outcome is Outcome.WORKER_BUSY:
        return Fate.REFUSED
    return Fate.FAILED


def compute_ttft_s(attempt: Attempt) -> float | None:
    """From arrival at the gateway to the first token."""
    return None if attempt.first_token_at is None else attempt.first_token_at - attempt.arrived_at


def compute_tpot_s(attempt: Attempt, end_at: float = math.nan) -> float | None:
    """Mean time per output token after the first, up to ``end_at`` if it still runs; ``None`` before two tokens."""
    if attempt.first_token_at is None or attempt.output_tokens < 2:
        return None
    return ((attempt.ended_at or end_at) - attempt.first_token_at) / (attempt.output_tokens - 1)


def judge(attempt: Attempt, tier: Tier, end_at: float) -> Verdict:
    """The verdict by the promises of ``tier`` at the end of the run."""
    target_s = find_ttft_target_s(tier, attempt.offer.size.prompt_tokens)
    ttft_s = compute_ttft_s(attempt)
    fate = find_fate(attempt)
    tpot_s = compute_tpot_s(attempt, end_at)
    slow = tier.tpot_target_s is not None and tpot_s is not None and tpot_s > tier.tpot_target_s
    match fate:
        case Fate.COMPLETED:
            return Verdict.BAD if slow or ttft_s is None or ttft_s > target_s else Verdict.GOOD
        case Fate.LIVE | Fate.ABANDONED:
            waited_s = (attempt.ended_at or end_at) - attempt.arrived_at if ttft_s is None else ttft_s
            return Verdict.BAD if slow or waited_s > target_s else Verdict.EXCLUDED
        case Fate.REFUSED | Fate.EXPIRED | Fate.FAILED:
            return Verdict.BAD
        case _:
            assert_never(fate)


def find_miss(attempt: Attempt, tier: Tier) -> str:
    """Why a bad request is bad: its fate, else ``late`` (the first token), else ``slow`` (those after it)."""
    fate = find_fate(attempt)
    if fate in (Fate.REFUSED, Fate.EXPIRED, Fate.FAILED):
        return str(fate.value)
    ttft_s = compute_ttft_s(attempt)
    late = ttft_s is None or ttft_s > find_ttft_target_s(tier, attempt.offer.size.prompt_tokens)
    return "late" if late else "slow"


def compute_percentile(samples: Iterable[float], ratio: float) -> float | None:
    """The smallest sample that at least ``ratio`` of them do not exceed."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(ratio * len(ordered)) - 1)] if ordered else None


def compute_jain(shares: Sequence[float]) -> float | None:
    """Jain's index: 1 when all are equal, 1/n when one has everything."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else None


def compute_fair_shares(total: float, demands: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Max-min fair division of ``total`` by weight; nobody gets more than it demanded."""
    shares = [0.0] * len(demands)
    open_ = [index for index, demand in enumerate(demands) if demand > 0]
    left = total
    while open_ and left > 1e-12:
        unit = left / sum(weights[index] for index in open_)
        full = [index for index in open_ if demands[index] <= unit * weights[index]]
        if not full:
            for index in open_:
                shares[index] = unit * weights[index]
            break
        for index in full:
            shares[index] = demands[index]
            left -= demands[index]
        open_ = [index for index in open_ if index not in full]
    return shares


@dataclass(slots=True)
class TierFigures:
    """One tier in one run: counts and raw samples, so that runs can be added before ratios are taken."""

    offered: int = 0
    good: int = 0
    bad: int = 0
    contract_good: int = 0
    contract_bad: int = 0
    contract_lost: int = 0
    """Refused, expired or failed through our fault: against availability."""
    good_tokens: int = 0
    fates: Counter[str] = field(default_factory=Counter)
    misses: Counter[str] = field(default_factory=Counter)
    """Bad requests within contract by reason."""
    ttft_s: list[float] = field(default_factory=list)
    tpot_s: list[float] = field(default_factory=list)
    rejection_s: list[float] = field(default_factory=list)
    predicted: list[tuple[float, float, float, float]] = field(default_factory=list)
    """(moment, predicted median, predicted P95, observed) seconds from dispatch to the first token."""
    admitted: list[tuple[float, float, float]] = field(default_factory=list)
    """(arrival, P95 foreseen at arrival, observed) seconds from arrival to the first token."""
    jain: list[float] = field(default_factory=list)
    share_gap: list[float] = field(default_factory=list)
    recovery_s: list[float | None] = field(default_factory=list)
    oscillation_per_min: list[float] = field(default_factory=list)
    ideal: list[float] = field(default_factory=list)
    contract_ideal: list[float] = field(default_factory=list)
    timeline: dict[int, list[int]] = field(default_factory=dict)
    """By second of arrival: offered, good, bad, refused."""

    @property
    def attainment(self) -> float | None:
        """Good over all that were judged."""
        return _divide(self.good, self.good + self.bad)

    @property
    def contract_attainment(self) -> float | None:
        """Good over offered within contract."""
        return _divide(self.contract_good, self.contract_good + self.contract_bad)

    @property
    def availability(self) -> float | None:
        """Not refused or failed by our fault, over offered within contract."""
        return _divide(
            self.contract_good + self.contract_bad - self.contract_lost, self.contract_good + self.contract_bad
        )

    def compute_calibration(self) -> tuple[float, float, float] | None:
        """Median absolute error of TTFT as a ratio, and the least and the overall coverage of P95 by window."""
        if not self.predicted:
            return None
        errors = [abs(median - seen) / seen for _, median, _, seen in self.predicted if seen > 0]
        windows: dict[int, list[int]] = {}
        for at, _, high, seen in self.predicted:
            window = windows.setdefault(int(at // WINDOW_S), [0, 0])
            window[0] += seen <= high
            window[1] += 1
        covered = sum(window[0] for window in windows.values()) / len(self.predicted)
        worst = min(window[0] / window[1] for window in windows.values() if window[1] >= 100 or len(windows) == 1)
        return compute_percentile(errors, 0.5) or 0.0, worst, covered

    def add(self, other: "TierFigures") -> None:
        """Take in another run."""
        for name in ("offered", "good", "bad", "contract_good", "contract_bad", "contract_lost", "good_tokens"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.fates += other.fates
        self.misses += other.misses
        for name in (
            "ttft_s", "tpot_s", "rejection_s", "predicted", "admitted", "jain", "share_gap", "recovery_s",
            "oscillation_per_min", "ideal", "contract_ideal",
        ):  # fmt: skip
            getattr(self, name).extend(getattr(other, name))
        for second, line in other.timeline.items():
            mine = self.timeline.setdefault(second, [0, 0, 0, 0])
            for index, count in enumerate(line):
                mine[index] += count


@dataclass(slots=True)
class RunFigures:
    """One or several runs of one arm at one load."""

    scenario: str
    arm: str
    load: float
    seconds: float = 0.0
    runs: int = 0
    capacity_rps: float = 0.0
    ideal_good: int = 0
    bound_good: int = 0
    good: int = 0
    good_tokens: int = 0
    intents: int = 0
    intents_good: int = 0
    tiers: dict[str, TierFigures] = field(default_factory=dict)
    revenue: float = 0.0
    made_tokens: int = 0
    wasted_tokens: int = 0
    told_back: int = 0
    told_admitted: int = 0
    gauges: list[tuple[float, int, int]] = field(default_factory=list)
    cpu_s: float = 0.0
    virtual_s: float = 0.0

    @property
    def goodput_rps(self) -> float:
        """Good requests that ended while it was measured, a second."""
        return self.good / self.seconds

    @property
    def goodput_tps(self) -> float:
        """Output tokens of these, a second."""
        return self.good_tokens / self.seconds

    @property
    def ideal_rps(self) -> float:
        """The most good requests a second in the time measured, if no work was carried into it."""
        return self.ideal_good / self.seconds

    @property
    def bound_rps(self) -> float:
        """What no policy can exceed with these offers: as if what ran at the begin had cost nothing."""
        return self.bound_good / self.seconds

    @property
    def wasted_ratio(self) -> float | None:
        """Output tokens of answers that were aborted or came too late, over all output tokens."""
        return _divide(self.wasted_tokens, self.made_tokens)

    @property
    def honesty(self) -> float | None:
        """Of clients that came back when they were told to, the share that was admitted."""
        return _divide(self.told_admitted, self.told_back)

    def add(self, other: "RunFigures") -> None:
        """Take in another run of the same arm and load."""
        for name in (
            "seconds", "runs", "ideal_good", "bound_good", "good", "good_tokens", "intents", "intents_good", "revenue",
            "made_tokens", "wasted_tokens", "told_back", "told_admitted", "cpu_s", "virtual_s",
        ):  # fmt: skip
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name, tier in other.tiers.items():
            self.tiers.setdefault(name, TierFigures()).add(tier)


def _divide(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def measure(world: World, arm: str) -> RunFigures:
    """The figures of a finished run."""
    scenario = world.scenario
    end_at = scenario.until_s + scenario.settle_s
    figures = RunFigures(scenario.name, arm, scenario.load, scenario.duration_s, 1, world.capacity_rps)
    figures.tiers = {spec.tier.name: TierFigures() for spec in scenario.tiers if _is_used(scenario, spec.tier.name)}
    revenues = {spec.tier.name: spec.revenue for spec in scenario.tiers}
    served = [0.0] * len(scenario.tenants)
    demanded = [0.0] * len(scenario.tenants)
    intents: dict[int, bool] = {}
    for attempt in world.attempts:
        tier = world.tiers[attempt.offer.tenant]
        verdict = judge(attempt, tier, end_at)
        good = verdict is Verdict.GOOD
        tokens = attempt.output_tokens
        figures.made_tokens += max(tokens, attempt.wasted_tokens)
        figures.wasted_tokens += tokens if verdict is Verdict.BAD else attempt.wasted_tokens
        if good and attempt.ended_at is not None and scenario.warmup_s <= attempt.ended_at < scenario.until_s:
            figures.good += 1
            figures.good_tokens += tokens
            figures.revenue += revenues[tier.name] * (tokens + attempt.offer.size.prompt_tokens / 8.0) / 1000.0
        if attempt.arrived_at < scenario.warmup_s:
            continue
        _count(figures.tiers[tier.name], attempt, verdict)
        if verdict is Verdict.BAD and attempt.in_contract:
            figures.tiers[tier.name].misses[find_miss(attempt, tier)] += 1
        demanded[attempt.offer.tenant] += 1.0
        served[attempt.offer.tenant] += good
        number = attempt.offer.number
        intents[number] = intents.get(number, False) or good
        if attempt.tries and scenario.tenants[attempt.offer.tenant].client.retry is Retry.TOLD:
            figures.told_back += 1
            figures.told_admitted += find_fate(attempt) not in (Fate.REFUSED, Fate.EXPIRED)
    figures.intents, figures.intents_good = len(intents), sum(intents.values())
    for name, into in figures.tiers.items():
        _add_shapes(into, scenario)
        _add_fairness(into, scenario, name, served, demanded)
    _add_bounds(figures, world)
    figures.gauges = world.gauges
    return figures


def _is_used(scenario: Scenario, tier: str) -> bool:
    return any(tenant.tier == tier for tenant in scenario.tenants)


def _count(into: TierFigures, attempt: Attempt, verdict: Verdict) -> None:
    into.offered += 1
    fate = find_fate(attempt)
    into.fates[fate.value] += 1
    line = into.timeline.setdefault(int(attempt.arrived_at / BIN_S), [0, 0, 0, 0])
    line[0] += 1
    lost = fate in (Fate.REFUSED, Fate.EXPIRED, Fate.FAILED)
    line[3] += lost
    if verdict is Verdict.GOOD:
        into.good += 1
        into.good_tokens += attempt.output_tokens
        line[1] += 1
        into.contract_good += attempt.in_contract
    elif verdict is Verdict.BAD:
        into.bad += 1
        line[2] += 1
        into.contract_bad += attempt.in_contract
        into.contract_lost += attempt.in_contract and lost
    ttft_s, tpot_s = compute_ttft_s(attempt), compute_tpot_s(attempt)
    if ttft_s is not None:
        into.ttft_s.append(ttft_s)
    if tpot_s is not None and fate is Fate.COMPLETED:
        into.tpot_s.append(tpot_s)
    if fate in (Fate.REFUSED, Fate.EXPIRED) and attempt.ended_at is not None:
        into.rejection_s.append(attempt.ended_at - attempt.arrived_at)
    if attempt.prediction is not None and attempt.predicted_at is not None and attempt.first_token_at is not None:
        into.predicted.append(
            (attempt.predicted_at, *attempt.prediction, attempt.first_token_at - attempt.predicted_at)
        )
    if attempt.bound_s is not None and ttft_s is not None and attempt.dispatches == 1:
        into.admitted.append((attempt.arrived_at, attempt.bound_s, ttft_s))


def count_sign_changes(ratios: Sequence[float], band: float = OSCILLATION_BAND) -> int:
    """How often a series turns: steps smaller than ``band`` do not count as a direction."""
    changes, direction = 0, 0
    anchor = ratios[0] if ratios else 0.0
    for ratio in ratios:
        if abs(ratio - anchor) <= band:
            continue
        towards = 1 if ratio > anchor else -1
        changes += direction == -towards
        direction, anchor = towards, ratio
    return changes


def find_recovery_s(timeline: dict[int, list[int]], spike: tuple[float, float]) -> float | None:
    """Seconds from the spike's end until attainment stayed up for five seconds; ``None`` if it never did."""
    first, last = int(spike[1]), max(timeline, default=0)
    held = 0
    for second in range(first, last + 1):
        line = timeline.get(second, [0, 0, 0, 0])
        judged = line[1] + line[2]
        held = held + 1 if not judged or line[1] / judged >= RECOVERED_RATIO else 0
        if held == RECOVERED_FOR_S:
            return float(second - RECOVERED_FOR_S + 1 - first)
    return None


def _add_shapes(into: TierFigures, scenario: Scenario) -> None:
    seconds = sorted(into.timeline)
    ratios = [into.timeline[second][3] / into.timeline[second][0] for second in seconds]
    into.oscillation_per_min.append(count_sign_changes(ratios) * 60.0 / scenario.duration_s)
    if scenario.spike is not None:
        into.recovery_s.append(find_recovery_s(into.timeline, scenario.spike))


def _add_fairness(
    into: TierFigures, scenario: Scenario, tier: str, served: Sequence[float], demanded: Sequence[float]
) -> None:
    """Each tenant's good requests over its max-min fair part of its tier's good requests."""
    mine = [index for index, tenant in enumerate(scenario.tenants) if tenant.tier == tier and demanded[index]]
    total = sum(served[index] for index in mine)
    if len(mine) < 2 or not total:
        return
    weights = [scenario.tenants[index].weight for index in mine]
    fair = compute_fair_shares(total, [demanded[index] for index in mine], weights)
    shares = [served[index] / part for index, part in zip(mine, fair, strict=True) if part]
    jain = compute_jain(shares)
    if jain is not None:
        into.jain.append(jain)
        into.share_gap.append(max(shares) - min(shares))


def _add_bounds(figures: RunFigures, world: World) -> None:
    """What the machines could do of all that arrived, by the least cost of each request.

    Prompt tokens that could come from the cache are free, output costs as in the best batch that keeps the target.
    Strict priority puts what is within contract first, by tier, then excess by tier.
    """
    scenario = world.scenario
    cost = scenario.engine_profile.cost
    token_cost_s = [
        compute_token_cost_s(scenario.engine_profile, tier.tpot_target_s or math.inf) for tier in world.tiers
    ]
    works, measured = [], []
    for attempt in world.attempts:
        size, tenant = attempt.offer.size, attempt.offer.tenant
        uncached = max(0, size.prompt_tokens - size.cached_tokens)
        seconds = uncached * cost.per_prefill_token_s + (size.output_tokens - 1) * token_cost_s[tenant]
        rank = world.tiers[tenant].rank + (0 if attempt.in_contract else EXCESS)
        works.append(Work(rank, seconds))
        if attempt.arrived_at >= scenario.warmup_s:
            measured.append(works[-1])
    worker_seconds = scenario.duration_s * scenario.workers
    figures.ideal_good = count_most_good(measured, worker_seconds)
    # Each worker may begin with a full batch that is about to end.
    carried = scenario.engine_profile.max_num_seqs * scenario.workers
    figures.bound_good = min(len(works), count_most_good(works, worker_seconds) + carried)
    ideal = compute_ideal_attainment(measured, worker_seconds)
    counts = Counter(work.rank for work in measured)
    for tier in {tier.name: tier for tier in world.tiers}.values():
        within, beyond = counts[tier.rank], counts[tier.rank + EXCESS]
        good = ideal.get(tier.rank, 0.0) * within + ideal.get(tier.rank + EXCESS, 0.0) * beyond
        if within + beyond:
            figures.tiers[tier.name].ideal.append(good / (within + beyond))
        if within:
            figures.tiers[tier.name].contract_ideal.append(ideal[tier.rank])


def check_conservation(attempts: Sequence[Attempt]) -> dict[str, int]:
    """Count fates.

    Raises:
        ValueError: two attempts share a name, or moments are out of order.
    """
    fates = Counter(find_fate(attempt).value for attempt in attempts)
    if len({attempt.request_id for attempt in attempts}) != len(attempts):
        raise ValueError("a request was counted twice")
    for attempt in attempts:
        stamps = [attempt.arrived_at, attempt.dispatched_at, attempt.first_token_at, attempt.ended_at]
        known = [stamp for stamp in stamps if stamp is not None]
        if known != sorted(known) or (attempt.outcome is None) is not (attempt.ended_at is None):
            raise ValueError(f"{attempt.request_id}: {stamps} with {attempt.outcome}")
    if sum(fates.values()) != len(attempts):
        raise ValueError("fates do not add up")
    return dict(fates)
