"""Holds what is known of a pool at one moment, and drops what is not to be believed."""

from dataclasses import dataclass
from math import isfinite


@dataclass(frozen=True, slots=True)
class Demand:
    """Worker-seconds of work offered per second."""

    guaranteed: float
    excess: float
    best_effort: float


@dataclass(frozen=True, slots=True)
class Burn:
    """Burn rates by window, of the tier that burns fastest: budget spent over budget granted, 1 is exactly even.

    ``any_1h`` counts every miss of ours, the others those for want of capacity: only capacity buys workers.
    """

    capacity_5m: float | None = None
    capacity_30m: float | None = None
    capacity_1h: float | None = None
    capacity_6h: float | None = None
    capacity_3d: float | None = None
    any_1h: float | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """What is known at one moment; ``None`` is not known, and so is what is no finite number or below zero.

    ``queued_work_s`` are the worker-seconds that wait, ``kv_ratio`` the P90 of KV use over workers, ``slots_ratio``
    permits held over permits. ``ready`` workers serve, ``starting`` will, ``draining`` no longer do.
    """

    demand: Demand | None = None
    queued_work_s: float | None = None
    kv_ratio: float | None = None
    slots_ratio: float | None = None
    ready: float | None = None
    starting: float | None = None
    draining: float | None = None
    burn: Burn = Burn()
    age_s: float = 0.0


def clean(reading: Reading, stale_s: float) -> Reading:
    """Only what may be believed: a reading that is too old says nothing at all."""
    if not isfinite(reading.age_s) or reading.age_s > stale_s:
        return Reading(age_s=reading.age_s)
    demand, burn = reading.demand, reading.burn
    if demand is not None:
        values = (demand.guaranteed, demand.excess, demand.best_effort)
        demand = None if any(_sane(value) is None for value in values) else demand
    rates = (burn.capacity_5m, burn.capacity_30m, burn.capacity_1h, burn.capacity_6h, burn.capacity_3d, burn.any_1h)
    return Reading(
        demand, _sane(reading.queued_work_s), _sane(reading.kv_ratio), _sane(reading.slots_ratio),
        _sane(reading.ready), _sane(reading.starting), _sane(reading.draining), Burn(*map(_sane, rates)), reading.age_s,
    )  # fmt: skip


def _sane(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) and value >= 0.0 else None


def count_workers(ready: float | None, starting: float | None) -> int | None:
    """Workers there are or will be. Who starts may be unknown, who serves may not."""
    return None if ready is None else round(ready + (starting or 0.0))
