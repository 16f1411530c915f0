"""Decides whether a worker may be tried, by what became of the requests sent to it: dead is not busy."""

from dataclasses import dataclass

from service.domain.event import FailureCause
from service.flow.config import BreakerConfig


@dataclass(slots=True)
class BreakerState:
    """What is remembered of one worker.

    It rests while ``busy_until`` or ``open_until`` lies in the future; ``open_until`` is ``None`` while the breaker is
    closed. ``openings`` counts openings since the last success, for the growing length of the next.

    Trade-offs: the probe is not told from requests that were under way before, so one of those may end the probing.
    """

    failures: int = 0
    openings: int = 0
    open_until: float | None = None
    busy_until: float = 0.0
    probing: bool = False


def may_try(state: BreakerState, now: float) -> bool:
    """Whether a request may be sent: not resting as busy; closed, or open long enough and not being probed."""
    if now < state.busy_until:
        return False
    if state.open_until is None:
        return True
    return now >= state.open_until and not state.probing


def next_change_at(state: BreakerState, now: float) -> float | None:
    """When time alone will make ``may_try`` true; ``None`` if it is true or waits for a probe to end."""
    if state.open_until is not None and state.probing:
        return None
    moment = max(state.busy_until, state.open_until or 0.0)
    return moment if moment > now else None


def observe_dispatch(state: BreakerState) -> None:
    """A request was sent: behind an open breaker it is the one probe."""
    if state.open_until is not None:
        state.probing = True


def observe_success(state: BreakerState) -> None:
    """The worker yielded a token or an answer of its own, were it a 4xx: it lives."""
    state.failures = 0
    state.openings = 0
    state.open_until = None
    state.probing = False


def observe_nothing(state: BreakerState) -> None:
    """The attempt ended without saying anything about the worker (the client left): a probe is free again."""
    state.probing = False


def observe_failure(
    state: BreakerState, cause: FailureCause, retry_after_s: float | None, now: float, config: BreakerConfig
) -> None:
    """An attempt failed: rest a busy worker, count a broken one, open at once for a dead one."""
    if cause is FailureCause.BUSY:
        rest_s = config.busy_rest_s if retry_after_s is None else min(retry_after_s, config.busy_rest_max_s)
        state.busy_until = max(state.busy_until, now + rest_s)
        observe_success(state)
        return
    if cause is FailureCause.REVOKED:
        observe_nothing(state)
        return
    was_probe = state.probing
    if state.open_until is not None and not was_probe:
        return  # it was under way when the breaker opened: that the worker is in trouble is known
    state.failures += 1
    if cause is FailureCause.UNREACHABLE or was_probe or state.failures >= config.failures_to_open:
        open_s = min(config.open_s * 2.0**state.openings, config.open_max_s)
        state.openings = min(state.openings + 1, 16)
        state.open_until = now + open_s
        state.probing = False
