"""Computes the advice given with a refusal."""

_SPREAD_LOW, _SPREAD_HIGH = 0.8, 1.3
"""Advice is spread over this range of the estimate, so that refused clients do not return together."""


def compute_retry_after_s(wait_s: float | None, cap_s: float, draw: float) -> float:
    """Seconds after which a refused client should return: the estimated wait, spread by ``draw`` in [0, 1).

    Without an estimate one second is the base. At least 0.1 s, at most ``cap_s``.
    """
    base = 1.0 if wait_s is None else wait_s
    spread = _SPREAD_LOW + (_SPREAD_HIGH - _SPREAD_LOW) * draw
    return min(max(base * spread, 0.1), cap_s)
