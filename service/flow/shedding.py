"""Takes work beyond contracts back from workers when guaranteed work would miss its deadline otherwise."""

from itertools import islice

from service.domain.command import Command, Revoke
from service.domain.outcome import Outcome
from service.flow.ledger import Running
from service.flow.state import FlowState
from service.flow.waiting import Waiting

_WINDOW_S = 60.0

_LOOKED_AT = 8
"""Requests looked at to find one whose worker would help: nearly always the first does."""


class WasteBudget:
    """Output thrown away by revocation, against all output, over a minute of exponential decay."""

    __slots__ = ("_at", "_made", "_wasted")

    def __init__(self) -> None:
        self._made = 0.0
        self._wasted = 0.0
        self._at = 0.0

    def observe(self, made: float, wasted: float, now: float) -> None:
        """Tokens that were made, and how many of them nobody will use."""
        keep = max(1.0 - (now - self._at) / _WINDOW_S, 0.0)
        self._made = self._made * keep + made
        self._wasted = self._wasted * keep + wasted
        self._at = now

    def allows(self, tokens: float, ratio: float) -> bool:
        """Whether ``tokens`` more may be wasted."""
        return self._wasted + tokens <= ratio * (self._made + 500.0)


def emitted_tokens(state: FlowState, running: Running, now: float) -> float:
    """Output of a running request so far, by the pace of its worker: the gateway does not count chunks."""
    if running.first_token_at is None:
        return 0.0
    return (now - running.first_token_at) / max(state.tpot_s or 0.02, 1e-4)


def find_victim(state: FlowState, entry: Waiting, waste: WasteBudget, now: float) -> Running | None:
    """Of the last few requests beyond contracts the one with the least work sunk in it, whose permit would help
    ``entry`` and that may still be wasted."""
    for request_id in islice(reversed(state.ledger.sheddable), _LOOKED_AT):
        running = state.ledger.running[request_id]
        worker = state.ledger.workers[running.permit.worker_id]
        helps = worker.healthy and not worker.draining and entry.request.pinned_to in (None, worker.worker_id)
        if helps and waste.allows(emitted_tokens(state, running, now), state.config.shedding.revoked_ratio):
            return running
    return None


def revoke_for(state: FlowState, entry: Waiting, wait_s: float | None, waste: WasteBudget, now: float) -> list[Command]:
    """Make room for ``entry`` if it would miss its deadline by waiting, or if nothing is known of the wait; at most one
    victim at a time."""
    if entry.due_at is None or not state.ledger.sheddable:
        return []
    if wait_s is not None:
        hold_s = max(entry.hold_s, state.mean_hold_s or 0.0)
        free_s = hold_s / max(state.ledger.permits, 1)  # until the next permit is free, though nobody waits
        if now + 2.0 * (wait_s + free_s) <= entry.give_up_at:
            return []
    victim = find_victim(state, entry, waste, now)
    if victim is None:
        return []
    state.ledger.mark_revoked(victim)
    waste.observe(0.0, emitted_tokens(state, victim, now), now)
    return [Revoke(victim.permit.request_id, Outcome.REVOKED)]
