"""Controllers with one fault each, to show that the state machine and its referee would find it."""

from service.domain.command import Dispatch, Refuse, Revoke
from service.domain.event import (
    AttemptFailed,
    DrainBegan,
    FailureCause,
    FirstTokenSeen,
    PermitEnded,
    RequestArrived,
    WorkerDrainChanged,
    WorkerLeft,
)
from service.flow.config import Reconfigured
from service.flow.controller import FlowController
from service.flow.queue import NOWHERE, Waiting


class ForgetsRelease(FlowController):
    """The worker goes on counting a request that ended."""

    def handle(self, event, now):
        worker = None
        if isinstance(event, PermitEnded):
            worker = self._ledger.workers[self._ledger.running[event.request_id].permit.worker_id]
        out = super().handle(event, now)
        if worker is not None and worker.listed:
            worker.held[event.request_id] = None
        return out


class SendsToTheSick(FlowController):
    """Health is ignored."""

    def _pick(self, entry, now):
        limit = self._config.requests_per_worker
        for worker in self._ledger.workers.values():
            if worker.in_flight < limit and worker.listed and not worker.draining and not entry.choosy:
                return worker
        return super()._pick(entry, now)


class SendsToTheDraining(FlowController):
    """A drain of a worker is ignored."""

    def handle(self, event, now):
        return [] if isinstance(event, WorkerDrainChanged) else super().handle(event, now)


class SendsToTheDeparted(FlowController):
    """A worker that left is kept."""

    def handle(self, event, now):
        if isinstance(event, WorkerLeft):
            self._ledger.worker(event.worker_id)
            return []
        return super().handle(event, now)


class SkipsThePump(FlowController):
    """Room made by an ending is not given to who waits."""

    def _pump(self, hint, now):
        if hint is None:
            super()._pump(hint, now)


class QueuesBehindTheChoosy(FlowController):
    """An ordinary arrival waits because a choosy request does, though a worker has room."""

    def _arrived(self, event, now):
        has_ordinary = self._queue.has_ordinary
        self._queue.has_ordinary = lambda: bool(self._queue.size)
        super()._arrived(event, now)
        self._queue.has_ordinary = has_ordinary


class LosesTheExpired(FlowController):
    """Who expires is taken out and never answered."""

    def _pump(self, hint, now):
        self._queue.take_expired(now)
        super()._pump(hint, now)


class NeverExpires(FlowController):
    """Nobody is taken out at the deadline."""

    def __init__(self, config, chance):
        super().__init__(config, chance)
        self._queue.take_expired = lambda now: []


class ExpiresEarly(FlowController):
    """Who would expire within the second is taken out before."""

    def __init__(self, config, chance):
        super().__init__(config, chance)
        take = self._queue.take_expired
        self._queue.take_expired = lambda now: take(now + 1.0)


class WakesLate(FlowController):
    """The wake is asked for after the deadline."""

    def next_wake_at(self):
        wake_at = super().next_wake_at()
        return None if wake_at is None else wake_at + 0.1


class NeverSleeps(FlowController):
    """While somebody waits, a wake is always due."""

    def next_wake_at(self):
        return -1.0 if self._queue.size else None


class WakesForNobody(FlowController):
    """Asks for a wake while nobody waits."""

    def next_wake_at(self):
        return super().next_wake_at() or 1e9


class ForgetsTheArrival(FlowController):
    """An arrival that may not wait gets no answer."""

    def handle(self, event, now):
        out = super().handle(event, now)
        return [] if isinstance(event, RequestArrived) and isinstance(out[0], Refuse) else out


class RefusesTwice(FlowController):
    """A refusal is given twice."""

    def _refuse(self, request_id, outcome, wait_s):
        super()._refuse(request_id, outcome, wait_s)
        self._out.append(self._out[-1])


class GrantsTwice(FlowController):
    """A request that runs is sent out again."""

    def handle(self, event, now):
        out = super().handle(event, now)
        if isinstance(event, FirstTokenSeen):
            permit = self._ledger.running[event.request_id].permit
            out.append(Dispatch(event.request_id, permit.worker_id, permit.attempt + 1))
        return out


class ExceedsTheLimit(FlowController):
    """One permit more than allowed."""

    def _pick(self, entry, now):
        if not entry.choosy:
            for worker in self._ledger.usable:
                if worker.in_flight == self._config.requests_per_worker:
                    return worker
        return super()._pick(entry, now)


class CountsTokensTwice(FlowController):
    """The tokens of a retried request are never given back."""

    def handle(self, event, now):
        if isinstance(event, AttemptFailed):
            self._queue._tokens += 1
        return super().handle(event, now)


class TriesOnceMore(FlowController):
    """One attempt more than allowed."""

    def _attempt_failed(self, event, now):
        running = self._ledger.running[event.request_id]
        attempt = running.permit.attempt
        object.__setattr__(running.permit, "attempt", attempt - 1)
        super()._attempt_failed(event, now)


class ReturnsToTheFailed(FlowController):
    """Forgets on which worker a request failed."""

    def _pick(self, entry, now):
        fresh = Waiting(entry.request, entry.prompt_tokens, entry.attempt, NOWHERE)
        return super()._pick(fresh, now)


class RemembersOnlyTheLastFailure(FlowController):
    """Forgets all workers on which a request failed but the last."""

    def _attempt_failed(self, event, now):
        self._ledger.running[event.request_id].failed_on = NOWHERE
        super()._attempt_failed(event, now)


class SpendsWithoutBudget(FlowController):
    """Retries are never paid for."""

    def _attempt_failed(self, event, now):
        self._budget.left = 10.0
        super()._attempt_failed(event, now)


class RetriesTimeouts(FlowController):
    """A timeout is taken for a broken connection."""

    def handle(self, event, now):
        if isinstance(event, AttemptFailed) and event.cause is FailureCause.TIMEOUT:
            event = AttemptFailed(event.request_id, FailureCause.BROKEN, event.retry_after_s)
        return super().handle(event, now)


class LeavesThePinned(FlowController):
    """A pinned request goes anywhere."""

    def _pick(self, entry, now):
        if entry.request.pinned_to is None:
            return super()._pick(entry, now)
        usable = [worker for worker in self._ledger.usable if not worker.held and worker.breaker.open_until is None]
        return usable[0] if usable else None


class AdmitsWhileDraining(FlowController):
    """The drain of the gateway is ignored."""

    def handle(self, event, now):
        return [] if isinstance(event, DrainBegan) else super().handle(event, now)


class KeepsTheSickBusy(FlowController):
    """Nothing is taken back from a worker that got sick."""

    def handle(self, event, now):
        return [command for command in super().handle(event, now) if not isinstance(command, Revoke)]


class RevokesTwice(FlowController):
    """Takes a request back each time its worker is said to be sick."""

    def _health_changed(self, event):
        for running in self._ledger.running.values():
            running.revoked = False
        super()._health_changed(event)


class AdvisesForever(FlowController):
    """Advice is not capped."""

    def _refuse(self, request_id, outcome, wait_s):
        super()._refuse(request_id, outcome, wait_s)
        last = self._out[-1]
        if last.retry_after_s is not None:
            self._out[-1] = Refuse(request_id, outcome, last.retry_after_s + 100.0)


class RestsForever(FlowController):
    """A breaker once open never closes."""

    def _note_rest(self, worker, now):
        if worker.breaker.open_until is not None:
            worker.breaker.open_until = 1e12
        super()._note_rest(worker, now)


class ForgetsRests(FlowController):
    """Asks for no wake when a worker's rest ends."""

    def _note_rest(self, worker, now):
        pass


class IgnoresGrowth(FlowController):
    """A larger limit is not used before the next event."""

    def handle(self, event, now):
        if isinstance(event, Reconfigured):
            self._config = event.config
            return []
        return super().handle(event, now)


class FlipsItsOwnCoin(FlowController):
    """Every second instance orders otherwise than the first: chance that is not passed in."""

    instances = 0

    def __init__(self, config, chance):
        FlipsItsOwnCoin.instances += 1
        super().__init__(config, chance)
        self._odd = FlipsItsOwnCoin.instances % 2 == 1

    def _refuse(self, request_id, outcome, wait_s):
        super()._refuse(request_id, outcome, 1.0 if self._odd else wait_s)


MUTANTS: dict[type[FlowController], str] = {
    ForgetsRelease: "permits on . and books differ",
    SendsToTheSick: "sick, draining or left",
    SendsToTheDraining: "sick, draining or left",
    SendsToTheDeparted: "a worker that is not there|sick, draining or left|workers and books differ",
    SkipsThePump: "has room and r[0-9]+ waits",
    QueuesBehindTheChoosy: "has room and r[0-9]+ waits",
    LosesTheExpired: "queue and books differ",
    NeverExpires: "wants to be woken again",
    ExpiresEarly: "evicted before its deadline",
    WakesLate: "the wake comes after a deadline|waits past its deadline",
    NeverSleeps: "wants to be woken again",
    WakesForNobody: "nobody waits and a wake is asked for",
    ForgetsTheArrival: "no answer to r[0-9]+",
    RefusesTwice: "ended twice",
    GrantsTwice: "gets a second permit",
    ExceedsTheLimit: "above its limit",
    CountsTokensTwice: "queued tokens and books differ",
    TriesOnceMore: "too many attempts|attempts are counted wrongly",
    ReturnsToTheFailed: "returns to the worker on which it failed",
    RemembersOnlyTheLastFailure: "returns to the worker on which it failed",
    SpendsWithoutBudget: "retry budget overdrawn",
    RetriesTimeouts: "is tried again",
    LeavesThePinned: "sent away from its worker",
    AdmitsWhileDraining: "admitted while draining|draining",
    KeepsTheSickBusy: "not taken back from the sick worker",
    RevokesTwice: "is taken back twice",
    AdvisesForever: "advice out of bounds",
    RestsForever: "rests without end",
    ForgetsRests: "has room and r[0-9]+ waits",
    IgnoresGrowth: "has room and r[0-9]+ waits",
    FlipsItsOwnCoin: "the same history, other commands",
}
"""Each mutant with what the referee says when it finds the fault."""
