"""Computes the advice given with a refusal."""

_SPREAD_LOW, _SPREAD_HIGH = 0.8, 1.3
"""Advice is spread over this range of the estimate, so that refused clients do not return together."""


def compute_retry_after_s(wait_s: float | None, cap_s: float, draw: float, told: bool = False) -> float:
    """Seconds after which a refused client should return: the estimated wait, spread by ``draw`` in [0, 1).

    Without an estimate one second is the base. At least 0.1 s, at most ``cap_s``. What a worker ``told`` us itself is a
    promise of its own: it is spread upwards only.
    """
    base = 1.0 if wait_s is None else wait_s
    low = 1.0 if told else _SPREAD_LOW
    spread = low + (_SPREAD_HIGH - low) * draw
    return min(max(base * spread, 0.1), cap_s)
