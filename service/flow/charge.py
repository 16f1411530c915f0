"""Decides what a request that has ended is charged.

| how it ended | tokens | as a request |
|---|---|---|
| anything was produced | prompt and output, by the worker's usage; what is not told is estimated | counts |
| nothing was produced, the worker found fault with it, or its client left before it was sent | none | counts |
| nothing was produced, its client left or stopped reading after it was sent | the prompt, which was read | counts |
| nothing was produced, for our own fault or for want of room | none | does not count |

Cached prompt tokens count as prompt. Nobody is charged nothing for what was produced: an answer without usage is
charged by its events, or as it was foreseen.
"""

from service.domain.outcome import Fault, Outcome, Phase
from service.domain.value import value

_TURNED_AWAY = frozenset({Outcome.SHED, Outcome.REVOKED, Outcome.CLIENT_DEADLINE})
"""Clients' own outcomes that end requests for want of room."""


@value
class Spending:
    """What is known of a request when it has ended; ``None`` where nobody knows. ``generates``: its route yields
    tokens. ``foreseen_prompt`` and ``foreseen_output`` are what it was let in with."""

    foreseen_prompt: int
    foreseen_output: int
    prompt_tokens: int | None
    output_tokens: int | None
    dispatched: bool
    began: bool


def compute_charge(outcome: Outcome, spending: Spending) -> tuple[int, bool]:
    """Tokens, and whether it counts as a request."""
    prompt = spending.foreseen_prompt if spending.prompt_tokens is None else max(spending.prompt_tokens, 0)
    if outcome is Outcome.COMPLETED or spending.began or (spending.output_tokens or 0) > 0:
        output = spending.foreseen_output if spending.output_tokens is None else max(spending.output_tokens, 0)
        return prompt + output, True
    if outcome.fault is not Fault.CLIENT or outcome in _TURNED_AWAY:
        return 0, False
    read = spending.dispatched and outcome.phase is Phase.RELAY and outcome is not Outcome.WORKER_REFUSED
    return (prompt if read else 0), True
