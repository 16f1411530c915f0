"""Bounds how much of the workers' time goes to reading what another worker has read already.

Theory. Where prompts grow by turns, a turn read from the cache costs a twentieth of one read anew. A pool that is short
of time sends turns to wrong workers, which makes it shorter still: without a bound such a pool stays at a third of what
it could do, long after the burst that began it (a metastable failure; Bronson et al., HotOS 2021). As with retries the
cure is a budget that is earned by time and not by demand.
"""

_RATIO = 0.02
"""Of the workers' time. In the simulator's agentic traffic at 0.6 and 0.85 of capacity 0.01 to 0.03 did equally well;
0.1 lost a tenth of the goodput in answers that others' long prompts made slow."""

_BURST_S = 1.0
"""May be saved up, beside two seconds' earnings: one long prompt."""


class RereadBudget:
    """Seconds that may be spent; a debt is paid off by waiting."""

    __slots__ = ("_at", "_left_s")

    def __init__(self) -> None:
        self._at = 0.0
        self._left_s = 0.0

    def allows_at(self, workers: int, gateways: int, now: float) -> float:
        """From when on something may be read again, ``now`` or later. ``workers`` are shared by ``gateways``."""
        rate = _RATIO * workers / max(gateways, 1)
        self._left_s = min(self._left_s + rate * max(now - self._at, 0.0), 2.0 * rate + _BURST_S)
        self._at = now
        if self._left_s > 0.0 or not rate:
            return now
        return now - self._left_s / rate

    def spend(self, seconds: float) -> None:
        """So much was ordered to be read again."""
        self._left_s -= seconds
