"""What a worker last said of itself, with the age of the statement; missing is ``None``, never zero."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """One reading of a worker's ``/metrics``.

    ``running_requests`` and ``waiting_requests`` count requests of all its clients, not only ours. ``kv_cache_ratio``
    is 0..1, the fullest engine's. ``progress_tokens`` is any counter that grows with every engine step that finished
    a token (vLLM: prompt tokens computed + tokens generated). It stands still during a long chunked prefill, while
    ``kv_cache_ratio`` grows.

    All that follow are totals since the worker started; the difference of two readings is a rate. They go back to zero
    when the worker starts again. ``prefix_queried_tokens`` and ``prefix_hit_tokens`` give the prefix cache's hit ratio;
    ``accepted_tokens / drafts + 1`` is the accept length of speculation. ``finished_requests`` leaves aborted ones out
    (vLLM does not count them). ``rejected_requests`` are those that the worker's own valves refused: the gateway's
    limits stand below these valves, so growth means that our ledger has drifted.
    """

    observed_at: float
    running_requests: int | None = None
    waiting_requests: int | None = None
    kv_cache_ratio: float | None = None
    progress_tokens: float | None = None
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    finished_requests: int | None = None
    rejected_requests: int | None = None
    preemptions: int | None = None
    prefix_queried_tokens: int | None = None
    prefix_hit_tokens: int | None = None
    drafts: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None

    def age_s(self, now: float) -> float:
        """Seconds since the worker said this."""
        return now - self.observed_at
