"""Decides which worker a conversation comes back to, and whether a request should wait for the one that has read the
beginning of its prompt before.

A turn of a conversation that is read anew costs some twenty times what it costs where the turns before were read. So a
request waits for such a worker, its *home*, for half of its patience, and holds nobody up meanwhile; after that it may
be read elsewhere while the pool can bear it (``flow.rereading``). An idle worker may read anything.

Where several gateways serve the same workers, a conversation may come through another each time. They tell each other
of the prompts that they sent, by the mark of the whole prompt, which the next turn has among its own; and where this
gateway remembers nothing, all of them prefer the same worker by hashing (``shares.score``).

*Trade-offs*: of several workers that have read equally much a request waits for the one with most room, and
does not see that another has got some before it is looked at again.
"""

from service.domain.replica import find_place
from service.domain.request import Request
from service.domain.units import WorkerId
from service.flow.shares import score
from service.flow.state import FlowState
from service.flow.waiting import Waiting
from service.flow.worker import WorkerState

_REREAD_S = 0.1
"""Who would have to read so much a second time waits for the worker that has read it. Measured with the agentic
scenario at 0.85 of capacity, where a turn read anew takes 1.2 s: at 0.25 s goodput was a tenth lower."""

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


def count_again_s(state: FlowState, entry: Waiting, worker: WorkerState) -> float:
    """How long ``worker`` would read what the best of those that can be used has read already."""
    here = 0 if entry.known is None else entry.known.get(worker.cache, 0)
    return _read_s(state, entry, entry.known_most_bytes - here)


def _read_s(state: FlowState, entry: Waiting, known_bytes: int) -> float:
    tokens = entry.estimate.prompt_tokens * known_bytes / max(entry.request.prompt_bytes, 1) * state.trust.ratio
    return tokens * state.prefill.per_kilotoken_s * 1e-3


def is_worth_reading(state: FlowState, entry: Waiting, worker: WorkerState, now: float) -> bool:
    """Whether ``worker`` should read what a usable worker has read already: if that is little, if it has nothing else
    to do, or if ``entry`` has waited for its home long enough and the pool can bear it."""
    if _count_dear_s(state, entry, worker) is None:
        return True
    at = _find_release_at(state, entry, now)
    if at <= now:
        return True
    state.alarms.note_again(at + _GRAIN_S)
    return False


def pay_for_rereading(state: FlowState, entry: Waiting, worker: WorkerState) -> None:
    """``entry`` goes to ``worker``: if that had to be allowed, it is taken from the budget. What nobody has to allow,
    in an idle pool above all, runs up no debt that would bind a busy one."""
    dear_s = _count_dear_s(state, entry, worker)
    if dear_s is not None:
        state.rereading.spend(dear_s)


def _count_dear_s(state: FlowState, entry: Waiting, worker: WorkerState) -> float | None:
    """How long ``worker`` would read again, if that is long and it has something else to do."""
    if not (worker.held or worker.foreign):
        return None
    again_s = count_again_s(state, entry, worker)
    return None if again_s < _REREAD_S else again_s


def find_home_to_wait_for(state: FlowState, entry: Waiting, now: float) -> WorkerId | None:
    """The worker that has read so much of the prompt that ``entry`` should wait for it alone, if there is one."""
    most = entry.known_most_bytes
    if not most or entry.known is None or _read_s(state, entry, most) < _REREAD_S:
        return None
    if _find_release_at(state, entry, now) <= now:
        return None
    known = entry.known
    homes = [worker for worker in state.ledger.usable if known.get(worker.cache, 0) == most]
    return min(homes, key=lambda worker: len(worker.held) / max(worker.permits, 1)).worker_id if homes else None


def _find_release_at(state: FlowState, entry: Waiting, now: float) -> float:
    """From when on ``entry`` may be read elsewhere: half of its patience is over, and there is a budget for it."""
    half_at = 0.5 * (entry.request.arrived_at + entry.give_up_at)
    if now < half_at:
        return half_at
    return state.rereading.allows_at(len(state.ledger.usable), state.ledger.gateways, now)
