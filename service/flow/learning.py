"""Learns from what became of requests: how long first tokens took, how long answers were, how fast they came."""

from service.domain.event import PermitEnded
from service.flow.ledger import Running
from service.flow.shedding import WasteBudget
from service.flow.state import FlowState
from service.flow.worker import WorkerState

_TPOT_WEIGHT = 0.05
"""Weight of one answer in the pool's mean time per token: the last twenty count. A guess; only forecasts of the wait
use it, and what a worker is given follows its own readings."""

_LESSON_EVERY_S = 0.25
"""As often as answers stand in for readings, which come once a second: each costs a walk over the pool."""

_STEP_S = 0.01
"""A prompt that finds none ahead waits for the step under way, about half of one, and for the network: not reading.
Counted with until first tokens have shown how long it is."""

_TELLING_TOKENS = 256
"""Shorter prompts say nothing of the pace of reading: an engine reads several in one step, and what a step takes in any
case is more than they do. A guess, an eighth of the usual budget of a step. 2,000 streams of 19 tokens each, that
waited half a second for their first token all the same, were refused for a pace of reading that was all grain."""

_PROMPT_SHARE = 0.25
"""A first token within a quarter of the promised time is prompt. A guess: far above a prompt's own reading, far below
a wait for somebody else's end."""

_TAUGHT, _SAMPLED = 64, 3
_SCATTER = 0x9E3779B1
"""First tokens of a worker from which each teaches; then one in four keeps the pace fresh, since a busy worker shows
hundreds a second. Which one is scattered (Knuth's multiplicative hash), so that no regular mix of sizes is missed."""

_SHORT_TOKENS = 8
"""Shorter answers say little of the time per token: one chunk of speculation may hold half of them. A guess."""


_DECODING_SHARE = 0.5
"""Of an answer that came whole at least this share of the time is taken to be decoding."""


def learn_first_token(state: FlowState, running: Running, worker: WorkerState, now: float) -> None:
    """A first token came: was it foreseen well, and how fast does this worker, and how fast do all, read prompts?"""
    seconds = now - running.permit.granted_at
    entry = running.entry
    entry.calibration.observe(running.ttft_s, seconds)
    if entry.foreseen_s is not None and entry.attempt == 1:
        state.wait_calibration(entry.request.tier).observe(entry.foreseen_s, now - entry.request.arrived_at)
    if not worker.limit.found:
        _widen(state, running, worker, now)
    granted_at, read_at = running.permit.granted_at, worker.read_at
    worker.read_at = now
    lot = entry.sequence * _SCATTER >> 16
    if lot & 1 and worker.prefill.known:
        # held against what would be foreseen by now: the forecast of its dispatch may be of a time that knew less
        medians, tokens, beside = worker.medians, running.ahead_tokens, running.beside
        foreseen_s = worker.prefill.predict_s(tokens) * medians.factor(tokens, beside)
        medians.observe(tokens, beside, foreseen_s, seconds)
    if worker.prefill.samples < _TAUGHT or not lot & _SAMPLED:
        worker.prefill.observe(running.ahead_tokens, seconds)
        state.prefill.observe(running.ahead_tokens, seconds)
        if running.tokens >= _TELLING_TOKENS:
            # What every prompt waits, however short, is not reading; nor can it have begun before the one ahead was
            # through.
            reading_s = max(seconds - (worker.prefill.fixed_s if worker.prefill.known else _STEP_S), 0.0)
            tokens = running.tokens
            if worker.share is not None:  # other gateways' first tokens are not seen here: all that stood ahead counts
                tokens = running.ahead_tokens
            elif read_at > granted_at:
                reading_s = min(reading_s, now - read_at)
            worker.reading.observe(tokens, reading_s)
            state.ledger.reading.observe(tokens, reading_s)


def _widen(state: FlowState, running: Running, worker: WorkerState, now: float) -> None:
    """A first token, or a whole answer, that came so soon that its request cannot have waited for a slot inside the
    worker shows that there is room for more."""
    if 2 * len(worker.held) < worker.permits:
        return  # far from any need of more
    entry = running.entry
    promised_s = 0.0 if entry.due_at is None else entry.due_at - entry.request.arrived_at
    prompt = now - running.permit.granted_at <= max(_PROMPT_SHARE * promised_s, 2.0 * running.ttft_s)
    if prompt and not worker.is_stale(now):
        state.ledger.widen(worker, state.config.requests_per_worker)


def learn_answer(
    state: FlowState, waste: WasteBudget, event: PermitEnded, running: Running, worker: WorkerState, now: float
) -> None:
    """An answer was served: its size, and its pace."""
    tokens = event.output_tokens
    if not worker.limit.found and not running.entry.request.stream:
        _widen(state, running, worker, now)
    if running.known_ratio > 0.0 and event.cached_tokens is not None and event.prompt_tokens:
        cached_ratio = event.cached_tokens / event.prompt_tokens
        worker.trust.observe(running.known_ratio, cached_ratio)
        state.trust.observe(running.known_ratio, cached_ratio)
    state.estimator.observe(running.entry.request, event.prompt_tokens, tokens)
    waste.observe(tokens or 0, 0.0, now)
    hold_s, mean_s = now - running.permit.granted_at, state.mean_hold_s
    state.mean_hold_s = hold_s if mean_s is None else mean_s + _TPOT_WEIGHT * (hold_s - mean_s)
    if tokens is not None and running.entry.tpot_s is not None:
        state.short(running.entry.request.tier).observe(tokens)
    if running.first_token_at is None or tokens is None or tokens < _SHORT_TOKENS:
        return
    decoding_s = now - running.first_token_at
    if not running.entry.request.stream:  # it came whole: when its first token was made can only be foreseen
        decoding_s = max(decoding_s - running.ttft_s, _DECODING_SHARE * decoding_s)
    tpot_s = decoding_s / (tokens - 1)
    state.tpot_s = tpot_s if state.tpot_s is None else state.tpot_s + _TPOT_WEIGHT * (tpot_s - state.tpot_s)
    if worker.load is None and now >= worker.next_lesson_at:  # no word from the worker itself: its answers must do
        worker.next_lesson_at = now + _LESSON_EVERY_S
        side_by_side = worker.decoding + 1
        worker.pace.observe(side_by_side, tpot_s)
        worker.limit.observe(None, side_by_side, side_by_side, 0.0, running.entry.tpot_s, worker.pace)
        state.ledger.sort_out(state.config.requests_per_worker)


def learn_cut(state: FlowState, event: PermitEnded, running: Running) -> None:
    """An answer ended before it was complete: it would have been longer than what is known to have come."""
    if event.output_tokens:
        state.estimator.observe_cut(running.entry.request, event.output_tokens)
