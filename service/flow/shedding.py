"""Takes work beyond contracts back from workers when guaranteed work would miss its deadline otherwise."""

from service.domain.command import Command, Revoke
from service.domain.outcome import Outcome
from service.flow.ledger import Running
from service.flow.state import FlowState
from service.flow.waiting import Waiting

_WINDOW_S = 60.0


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


def find_victim(state: FlowState, waste: WasteBudget, now: float) -> Running | None:
    """The request beyond contracts with the least work sunk in it, that may be taken back once."""
    for request_id in reversed(state.ledger.sheddable):
        running = state.ledger.running[request_id]
        if running.revoked or running.entry.revoked:
            continue
        if waste.allows(emitted_tokens(state, running, now), state.config.shedding.revoked_ratio):
            return running
        return None
    return None


def revoke_for(state: FlowState, entry: Waiting, wait_s: float | None, waste: WasteBudget, now: float) -> list[Command]:
    """Make room for ``entry`` if it would miss its deadline by waiting; at most one victim at a time."""
    if entry.due_at is None or not state.ledger.sheddable:
        return []
    if wait_s is not None and now + 2.0 * wait_s <= entry.give_up_at:
        return []
    victim = find_victim(state, waste, now)
    if victim is None:
        return []
    victim.revoked = True
    waste.observe(0.0, emitted_tokens(state, victim, now), now)
    return [Revoke(victim.permit.request_id, Outcome.REVOKED)]
