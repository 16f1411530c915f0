"""Controllers with one fault each, to show that the state machine and its referee would find it."""

from dataclasses import replace

from service.domain.command import Dispatch, Refuse
from service.domain.event import (
    AttemptFailed,
    DrainBegan,
    FailureCause,
    FirstTokenSeen,
    PermitEnded,
    RequestArrived,
    WorkerDrainChanged,
    WorkerHealthChanged,
    WorkerLeft,
    WorkerLoadSeen,
)
from service.flow import admission, controller, turns
from service.flow.alarms import Alarms
from service.flow.band import is_guaranteed
from service.flow.config import Reconfigured
from service.flow.controller import FlowController
from service.flow.shedding import WasteBudget
from service.flow.waiting import NOWHERE


class ForgetsRelease(FlowController):
    """The worker goes on counting a request that ended."""

    def handle(self, event, now):
        worker = None
        if isinstance(event, PermitEnded):
            worker = self._state.ledger.workers[self._state.ledger.running[event.request_id].permit.worker_id]
        out = super().handle(event, now)
        if worker is not None and worker.listed:
            worker.held[event.request_id] = None
        return out


class SendsToTheSick(FlowController):
    """Health is ignored."""

    def handle(self, event, now):
        out = super().handle(event, now)
        for worker in self._state.ledger.workers.values():
            if worker.listed and not worker.draining and worker not in self._state.ledger.usable:
                worker.healthy = True
                self._state.ledger.usable.append(worker)
        return out


class SendsToTheDraining(FlowController):
    """A drain of a worker is ignored."""

    def handle(self, event, now):
        return [] if isinstance(event, WorkerDrainChanged) else super().handle(event, now)


class SendsToTheDeparted(FlowController):
    """A worker that left is kept."""

    def handle(self, event, now):
        if isinstance(event, WorkerLeft):
            self._state.ledger.worker(event.worker_id)
            return []
        return super().handle(event, now)


class SkipsThePump(FlowController):
    """Room made by an ending is not given to who waits."""

    def _pump(self, hint, now):
        if hint is None:
            super()._pump(hint, now)


class QueuesBehindTheChoosy(FlowController):
    """An ordinary arrival waits because a choosy request does, though a worker has room."""

    def __init__(self, config, chance):
        super().__init__(config, chance)
        self._state.room.is_dearest = lambda band: not self._state.room.size


class LosesTheExpired(FlowController):
    """Who expires is taken out and never answered."""

    def _pump(self, hint, now):
        self._state.room.take_expired(now)
        super()._pump(hint, now)


class NeverExpires(FlowController):
    """Nobody is taken out at the deadline."""

    def __init__(self, config, chance):
        super().__init__(config, chance)
        self._state.room.take_expired = lambda now: []


class ExpiresEarly(FlowController):
    """Who would expire within the second is taken out before."""

    def __init__(self, config, chance):
        super().__init__(config, chance)
        take = self._state.room.take_expired
        self._state.room.take_expired = lambda now: take(now + 1.0)


class WakesLate(FlowController):
    """The wake is asked for after the deadline."""

    def next_wake_at(self):
        wake_at = super().next_wake_at()
        return None if wake_at is None else wake_at + 0.1


class NeverSleeps(FlowController):
    """While somebody waits, a wake is always due."""

    def next_wake_at(self):
        return -1.0 if self._state.room.size else None


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

    def _refuse(self, request_id, outcome, wait_s, grounds=None, told=False):
        super()._refuse(request_id, outcome, wait_s, grounds, told)
        self._out.append(self._out[-1])


class GrantsTwice(FlowController):
    """A request that runs is sent out again."""

    def handle(self, event, now):
        out = super().handle(event, now)
        if isinstance(event, FirstTokenSeen):
            permit = self._state.ledger.running[event.request_id].permit
            out.append(Dispatch(event.request_id, permit.worker_id, permit.attempt + 1))
        return out


class ExceedsTheLimit(FlowController):
    """One permit more than the worker can carry."""

    def _arrived(self, event, now):
        for worker in self._state.ledger.usable:
            worker.permits += 1
        super()._arrived(event, now)
        self._state.ledger.sort_out(self._state.config.requests_per_worker)


class CountsTokensTwice(FlowController):
    """The tokens of a retried request are never given back."""

    def handle(self, event, now):
        if isinstance(event, AttemptFailed):
            self._state.room.tokens += 1
        return super().handle(event, now)


class TriesOnceMore(FlowController):
    """One attempt more than allowed."""

    def _attempt_failed(self, event, now):
        self._state.ledger.running[event.request_id].entry.attempt -= 1
        super()._attempt_failed(event, now)


class ReturnsToTheFailed(FlowController):
    """Forgets on which worker a request failed."""

    def _wait_again(self, entry, attempt, failed_on, revoked, now):
        super()._wait_again(entry, attempt, NOWHERE, revoked, now)


class RemembersOnlyTheLastFailure(FlowController):
    """Forgets all workers on which a request failed but the last."""

    def _attempt_failed(self, event, now):
        self._state.ledger.running[event.request_id].entry.failed_on = NOWHERE
        super()._attempt_failed(event, now)


class SpendsWithoutBudget(FlowController):
    """Retries are never paid for."""

    def _attempt_failed(self, event, now):
        self._state.budget.left = 10.0
        super()._attempt_failed(event, now)


class RetriesTimeouts(FlowController):
    """A timeout is taken for a broken connection."""

    def handle(self, event, now):
        if isinstance(event, AttemptFailed) and event.cause is FailureCause.TIMEOUT:
            event = AttemptFailed(event.request_id, FailureCause.BROKEN, event.retry_after_s)
        return super().handle(event, now)


class LeavesThePinned(FlowController):
    """A pinned request goes anywhere."""

    def _arrived(self, event, now):
        if event.request.pinned_to in self._state.ledger.workers:
            event = RequestArrived(replace(event.request, pinned_to=None))
        super()._arrived(event, now)


class AdmitsWhileDraining(FlowController):
    """The drain of the gateway is ignored."""

    def handle(self, event, now):
        return [] if isinstance(event, DrainBegan) else super().handle(event, now)


class KeepsTheSickBusy(FlowController):
    """Nothing is taken back from a worker that got sick."""

    def handle(self, event, now):
        out = super().handle(event, now)
        return [] if isinstance(event, WorkerHealthChanged) and not event.healthy else out


class RevokesTwice(FlowController):
    """Takes a request back each time its worker is said to be sick."""

    def _health_changed(self, event):
        for running in self._state.ledger.running.values():
            running.revoked = False
        super()._health_changed(event)


class AdvisesForever(FlowController):
    """Advice is not capped."""

    def _refuse(self, request_id, outcome, wait_s, grounds=None, told=False):
        super()._refuse(request_id, outcome, wait_s, grounds, told)
        last = self._out[-1]
        if last.retry_after_s is not None:
            self._out[-1] = Refuse(request_id, outcome, last.retry_after_s + 100.0, grounds)


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
            self._state.config = event.config
            self._state.ledger.sort_out(self._state.config.requests_per_worker)
            return []
        return super().handle(event, now)


class FlipsItsOwnCoin(FlowController):
    """Every second instance orders otherwise than the first: chance that is not passed in."""

    instances = 0

    def __init__(self, config, chance):
        FlipsItsOwnCoin.instances += 1
        super().__init__(config, chance)
        self._odd = FlipsItsOwnCoin.instances % 2 == 1

    def _refuse(self, request_id, outcome, wait_s, grounds=None, told=False):
        super()._refuse(request_id, outcome, 1.0 if self._odd else wait_s, grounds, told)


class Policy(FlowController):
    """Swaps rules of the flow for its own while it handles an event: ``rules`` are (module, name, rule)."""

    rules = ()

    def handle(self, event, now):
        kept = [(module, name, getattr(module, name)) for module, name, _ in self.rules]
        for module, name, rule in self.rules:
            setattr(module, name, rule)
        try:
            return super().handle(event, now)
        finally:
            for module, name, rule in kept:
                setattr(module, name, rule)


def floor_for_everybody(state, now):
    """Whoever is beyond contracts comes first."""
    for band, queue in state.room.bands():
        if not is_guaranteed(band):
            return queue.next(now)
    return None


class PutsExcessFirst(Policy):
    """I6: the floor is not earned."""

    rules = ((turns, "choose_floor", floor_for_everybody),)


class CheapestFirst(Policy):
    """I6: bands are served from the cheapest up."""

    def handle(self, event, now):
        room = self._state.room
        room._order = sorted(room._bands, reverse=not isinstance(event, RequestArrived))
        return super().handle(event, now)


class SendsTheLate(FlowController):
    """I4: what has given up is sent all the same."""

    def _pump(self, hint, now):
        take = self._state.room.take_expired
        self._state.room.take_expired = lambda now: []
        super()._pump(hint, now)
        self._state.room.take_expired = take
        super()._pump(hint, now)


class SendsTheLateReturner(FlowController):
    """I4: what comes back from a worker has all the patience in the world."""

    def _wait_again(self, entry, attempt, failed_on, revoked, now):
        request = entry.request
        entry.request = replace(request, deadline_at=request.deadline_at + 100.0)
        super()._wait_again(entry, attempt, failed_on, revoked, now)


class KeepsExcessInTheQueue(Policy):
    """I5: nobody makes room for a promise in a full queue."""

    rules = (
        (
            admission,
            "is_full",
            lambda state, entry: (
                state.room.size >= state.config.queued_requests_max
                or state.room.tokens + entry.estimate.prompt_tokens > state.config.queued_tokens_max
            ),
        ),
    )


class TakesNothingBack(Policy):
    """I5: a promise is refused while others run."""

    rules = ((controller, "revoke_for", lambda *_: []),)


class ForgetsTimeMakesPlaces(FlowController):
    """I8: nobody looks again when a worker has read its prompts."""

    def __init__(self, config, chance):
        super().__init__(config, chance)
        self._state.alarms = Deaf()


class Deaf(Alarms):
    def note_again(self, at):
        pass


class TakesBackAgain(FlowController):
    """I13: what was taken back once may be taken back again."""

    def _wait_again(self, entry, attempt, failed_on, revoked, now):
        super()._wait_again(entry, attempt, failed_on, 0, now)


def find_at_home_only(state, queue, hint, sent, now):
    """Nobody who waits for a worker may go to an idle one."""
    for home in queue.homes if hint is None else (hint.worker_id,):
        entry = queue.homes.first(home)
        place = None if entry is None else turns.find_place(state, entry, state.ledger.workers.get(home), now)
        if place is not None:
            return entry, place
    return None


class LetsIdleWorkersBe(Policy):
    """I3: who stands aside is forgotten by all but its home."""

    rules = ((turns, "_find_at_home", find_at_home_only),)


class WastesWithoutEnd(FlowController):
    """I13: no bound to what is thrown away."""

    def __init__(self, config, chance):
        super().__init__(config, chance)
        self._waste = Spendthrift()


class Spendthrift(WasteBudget):
    def allows(self, tokens, ratio):
        return True


class TouchesAWorkerOnRefusal(FlowController):
    """I14: a refusal leaves a trace on a worker."""

    def _refuse(self, request_id, outcome, wait_s, grounds=None, told=False):
        super()._refuse(request_id, outcome, wait_s, grounds, told)
        for worker in self._state.ledger.usable:
            worker.backlog_tokens += 1


class BelievesStaleLoads(FlowController):
    """I17: a reading of long ago is taken for one of now."""

    def handle(self, event, now):
        if isinstance(event, WorkerLoadSeen):
            event = WorkerLoadSeen(event.worker_id, replace(event.load, observed_at=now))
        return super().handle(event, now)


class GrowsUntold(FlowController):
    """I17: a reading without figures is taken for a quiet worker."""

    def handle(self, event, now):
        if isinstance(event, WorkerLoadSeen):
            load = event.load
            running, waiting = load.running_requests or 0, load.waiting_requests or 0
            event = WorkerLoadSeen(event.worker_id, replace(load, running_requests=running, waiting_requests=waiting))
        return super().handle(event, now)


class LosesAPromise(FlowController):
    """I2: the pace that was promised to somebody is forgotten when the answer begins."""

    def _first_token(self, event, now):
        running = self._state.ledger.running[event.request_id]
        if running.first_token_at is None:
            self._state.ledger.workers[running.permit.worker_id].promises.clear()
        super()._first_token(event, now)


class CountsDecodingTwice(FlowController):
    """I2: an answer that begins is counted twice."""

    def _first_token(self, event, now):
        super()._first_token(event, now)
        running = self._state.ledger.running.get(event.request_id)
        if running is not None:
            self._state.ledger.workers[running.permit.worker_id].decoding += 1


MUTANTS: dict[type[FlowController], str] = {
    ForgetsRelease: "permits on . and books differ",
    SendsToTheSick: "sick, draining or left|permits differ",
    SendsToTheDraining: "sick, draining or left|permits differ",
    SendsToTheDeparted: "permits differ|a worker that is not there|sick, draining or left|workers and books differ",
    SkipsThePump: "has room and r[0-9]+ waits|time makes a place and the wake comes later",
    LetsIdleWorkersBe: "has room and r[0-9]+ waits|time makes a place and the wake comes later",
    QueuesBehindTheChoosy: "has room and r[0-9]+ waits|time makes a place and the wake comes later",
    LosesTheExpired: "queue and books differ",
    NeverExpires: "wants to be woken again",
    ExpiresEarly: "evicted before its deadline",
    WakesLate: "the wake comes after a deadline|waits past its deadline",
    NeverSleeps: "wants to be woken again",
    WakesForNobody: "nobody waits and a wake is asked for",
    ForgetsTheArrival: "no answer to r[0-9]+",
    RefusesTwice: "ended twice",
    GrantsTwice: "gets a second permit",
    ExceedsTheLimit: "above its limit|grounds and books differ",
    CountsTokensTwice: "queued tokens and books differ",
    TriesOnceMore: "too many attempts|attempts are counted wrongly",
    ReturnsToTheFailed: "books differ|returns to the worker on which it failed",
    RemembersOnlyTheLastFailure: "returns to the worker on which it failed",
    SpendsWithoutBudget: "retry budget overdrawn",
    RetriesTimeouts: "is tried again",
    LeavesThePinned: "choosy and books differ|sent away from its worker",
    AdmitsWhileDraining: "admitted while draining|draining",
    KeepsTheSickBusy: "not taken back from the sick worker",
    RevokesTwice: "is taken back twice|attempts are counted wrongly",
    AdvisesForever: "advice out of bounds",
    RestsForever: "rests without end",
    ForgetsRests: "has room and r[0-9]+ waits|time makes a place and the wake comes later",
    IgnoresGrowth: "has room and r[0-9]+ waits|time makes a place and the wake comes later",
    FlipsItsOwnCoin: "the same history, other commands",
    PutsExcessFirst: "beyond contract goes before promised work",
    CheapestFirst: "a cheaper promise goes first|beyond contract goes before|floor is kept",
    SendsTheLate: "sent after it gave up",
    SendsTheLateReturner: "sent after it gave up|waits past its deadline|the wake comes after a deadline",
    KeepsExcessInTheQueue: "a promise is refused while others wait",
    TakesNothingBack: "has room and|a promise is refused while others run",
    ForgetsTimeMakesPlaces: "no wake is asked for|time makes a place and the wake comes later",
    TakesBackAgain: "is taken back a second time|what may be taken back and books differ",
    WastesWithoutEnd: "more is wasted than may be",
    TouchesAWorkerOnRefusal: "prompt tokens on a worker and books differ",
    BelievesStaleLoads: "granted more by a stale reading|on the word of yesterday",
    GrowsUntold: "granted more without being told",
    LosesAPromise: "promises and books differ",
    CountsDecodingTwice: "decoding and books differ",
}
"""Each mutant with what the referee says when it finds the fault."""
