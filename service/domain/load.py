"""What a worker last said of itself, with the age of the statement; missing is ``None``, never zero."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """One reading of a worker's ``/metrics``.

    ``running_requests`` and ``waiting_requests`` count requests of all its clients, not only ours. ``kv_cache_ratio``
    is 0..1. ``progress_tokens`` is any counter that grows with every engine step that did work.
    """

    observed_at: float
    running_requests: int | None = None
    waiting_requests: int | None = None
    kv_cache_ratio: float | None = None
    progress_tokens: float | None = None

    def age_s(self, now: float) -> float:
        """Seconds since the worker said this."""
        return now - self.observed_at
