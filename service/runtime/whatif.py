"""Plays a recorded history of the core again under other numbers and compares what became of the requests.

Under another config the core decides otherwise, and from there on the recorded events no longer fit. They are bent as
little as can be: arrivals, clients that leave, workers and alarms come as recorded; an attempt that was dispatched as
recorded goes on as recorded; any other takes as long from its dispatch as the request's recorded attempt took, or as
long as requests of its tier took on average if there is none. What follows a changed decision is thus not simulated:
nobody becomes faster because a worker is less full. That is the simulator's business (``loadtests/sim``).
"""

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from service.domain.command import Dispatch, Refuse, Revoke
from service.domain.event import (
    AttemptFailed,
    Event,
    FailureCause,
    FirstTokenSeen,
    PermitEnded,
    RequestAbandoned,
    RequestArrived,
    Woken,
)
from service.domain.permit import PermitEnding
from service.domain.units import RequestId, TierName, WorkerId
from service.flow.config import FlowConfig, Reconfigured
from service.runtime.fates import Fate, Fates
from service.runtime.journal import Journal
from service.runtime.replay import TELL_EVERY, Told, build_controller, tell_nobody

Change = Callable[[FlowConfig], FlowConfig]
"""Another policy: what it makes of a recorded config."""

_LATE_S = 0.05
"""A recorded alarm rings at most so much later than it was due; an alarm that nobody recorded rings by then."""

_UNKNOWN_LENGTH_S = 1.0
"""Length of an attempt if not one of the whole journal was served: a guess."""


@dataclass(slots=True)
class _Attempt:
    worker_id: WorkerId
    dispatched_at: float
    first_token_at: float | None = None
    ended_at: float | None = None
    end: PermitEnded | AttemptFailed | None = None
    revoked_at: float | None = None


@dataclass(slots=True)
class _Running:
    """An attempt of the other history; ``recorded`` is set while it goes on exactly as recorded."""

    attempt: _Attempt
    recorded: _Attempt | None
    token: int
    first_seen: bool = False
    revoked: bool = False


@dataclass(slots=True)
class _Lives:
    """The recorded attempts of each request, and how long those that were served took, by tier."""

    attempts: dict[RequestId, list[_Attempt]] = field(default_factory=dict)
    left_at: set[RequestId] = field(default_factory=set)
    lengths: dict[TierName | None, tuple[float, float, int]] = field(default_factory=dict)

    def mean(self, tier: TierName) -> tuple[float, float]:
        """Seconds from dispatch to the first token and to the end."""
        first_s, whole_s, served = self.lengths.get(tier) or self.lengths.get(None) or (0.0, 0.0, 0)
        return (first_s / served, whole_s / served) if served else (_UNKNOWN_LENGTH_S / 2, _UNKNOWN_LENGTH_S)


def _read_lives(journal: Journal) -> _Lives:
    lives = _Lives()
    tiers: dict[RequestId, TierName] = {}
    for at, event, commands in journal.records:
        match event:
            case RequestArrived():
                tiers[event.request.request_id] = event.request.tier
            case FirstTokenSeen() if (attempts := lives.attempts.get(event.request_id)) is not None:
                attempts[-1].first_token_at = at if attempts[-1].first_token_at is None else attempts[-1].first_token_at
            case PermitEnded() | AttemptFailed() if (attempts := lives.attempts.get(event.request_id)) is not None:
                _end(lives, attempts[-1], event, at, tiers.get(event.request_id))
            case _:
                pass
        for command in commands:
            if isinstance(command, Dispatch):
                lives.attempts.setdefault(command.request_id, []).append(_Attempt(command.worker_id, at))
            elif isinstance(command, Revoke) and command.request_id in lives.attempts:
                lives.attempts[command.request_id][-1].revoked_at = at
    return lives


def _end(
    lives: _Lives, attempt: _Attempt, event: PermitEnded | AttemptFailed, at: float, tier: TierName | None
) -> None:
    attempt.ended_at, attempt.end = at, event
    if isinstance(event, PermitEnded) and event.ending is PermitEnding.SERVED:
        whole_s = at - attempt.dispatched_at
        first_s = whole_s if attempt.first_token_at is None else attempt.first_token_at - attempt.dispatched_at
        for key in {tier, None}:
            before = lives.lengths.get(key, (0.0, 0.0, 0))
            lives.lengths[key] = (before[0] + first_s, before[1] + whole_s, before[2] + 1)


class _OtherHistory:
    """Drives a controller of another config with the recorded events, bent where they do not fit."""

    def __init__(self, journal: Journal, change: Change) -> None:
        self._journal = journal
        self._change = change
        self._config = change(journal.header.config)
        self._controller = build_controller(journal, self._config)
        self._lives = _read_lives(journal)
        self._heap: list[tuple[float, int, int, FirstTokenSeen | PermitEnded | AttemptFailed]] = []
        self._order = count()
        self._running: dict[RequestId, _Running] = {}
        self._waiting: dict[RequestId, None] = {}
        self._tries: dict[RequestId, int] = {}
        self.fates = Fates()

    def play(self, told: Told) -> None:
        """From the first record to the last."""
        for number, (at, event, _) in enumerate(self._journal.records, 1):
            self._catch_up(at)
            self._take(event, at)
            if number % TELL_EVERY == 0:
                told(number)

    def _catch_up(self, at: float) -> None:
        """Let happen what was scheduled before ``at``, and what alarms were due and not recorded."""
        while True:
            scheduled_at = self._heap[0][0] if self._heap else at
            wake_at = self._controller.next_wake_at()
            if wake_at is not None and wake_at + _LATE_S < min(scheduled_at, at):
                self._handle(Woken(), wake_at + _LATE_S)
                again_at = self._controller.next_wake_at()
                if again_at is not None and again_at <= wake_at:
                    return
            elif self._heap and scheduled_at < at:
                moment, _, token, event = heapq.heappop(self._heap)
                running = self._running.get(event.request_id)
                if running is not None and running.token == token:
                    self._handle(event, moment)
            else:
                return

    def _take(self, event: Event | Reconfigured, at: float) -> None:
        match event:
            case RequestArrived():
                tier = self._config.tiers.get(event.request.tier)
                request = event.request if tier is None else replace(event.request, rank=tier.rank)
                self._handle(RequestArrived(request), at)
            case FirstTokenSeen() | PermitEnded() | AttemptFailed():
                running = self._running.get(event.request_id)
                if running is not None and running.recorded is not None and _is_of(running.recorded, event, at):
                    self._take_recorded(event, running, running.recorded, at)
            case RequestAbandoned():
                if event.request_id in self._waiting:
                    self._handle(event, at)
                elif event.request_id in self._running:
                    self._handle(PermitEnded(event.request_id, PermitEnding.IGNORED), at)
            case Reconfigured():
                self._config = self._change(event.config)
                self._handle(Reconfigured(self._config), at)
            case _:
                self._handle(event, at)

    def _take_recorded(
        self, event: FirstTokenSeen | PermitEnded | AttemptFailed, running: _Running, recorded: _Attempt, at: float
    ) -> None:
        """Go on as recorded, unless it ended there by an order that was not given here: then it is taken to serve."""
        if isinstance(event, FirstTokenSeen) or recorded.revoked_at is None or running.revoked:
            self._handle(event, at)
            return
        running.recorded = None
        _, whole_s = self._lives.mean(self.fates.by_id[event.request_id].request.tier)
        if not running.first_seen:
            self._handle(FirstTokenSeen(event.request_id), at)
        end = PermitEnded(event.request_id, PermitEnding.SERVED)
        self._push(max(at, recorded.dispatched_at + whole_s), running.token, end)

    def _handle(self, event: Event | Reconfigured, at: float) -> None:
        match event:
            case RequestArrived():
                self._waiting[event.request.request_id] = None
            case RequestAbandoned():
                self._waiting.pop(event.request_id, None)
            case PermitEnded():
                self._running.pop(event.request_id, None)
            case AttemptFailed():
                self._running.pop(event.request_id, None)
                self._waiting[event.request_id] = None
            case FirstTokenSeen():
                self._running[event.request_id].first_seen = True
            case _:
                pass
        commands = self._controller.handle(event, at)
        self.fates.observe(at, event, commands)
        revoked: list[RequestId] = []
        for command in commands:
            match command:
                case Dispatch():
                    self._waiting.pop(command.request_id, None)
                    self._dispatched(command, at)
                case Refuse():
                    self._waiting.pop(command.request_id, None)
                case Revoke():
                    revoked.append(command.request_id)
                case _:
                    pass
        for request_id in revoked:
            self._revoked(request_id, at)

    def _dispatched(self, command: Dispatch, at: float) -> None:
        request_id = command.request_id
        number = self._tries[request_id] = self._tries.get(request_id, 0) + 1
        attempts = self._lives.attempts.get(request_id, [])
        known = attempts[number - 1] if number <= len(attempts) else None
        attempt = _Attempt(command.worker_id, at)
        same = known is not None and known.dispatched_at == at and known.worker_id == command.worker_id
        running = self._running[request_id] = _Running(attempt, known if same else None, next(self._order))
        if not same:
            self._schedule(command, known, running, at)

    def _schedule(self, command: Dispatch, known: _Attempt | None, running: _Running, at: float) -> None:
        """Foresee the attempt that nobody recorded; the moments of one that was are moved to its dispatch."""
        request_id = command.request_id
        first_s, whole_s = self._lives.mean(self.fates.by_id[request_id].request.tier)
        end: PermitEnded | AttemptFailed = PermitEnded(request_id, PermitEnding.SERVED)
        if known is not None and known.end is not None and known.ended_at is not None and known.revoked_at is None:
            elsewhere = isinstance(known.end, AttemptFailed) and known.worker_id != command.worker_id
            if not elsewhere:  # a failure is the worker's: another one is taken to serve
                end, whole_s = known.end, known.ended_at - known.dispatched_at
                first_s = whole_s if known.first_token_at is None else known.first_token_at - known.dispatched_at
                if known.first_token_at is None:
                    first_s = -1.0
        if first_s >= 0.0:
            self._push(at + first_s, running.token, FirstTokenSeen(request_id))
        self._push(at + whole_s, running.token, end)

    def _push(self, at: float, token: int, event: FirstTokenSeen | PermitEnded | AttemptFailed) -> None:
        heapq.heappush(self._heap, (at, next(self._order), token, event))

    def _revoked(self, request_id: RequestId, at: float) -> None:
        """What the shell does at once; what was recorded in step follows from the record."""
        running = self._running.get(request_id)
        if running is None:
            return
        running.revoked = True
        if running.recorded is not None and running.recorded.revoked_at == at:
            return
        if running.first_seen:
            self._handle(PermitEnded(request_id, PermitEnding.DROPPED), at)
        else:
            self._handle(AttemptFailed(request_id, FailureCause.REVOKED), at)


def _is_of(attempt: _Attempt, event: FirstTokenSeen | PermitEnded | AttemptFailed, at: float) -> bool:
    """Whether this recorded event belongs to this recorded attempt."""
    return attempt.dispatched_at <= at and (attempt.ended_at is None or at <= attempt.ended_at)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same arrivals under two policies."""

    recorded: Mapping[RequestId, Fate]
    other: Mapping[RequestId, Fate]

    def changed(self) -> list[tuple[Fate, Fate]]:
        """Requests with another ending, in the order in which they arrived."""
        pairs = [(fate, self.other[request_id]) for request_id, fate in self.recorded.items()]
        return [(before, after) for before, after in pairs if before.outcome != after.outcome]


def compare(journal: Journal, change: Change, told: Told = tell_nobody) -> Comparison:
    """What would have been decided under another policy; raises as :func:`replay` does."""
    if journal.dropped:
        raise ValueError(f"{journal.dropped} events are missing from the journal")
    recorded = Fates()
    for record in journal.records:
        recorded.observe(*record)
    other = _OtherHistory(journal, change)
    other.play(told)
    return Comparison(recorded.by_id, other.fates.by_id)
