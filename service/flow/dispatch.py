"""Decides which worker a request goes to, and whether there is one that it should go to now."""

from service.domain.command import Command, Dispatch, Grounds
from service.flow.affinity import find_home, is_worth_reading, look_up, pay_for_rereading, remember
from service.flow.band import is_guaranteed
from service.flow.breaker import may_try, observe_dispatch
from service.flow.harm import keeps_pace, leaves_time
from service.flow.state import FlowState
from service.flow.waiting import Waiting
from service.flow.worker import WorkerState, find_unread_tokens, widen_for

_LOOKED_AT = 8
"""Workers compared for one request; beyond that many, a random sample. The gain of looking at more than a few is small
(Mitzenmacher 2001)."""

_READING = 1.0
"""What a second of a worker's time for reading weighs against a second of waiting: it is taken from all who come
later. Where a prompt's beginning is known already, it costs less."""

_HARM, _HARM_UNPROMISED = 0.005, 0.02
"""What a second of reading weighs against a second of waiting of the request itself, times 1/s of promise: a fifth for
each that was promised a token every 25 ms, a tenth at 50 ms; and a little for everybody who decodes. A guess; four
times as much cost goodput in the simulator's mixed traffic."""

_MIXED_S = 0.1
"""What it weighs to bring a promise to a worker on which nobody has it: kept apart, loose promises let a worker carry
more than tight ones do (PolyServe, arXiv 2507.17769)."""

_RISK_S = 1.0
"""What it weighs to send somebody who was promised a pace to where much of the time goes to prompts."""

_HOME_S = 0.05
"""What it is worth to come back to the worker that served the session before, where nothing is known of the prompt's
beginning: a guess, about the reading time of a prompt of 2,000 tokens."""

_BACKLOG_SHARE, _BACKLOG_FREE_S = 0.25, 1.0
"""How long a prompt may stand behind others inside a worker: a quarter of its promise, or a second where nothing is
promised. More would give the order of the queue away, less would let the worker run dry."""


def has_permit(state: FlowState, worker: WorkerState, now: float) -> bool:
    """Whether ``worker`` may be given one more request, whichever."""
    return (
        worker.healthy
        and worker.listed
        and not worker.draining
        and len(worker.held) < worker.permits
        and may_try(worker.breaker, now)
    )


def foresee_ttft_s(state: FlowState, entry: Waiting, worker: WorkerState) -> float:
    """Median time from dispatch to first token on ``worker``."""
    prefill = worker.prefill if worker.prefill.known else state.prefill
    unread = entry.estimate.prompt_tokens if entry.known is None else find_unread_tokens(entry, worker)
    tokens = worker.backlog_tokens + unread
    return prefill.predict_s(tokens) * worker.medians.factor(tokens, worker.decoding)


def fits(state: FlowState, entry: Waiting, worker: WorkerState, now: float) -> float | None:
    """When the first token would come from ``worker``, in seconds; ``None`` if it is no place for ``entry`` now."""
    if not has_permit(state, worker, now):
        return None
    for band, ceiling in state.config.shedding.ceilings:
        if band == entry.band and worker.held and len(worker.held) >= worker.permits * ceiling:
            return None
    guaranteed = is_guaranteed(entry.band)
    stale_s = 0.0 if worker.load is None else worker.find_stale_s(now)
    if stale_s and not guaranteed:
        return None
    if not keeps_pace(entry, worker) or not leaves_time(state, entry, worker, now):
        return None
    if entry.known_most_bytes and not is_worth_reading(state, entry, worker, now):
        return None
    ttft_s = foresee_ttft_s(state, entry, worker)
    if worker.backlog_tokens:
        prefill = worker.prefill if worker.prefill.known else state.prefill
        behind_s = worker.backlog_tokens * prefill.per_kilotoken_s * 1e-3
        free_s = _BACKLOG_FREE_S if entry.due_at is None else _BACKLOG_SHARE * (entry.due_at - entry.request.arrived_at)
        if behind_s > free_s:
            return None
        if entry.due_at is not None and now + ttft_s > entry.due_at:
            return None
    # a silent worker is foreseen to be later, so that others are preferred; to wait for one that will not speak helps
    # nobody
    return ttft_s * widen_for(stale_s) if stale_s else ttft_s


def choose_worker(state: FlowState, entry: Waiting, now: float) -> tuple[WorkerState, float] | None:
    """The worker from which the first token would come soonest, less the harm done there; among equals the one with
    most room.

    While a prompt is read, those that decode beside it wait: the harm is its reading time for each of them. So long
    prompts gather where little decodes, and short requests keep away from there by themselves.
    """
    usable = state.ledger.usable
    if entry.request.prefix:
        look_up(state, entry)
    if len(usable) == 1:
        only = usable[0]
        ttft_s = None if only.worker_id in entry.failed_on else fits(state, entry, only, now)
        return None if ttft_s is None else (only, ttft_s)
    if len(usable) > _LOOKED_AT:
        start = int(state.chance.random() * len(usable))
        step = 1 + int(state.chance.random() * (len(usable) - 1))
        looked_at = [usable[(start + step * turn) % len(usable)] for turn in range(_LOOKED_AT)]
    else:
        looked_at = usable
    best = _best_of(state, entry, looked_at, now)
    if best is None and looked_at is not usable:
        best = _best_of(state, entry, usable, now)
    return best


def _best_of(
    state: FlowState, entry: Waiting, workers: list[WorkerState], now: float
) -> tuple[WorkerState, float] | None:
    best: tuple[WorkerState, float] | None = None
    best_key, equals = (0.0, 0.0), 1
    home = find_home(state, entry)
    for worker in workers:
        if worker.worker_id in entry.failed_on:
            continue
        ttft_s = fits(state, entry, worker, now)
        if ttft_s is None:
            continue
        load = len(worker.held) / worker.permits
        own_s = find_unread_tokens(entry, worker) * worker.reading.per_kilotoken_s * 1e-3
        harm_s = (_HARM * worker.strain + _HARM_UNPROMISED * worker.decoding) * own_s
        debt_s = max(-worker.slack.seconds, 0.0)
        mixed_s = 0.0 if not worker.held or entry.tpot_s in worker.promises else _MIXED_S
        risk_s = 0.0 if entry.tpot_s is None else _RISK_S * max(worker.prefill_ratio - own_s, 0.0)
        home_s = _HOME_S if worker.cache == home else 0.0
        key = (round(ttft_s + harm_s + debt_s + _READING * own_s + mixed_s + risk_s - home_s, 3), load)
        if best is None or key < best_key:
            best, best_key, equals = (worker, ttft_s), key, 1
        elif key == best_key:  # by chance: a worker that fails is soon idle again, and must not be the first each time
            equals += 1
            if state.chance.random() * equals < 1.0:
                best = (worker, ttft_s)
    return best


def find_place(
    state: FlowState, entry: Waiting, hint: WorkerState | None, now: float
) -> tuple[WorkerState, float] | None:
    """A worker for ``entry``; ``hint`` is the only one that can have got room since the last look."""
    pinned = entry.request.pinned_to
    only = state.ledger.workers.get(pinned) if pinned is not None else hint
    if pinned is None and hint is None:
        return choose_worker(state, entry, now)
    if only is None or only.worker_id in entry.failed_on:
        return None
    if entry.request.prefix:
        look_up(state, entry)
    ttft_s = fits(state, entry, only, now)
    return None if ttft_s is None else (only, ttft_s)


def send(state: FlowState, entry: Waiting, worker: WorkerState, ttft_s: float, now: float) -> Command:
    """Grant the permit and order the dispatch."""
    if entry.request.request_id in state.room:
        state.room.remove(entry.request.request_id)
        state.room.band(entry.band).charge(entry)
        state.last_arrivals[entry.band] = entry.request.arrived_at
    _keep_floor(state, entry)
    estimate = entry.estimate
    unread = estimate.prompt_tokens if entry.known is None else find_unread_tokens(entry, worker)
    grounds = Grounds(
        entry.band, estimate.prompt_tokens, estimate.output_tokens, entry.due_at, entry.give_up_at,
        state.room.size, state.ledger.permits, None, ttft_s, len(worker.held), worker.permits,
        None if entry.known is None else estimate.prompt_tokens - unread,
        entry.calibration.bound_s(ttft_s),
    )  # fmt: skip
    if entry.known_most_bytes:
        pay_for_rereading(state, entry, worker)
    state.ledger.grant(entry, worker, unread, ttft_s, now)
    request = entry.request
    if request.prefix or request.session is not None:
        remember(state, request, worker)
    observe_dispatch(worker.breaker)
    return Dispatch(entry.request.request_id, worker.worker_id, entry.attempt, grounds)


def _keep_floor(state: FlowState, entry: Waiting) -> None:
    """Guaranteed work earns the rest a share while it waits; what the rest gets is paid from it."""
    if is_guaranteed(entry.band):
        if not state.room.size:
            state.floor_credit_s = 0.0
        elif any(not is_guaranteed(band) for band, _ in state.room.all_bands()):
            state.floor_credit_s += state.config.shedding.floor_ratio * entry.work_s
        else:
            state.floor_credit_s = 0.0
    else:
        state.floor_credit_s = max(state.floor_credit_s - entry.work_s, 0.0)
