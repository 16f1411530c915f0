"""Tells whether the process behind an address is still the one we knew.

An address is not an identity: a restarted server, or another model's pod on a reused IP, answers at the same place. So
a worker is known by what it says of itself, read from the metrics page that is fetched anyway:

* ``process_start_time_seconds``: when its server process started (10 ms resolution). Absent when vLLM runs several API
  processes (Prometheus multiprocess mode).
* the ``model_name`` label of its engine series.
* its token counters, which never go down within one process.

``created`` of ``/v1/models`` is not used: vLLM 0.32 fills in the time of the *request* (``ModelCard.created``), so it
differs on every call. The list of ``/v1/models`` is not used either: adapters come and go at run time.

Trade-offs: a restart of a worker without start time, on the same model, is seen only if it had more tokens behind it
than the newcomer at the first reading. What was wrong with the old process is then judged anew from the newcomer's
pages, so the harm is bounded.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Incarnation:
    """What a worker said of itself; ``None`` where it said nothing."""

    started_at: float | None = None
    model: str | None = None
    tokens: float | None = None


def is_other(known: Incarnation, seen: Incarnation) -> bool:
    """Whether ``seen`` cannot be the process that said ``known`` before."""
    if known.started_at is not None and seen.started_at is not None:
        return known.started_at != seen.started_at
    if known.model is not None and seen.model is not None and known.model != seen.model:
        return True
    return known.tokens is not None and seen.tokens is not None and seen.tokens < known.tokens


def merge(known: Incarnation, seen: Incarnation) -> Incarnation:
    """What is known after ``seen``, where a page that leaves something out takes nothing away."""
    return Incarnation(
        known.started_at if seen.started_at is None else seen.started_at,
        known.model if seen.model is None else seen.model,
        known.tokens if seen.tokens is None else seen.tokens,
    )
