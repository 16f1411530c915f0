"""What a gateway tells the shared store about one tenant, what it is told back, and how far the fleet may overshoot.

One exchange does all: it reports what was spent, gives back or renews what is held, and asks for more. A report has a
number and is the same until it is heard, so that one whose answer was lost is not counted twice.
"""

from math import ceil

from service.domain.value import value

LEASE_S = 3.0
"""How long what is held stays out of the others' reach without a word: so long a gateway may stand still before its
lease is counted as spent. Ten times the pace of renewal, a guess."""

Amounts = list[tuple[int, int]]
"""(slots ago, amount) of :mod:`service.flow.window`, oldest first."""


@value
class Ask:
    """One measure: the limit, what was ``spent``, how much to hold from now on, and for a store that has forgotten
    everything what the fleet was known to have spent (``recall``)."""

    limit: int
    want: int
    needed: int
    spent: Amounts
    recall: Amounts


@value
class Report:
    """``fresh``: this gateway does not expect the store to know it; ``running`` and ``want_running`` are requests that
    wait or run and how many may, with ``limit_running`` of all gateways, ``None`` if that is not limited."""

    number: int
    fresh: bool
    requests: Ask | None
    tokens: Ask | None
    running: int
    want_running: int
    limit_running: int | None
    month: int
    month_spent: int


@value
class Share:
    """One measure: what is held from now on, what is left for anybody, and what the fleet has spent."""

    held: int
    spare: int
    spent: Amounts


@value
class Grant:
    """The store's word. ``lost``: it does not know this gateway, and has done nothing."""

    lost: bool
    requests: Share | None = None
    tokens: Share | None = None
    held_running: int = 0
    month_spent: int = 0


def bound_overshoot(limit: int, replicas: int, crashed: bool = False, forgotten: bool = False) -> int:
    """The most that N gateways let pass above ``limit`` in any minute, to within a slot::

        store away, for all of them or for some     (N - 1) * ceil(limit / N)
        the same, and a gateway ``crashed``          N * ceil(limit / N)
        store there, but ``forgotten`` everything    limit

    The first is reached when one gateway has spent the whole limit a moment before and none of the others has heard of
    it: each of them lets its share pass. What a gateway spent that crashed within the minute nobody else need know. A
    store that comes back empty is told by the gateways what they know; what is spent until the first who knows has come
    is at most the limit once more. One gateway by itself never overshoots.
    """
    if replicas <= 1:
        return 0
    if forgotten:
        return limit
    return (replicas - 1 + crashed) * ceil(limit / replicas)


def bound_running_overshoot(limit: int, replicas: int) -> int:
    """The most requests that N gateways let run at once above ``limit``: (N - 1) * limit.

    What a gateway runs that has been cut off for longer than a lease is taken for ended by the others, as it is when
    the gateway has crashed. While the store is there for all, none are above the limit.
    """
    return (replicas - 1) * limit
