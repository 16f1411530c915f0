"""Decides which worker a conversation comes back to, and whether a request should wait for the one that has read the
beginning of its prompt before.

Where several gateways serve the same workers, a conversation may come through another each time. They tell each other
of the prompts that they sent, by the mark of the whole prompt, which the next turn has among its own; and where this
gateway remembers nothing, all of them prefer the same worker by hashing (``shares.score``).

*Trade-offs*: whoever waits so holds up those behind it in its band, for half of its patience at most.
"""

from service.domain.replica import find_place
from service.domain.request import Request
from service.flow.shares import score
from service.flow.state import FlowState
from service.flow.waiting import Waiting
from service.flow.worker import WorkerState

_REREAD_S = 0.25
"""Who would have to read so much a second time waits for a while for the worker that has read it. Measured with the
agentic scenario at 0.85 of capacity: 74 % of prompt tokens from the cache instead of 59 %, twice the goodput."""

_GRAIN_S = 0.001
"""An alarm is set so much later than the moment it is for, since the timers of the shells count milliseconds."""


def look_up(state: FlowState, entry: Waiting) -> None:
    """Find who has read the beginning of this prompt before."""
    entry.known = known = state.prefixes.find(entry.request.prefix)
    entry.known_most_bytes = max([known.get(worker.cache, 0) for worker in state.ledger.usable], default=0)


def find_home(state: FlowState, entry: Waiting) -> int | None:
    """The cache (by number) to which ``entry`` should come back where nothing is known of its prompt."""
    session, prefix = entry.request.session, entry.request.prefix
    home = None if session is None else state.sessions.find(session)
    if home is not None or not state.ledger.gateways or entry.known:
        return home
    key = session or (str(prefix[0]) if prefix else None)
    if key is None:
        return None
    return max(state.ledger.usable, key=lambda worker: score(key, find_place(worker.worker_id))).cache


def remember(state: FlowState, request: Request, worker: WorkerState) -> None:
    """``request`` was sent to ``worker``."""
    if request.prefix:
        state.prefixes.remember(request.prefix, worker.cache)
        if state.sharing is not None:
            state.sharing.read.append((state.sharing.number, request.prefix[-1], worker.worker_id))
    if request.session is not None:
        state.sessions.remember(request.session, worker.cache)


def is_worth_reading(state: FlowState, entry: Waiting, worker: WorkerState, now: float) -> bool:
    """Whether ``worker`` should read what a usable worker has read already. While half of its patience lasts a request
    waits for that one instead: in a pool that is busy, what is read twice is taken from everybody."""
    known = entry.known
    if known is None or not worker.held:
        return True
    again_bytes = entry.known_most_bytes - known.get(worker.cache, 0)
    tokens = entry.estimate.prompt_tokens * again_bytes / max(entry.request.prompt_bytes, 1) * state.trust.ratio
    if tokens * state.prefill.per_kilotoken_s * 1e-3 < _REREAD_S:
        return True
    half_at = 0.5 * (entry.request.arrived_at + entry.give_up_at)
    if now > half_at:
        return True
    state.alarms.note_again(half_at + _GRAIN_S)
    return False
