"""Decides what a request is (its band, its deadline, its cost) and whether it may wait at all."""

from bisect import bisect_left

from service.domain.command import Grounds
from service.domain.estimate import Estimate
from service.domain.outcome import Outcome
from service.domain.request import Request
from service.domain.tier import Tier
from service.flow.band import BEST_EFFORT, EXCESS, ContractBucket, classify, is_guaranteed
from service.flow.state import FlowState
from service.flow.waiting import Waiting

_NEEDED_SHARE = 0.5
"""However badly first tokens have been foreseen, this share of a promise is left for the queue."""

_SPARE_SHARE, _SPARE_NOT = 0.3, 6.0
"""Of the tokens that nearly every answer of a tier has, this share beyond the first few may make good for a prompt that
is read meanwhile: the rest allows for errors, and an answer of six tokens is two or three steps in which nothing can be
made good. Found in the simulator: with half, 98.3 % of the dearest tier kept their pace in azure-conv at five times the
load; with a quarter, goodput of mixed traffic was 3 % less."""

_FALLBACK_TPOT_S = 0.02
"""Time per output token before any worker has shown its own: only orders of magnitude matter that early."""

_CONGESTED_S = 5.0
"""For so long after a refusal or an expiry for want of capacity, tenants of that band are served by fair share. A
guess: a few times as long as most promises of a first token; the simulator's fairness figures measure it."""

_WANT_OF_CAPACITY = frozenset({Outcome.QUEUE_FULL, Outcome.DEADLINE_UNATTAINABLE, Outcome.EXPIRED, Outcome.SHED})


def find_ttft_target_s(tier: Tier | None, prompt_tokens: int) -> float | None:
    """Seconds to the first token that ``tier`` promises for a prompt of this size; the last edge holds beyond it."""
    if tier is None or not tier.ttft_targets_s:
        return None
    edges = tier.ttft_targets_s
    index = bisect_left(edges, (prompt_tokens, 0.0))
    return edges[min(index, len(edges) - 1)][1]


def assess(state: FlowState, request: Request, now: float) -> Waiting:
    """Everything that decides the place of ``request`` in the queue; its work is taken from its contract here."""
    estimate = state.estimator.estimate(request)
    tier = state.config.tiers.get(request.tier)
    unread = _foresee_unread_tokens(state, request, estimate) if request.prefix else estimate.prompt_tokens
    median_s = state.prefill.predict_s(unread)
    hold_s, work_s = foresee_cost(state, estimate, median_s)
    band = classify(tier, request.rank, _within_contract(state, request, work_s, now))
    target_s = find_ttft_target_s(tier, estimate.prompt_tokens)
    due_at, give_up_at = None, request.deadline_at
    calibration = state.calibration(request.tier)
    # Beyond the contract a late answer is worth no more than within it. Where not even an idle worker could keep the
    # promise, it is served as well as may be.
    if target_s is not None and median_s <= target_s:
        due_at = request.arrived_at + target_s
        needed_s = min(calibration.bound_s(median_s), max(median_s, _NEEDED_SHARE * target_s))
        give_up_at = min(give_up_at, due_at - needed_s)
    state.sequence += 1
    tpot_s, spare_tokens = None, 0.0
    # Beyond the contract no pace is promised, but one that is missed is worth nothing to anybody. One that a request
    # would not get if it were alone holds up others for nothing.
    if (
        tier is not None
        and tier.tpot_target_s is not None
        and band < BEST_EFFORT
        and tier.tpot_target_s >= state.ledger.common.lone_s
    ):
        tpot_s = tier.tpot_target_s
        shortest = min(state.short(request.tier).tokens, estimate.output_tokens)
        spare_tokens = _SPARE_SHARE * max(shortest - _SPARE_NOT, 0.0)
    return Waiting(
        request, estimate, band, due_at, give_up_at, hold_s, work_s, state.sequence, tpot_s, spare_tokens,
        prefill_s=median_s, calibration=calibration,
    )  # fmt: skip


def _foresee_unread_tokens(state: FlowState, request: Request, estimate: Estimate) -> float:
    """Prompt tokens that will have to be read if ``request`` goes where most of its prompt's beginning is known."""
    known = max(state.prefixes.find(request.prefix).values(), default=0)
    return estimate.prompt_tokens * (1.0 - min(known / max(request.prompt_bytes, 1), 1.0) * state.trust.ratio)


def foresee_cost(state: FlowState, estimate: Estimate, prefill_s: float) -> tuple[float, float]:
    """Seconds for which a permit will be held, and worker-seconds of work."""
    decode_s = estimate.output_tokens * (state.tpot_s or _FALLBACK_TPOT_S)
    return prefill_s + decode_s, prefill_s + decode_s / state.ledger.mean_permits


def find_bar(state: FlowState, entry: Waiting, now: float) -> Outcome | None:
    """Why ``entry`` may not be served even if a place is free; ``None`` if it may."""
    if not state.ledger.usable:
        return Outcome.NO_WORKERS
    if entry.request.pinned_to is not None and entry.request.pinned_to not in state.ledger.workers:
        return Outcome.UNKNOWN_RESPONSE
    level = state.config.shedding.brownout_forced
    if level and is_browned_out(level, entry.band, state):
        return Outcome.SHED
    if now > entry.give_up_at:
        return Outcome.DEADLINE_UNATTAINABLE
    return None


def is_full(state: FlowState, entry: Waiting) -> bool:
    """Whether the queue has no room for ``entry``, though a guaranteed one may take the place of what is not."""
    config, room = state.config, state.room
    requests = room.size + 1 - config.queued_requests_max
    tokens = room.tokens + entry.estimate.prompt_tokens - config.queued_tokens_max
    if requests <= 0 and tokens <= 0:
        return False
    if not is_guaranteed(entry.band):
        return True
    others, their_tokens = room.displaceable(EXCESS)
    return requests > others or tokens > their_tokens


def displace_for(state: FlowState, entry: Waiting) -> list[Waiting]:
    """Take out those who must make room for ``entry``: of the cheapest band who came last. After ``is_full``."""
    config, room, displaced = state.config, state.room, []
    while (
        room.size >= config.queued_requests_max or room.tokens + entry.estimate.prompt_tokens > config.queued_tokens_max
    ):
        last = room.last_of_cheapest()
        room.remove(last.request.request_id)
        displaced.append(last)
    return displaced


def find_refusal(state: FlowState, entry: Waiting, wait_s: float | None, now: float) -> Outcome | None:
    """Why ``entry``, which nothing bars, may not wait for the foreseen ``wait_s``; ``None`` if it may."""
    if is_full(state, entry):
        return Outcome.QUEUE_FULL
    if wait_s is not None and now + wait_s > entry.give_up_at:
        return Outcome.DEADLINE_UNATTAINABLE if is_guaranteed(entry.band) else Outcome.SHED
    return None


def name_lateness(entry: Waiting, outcome: Outcome) -> Outcome:
    """Whose ``outcome`` it is to be late: where the deadline was the client's own, and earlier than what was promised,
    its passing is the client's."""
    late = outcome is Outcome.DEADLINE_UNATTAINABLE or outcome is Outcome.EXPIRED
    own = entry.request.hinted and entry.give_up_at >= entry.request.deadline_at
    return Outcome.CLIENT_DEADLINE if late and own else outcome


def note_congestion(state: FlowState, entry: Waiting, outcome: Outcome, now: float) -> None:
    """Remember that ``entry`` was turned away, if that was for want of capacity."""
    if outcome in _WANT_OF_CAPACITY:
        state.room.band(entry.band).congested_until = now + _CONGESTED_S


def is_browned_out(level: int, band: int, state: FlowState) -> bool:
    """Whether an operator's brownout level keeps this band out."""
    if level <= 0:
        return False
    if band >= BEST_EFFORT:
        return True
    if not is_guaranteed(band):
        return level >= 2
    ranks = [tier.rank for tier in state.config.tiers.values() if not tier.best_effort]
    return level >= 3 and len(ranks) > 1 and band == max(ranks)


def foresee_wait_s(state: FlowState, entry: Waiting, now: float) -> float | None:
    """Expected wait behind all that is dearer or earlier.

    A queue of A permit-seconds drains at P permits, of which dearer bands will take a share rho of new arrivals:
    wait = A / (P * (1 - rho)) (mean-value form of a priority queue, Kleinrock vol. 2, 3.3). ``None`` while the pool's
    capacity is still being found: then nobody is refused for it.
    """
    permits = state.ledger.permits
    if permits <= 0 or not state.capacity_found:
        return None
    ahead_s = state.room.hold_ahead_s(entry)
    taken = min(state.offered.rate_above(entry.band, now) / permits, 0.98)
    return ahead_s / (permits * (1.0 - taken))


def _within_contract(state: FlowState, request: Request, work_s: float, now: float) -> bool:
    if request.excess:
        return False
    allowance = state.config.contracts.get(request.tenant_id)
    if allowance is None:
        return True
    bucket = state.buckets.get(request.tenant_id)
    if bucket is None:
        bucket = state.buckets[request.tenant_id] = ContractBucket(allowance.burst, now)
    return bucket.take(allowance, work_s, now, max(state.ledger.gateways, 1))


def build_grounds(state: FlowState, entry: Waiting, wait_s: float | None, now: float) -> Grounds:
    """What is known of ``entry`` now, for the record."""
    estimate, bound_s = entry.estimate, None
    if wait_s is not None and entry.foreseen_s is None:
        # Behind others of its band it will hardly be sooner than the last that was sent, who came so long ago: a
        # forecast by history, as studied by Ibrahim & Whitt (Operations Research 59, 2011), knows nothing of rules.
        last_s = now - state.last_arrivals.get(entry.band, now) if state.room.band(entry.band).size else 0.0
        entry.foreseen_s = max(wait_s, last_s) + entry.prefill_s
        bound_s = state.wait_calibration(entry.request.tier).bound_s(entry.foreseen_s)
    return Grounds(
        entry.band, estimate.prompt_tokens, estimate.output_tokens, entry.due_at, entry.give_up_at,
        state.room.size, state.ledger.permits, wait_s, bound_s=bound_s,
    )  # fmt: skip
