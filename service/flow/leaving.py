"""Decides which worker goes when there is one too many: the one whose going is felt least.

*Trade-offs*: warm sessions are counted by who served them last, not by how much of them is still in the worker's cache.
"""

from collections import Counter

from service.domain.units import WorkerId
from service.flow.state import FlowState


def choose_leaving(state: FlowState) -> WorkerId | None:
    """A worker that does not serve, if there is one; else the least loaded, of these the one with the fewest warm
    sessions, of these the last that came. Never the last that serves. O(workers + sessions)."""
    warm = Counter(state.sessions.caches())
    there = [worker for worker in state.ledger.workers.values() if worker.listed and not worker.draining]
    if not there or (len(state.ledger.usable) <= 1 and all(worker.healthy for worker in there)):
        return None
    ranks = [
        (worker.healthy, worker.in_flight, warm[worker.cache], -place, worker.worker_id)
        for place, worker in enumerate(there)
    ]
    return min(ranks)[-1]
