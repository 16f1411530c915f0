"""Which tier serves a request: its contract's, or a lower one that it asks for. Never a higher one."""

from collections.abc import Mapping

from service.domain.mark import Mark
from service.domain.outcome import Outcome
from service.domain.tier import Tier
from service.domain.units import TierName
from service.gateway.refusal import Refused
from service.runtime.account import Settlement

_AS_CONTRACTED = frozenset(("auto", "scale", "standard_only"))
"""``auto`` is everybody's word for it; the others are OpenAI's and Anthropic's for what is not sold here."""

_KNOWN = frozenset(("default", "priority", "flex"))


def find_tier(name: TierName, tiers: Mapping[TierName, Tier]) -> Tier:
    """The tier of a contract.

    Raises:
        Refused: the store has a tenant of a tier that is offered no more.
    """
    tier = tiers.get(name)
    if tier is None:
        raise Refused(Outcome.FORBIDDEN, "This tenant's tier is not offered here. Ask the operator of the service.")
    return tier


def choose_tier(contracted: Tier, asked: str, tiers: Mapping[TierName, Tier]) -> Tier:
    """The tier that serves a request which asks for ``asked``.

    A tier that is not configured, or that is dearer than the contract's, means the contract's own.

    Raises:
        Refused: nobody calls a tier so.
    """
    wanted = tiers.get(TierName(asked))
    if wanted is None:
        if asked not in _AS_CONTRACTED and asked not in _KNOWN:
            names = ", ".join(sorted({"auto", *_KNOWN, *tiers}))
            message = f"The field 'service_tier' must be one of {names}, or be left out."
            raise Refused(Outcome.MALFORMED, message, "service_tier")
        return contracted
    return wanted if wanted.rank > contracted.rank else contracted


def note_tier(settlement: Settlement, served: Tier) -> None:
    """Tell requested and served tier apart in the record, where they are not the same."""
    if served.name != settlement.tier:
        settlement.tier, settlement.tier_asked = served.name, settlement.tier
        settlement.marks |= {Mark.DOWNGRADED}
