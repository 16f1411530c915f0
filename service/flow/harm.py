"""Decides whether a worker can take one more request without making the tokens of others late."""

from math import inf

from service.flow.band import is_guaranteed
from service.flow.slack import SLACK_MAX_S
from service.flow.state import FlowState
from service.flow.waiting import Waiting
from service.flow.worker import WorkerState, find_unread_tokens

_PACE_ROOM, _PACE_ROOM_EXCESS = 0.85, 0.6
"""Tokens are foreseen to come this much sooner than promised, since requests differ from their mean. Traffic beyond
contracts has a lower ceiling: what lies above it is headroom for those who were promised something."""

NEEDED_MAX_S = 0.8 * SLACK_MAX_S
"""Nobody's prompt is so long that it had to wait for more slack than can be saved up."""

_PRESSING_SHARE = 0.5
"""A prompt's own deadline comes before others' tokens once so much of the time to it has gone. A guess."""

GRAIN_S = 0.001
"""Alarms are not set closer than this: the timers of the shells count milliseconds."""


def leaves_time(state: FlowState, entry: Waiting, worker: WorkerState, now: float) -> bool:
    """Whether those that decode on ``worker`` have slack enough for one more prompt. If not, time will change that
    though nothing happens: the moment is noted. How fast a worker reads is shown by first tokens; as long
    as it has shown none, as where all answers come whole, nothing is held back for a guess."""
    guaranteed = is_guaranteed(entry.band)
    if worker.tightest_s == inf or not worker.prefill.known:
        return True
    slack = worker.slack
    needed_s = min(find_unread_tokens(entry, worker) * worker.reading.per_kilotoken_s * 1e-3, NEEDED_MAX_S)
    if slack.read_s(now) >= needed_s or (guaranteed and is_pressing(entry, now)):
        return True
    again_at = max(slack.enough_at(needed_s, now), now + GRAIN_S)
    if guaranteed and entry.due_at is not None:
        again_at = min(again_at, max(find_pressing_at(entry, entry.due_at), now) + GRAIN_S)
    state.alarms.note_again(again_at)
    return False


def keeps_pace(entry: Waiting, worker: WorkerState) -> bool:
    """Whether tokens still come in time for all on ``worker``, and for ``entry``, once it is there."""
    tightest_s = worker.tightest_s
    if entry.tpot_s is not None and entry.tpot_s < tightest_s:
        tightest_s = entry.tpot_s
    if tightest_s == inf or not (worker.held or worker.foreign):
        return True
    tpot_s = worker.foresee_tpot_s(len(worker.held) + worker.foreign + 1.0)
    room = _PACE_ROOM if is_guaranteed(entry.band) else _PACE_ROOM_EXCESS
    return tpot_s is None or tpot_s <= room * tightest_s


def is_pressing(entry: Waiting, now: float) -> bool:
    """Whether half of the time to its promise has gone: then its own deadline comes before others' tokens."""
    return entry.due_at is not None and now > find_pressing_at(entry, entry.due_at)


def find_pressing_at(entry: Waiting, due_at: float) -> float:
    """When its own deadline comes before others' tokens."""
    return entry.request.arrived_at + _PRESSING_SHARE * (due_at - entry.request.arrived_at)
