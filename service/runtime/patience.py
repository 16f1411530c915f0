"""Decides what is due for a request under way: a heartbeat, or the end of somebody's patience."""

from enum import Enum
from typing import Protocol

from service.runtime.account import Settlement
from service.runtime.limits import RelayConfig


class Due(Enum):
    """What must happen now."""

    CLIENT_STALLED = "client_stalled"
    """The client has refused to read for too long."""

    WORKER_SILENT = "worker_silent"
    """The worker has yielded nothing for too long."""

    HEARTBEAT = "heartbeat"
    """A stream has been silent long enough for a comment."""


class Answer(Protocol):
    """What is known of the present attempt's answer."""

    last_byte_at: float | None

    @property
    def started(self) -> bool:
        """A byte of it was sent on."""
        ...


class Tap(Protocol):
    """What is known of the stream that has passed."""

    @property
    def torn(self) -> bool:
        """Its last event was sent on in part."""
        ...


class Watched(Protocol):
    """What is known of a request under way."""

    stream: bool
    head_sent: bool
    last_sent_at: float
    paused_at: float | None
    first_token_limit_at: float | None

    @property
    def settlement(self) -> Settlement:
        """Its stamps."""
        ...

    @property
    def relay(self) -> Answer | None:
        """Its present attempt; ``None`` while it waits."""
        ...

    @property
    def tap(self) -> Tap | None:
        """Reads its stream."""
        ...


def find_due(journey: Watched, limits: RelayConfig, now: float) -> Due | None:
    """What is due at ``now``; ``None`` for nothing. A queued request's own deadline is the core's business."""
    if journey.paused_at is not None:  # then the worker is held back and cannot be blamed
        return Due.CLIENT_STALLED if now >= journey.paused_at + limits.client_stall_s else None
    relay = journey.relay
    if relay is not None and now >= _silent_limit_at(journey, relay, limits):
        return Due.WORKER_SILENT
    if journey.stream and journey.settlement.first_token_at is None and not _mid_event(journey.tap):
        every_s = limits.heartbeat_every_s if journey.head_sent else limits.heartbeat_after_s
        if now >= journey.last_sent_at + every_s:
            return Due.HEARTBEAT
    return None


def _mid_event(tap: Tap | None) -> bool:
    """A comment may only stand between two events."""
    return tap is not None and tap.torn


def _silent_limit_at(journey: Watched, relay: Answer, limits: RelayConfig) -> float:
    dispatched_at = journey.settlement.dispatched_at or 0.0
    if not journey.stream:
        return dispatched_at + limits.whole_s
    if journey.settlement.first_token_at is None or relay.last_byte_at is None:
        limit_at = dispatched_at + limits.first_token_s
        return limit_at if journey.first_token_limit_at is None else min(limit_at, journey.first_token_limit_at)
    return relay.last_byte_at + limits.inter_token_s
