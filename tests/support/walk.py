"""A random walk over journeys: the real core, driver, relay and dialect between clients and workers made of nothing.

Every step is something that may happen at that moment in any order: a piece of an answer, a failure, a client that
leaves, time, an order of the core, a fault of our own. The clients and calls check what they are told.
"""

import contextlib
import logging
import random

from service.domain.event import (
    DrainBegan,
    FailureCause,
    WorkerDrainChanged,
    WorkerHealthChanged,
    WorkerJoined,
    WorkerLeft,
)
from service.domain.request import Request
from service.domain.units import RequestId, TenantId, TierName, WorkerId
from service.flow.config import BreakerConfig, FlowConfig
from service.flow.controller import FlowController
from service.gateway.responses import OPENAI
from service.runtime.account import Accounts, Settlement
from service.runtime.driver import Driver
from service.runtime.journey import Journey, Outbound, Road
from service.runtime.limits import RelayConfig
from tests.support.loop import FakeLoop
from tests.support.scripted_worker import ABORT, ROLE, STOP, USAGE, event, token

SSE = [(b"content-type", b"text/event-stream")]
JSON = [(b"content-type", b"application/json")]
PIECES = [
    event(ROLE), event(token()), event(token()), event(STOP), event(USAGE), event(ABORT), event("[DONE]"),
    event({"error": {"message": "dead"}}), event(token())[:20], event(token())[20:], b": comment\n\n",
    event(token()) * 3, b"not an event", b'{"usage":{"prompt_tokens":1,"completion_tokens":2}}', b"y" * 400,
]  # fmt: skip
CAUSES = (FailureCause.UNREACHABLE, FailureCause.BROKEN, FailureCause.FAULTY)


class BrokenError(AssertionError):
    """An invariant does not hold."""


def insist(condition, what):
    if not condition:
        raise BrokenError(what)


class InjectedError(RuntimeError):
    """A fault of our own, made on purpose."""


class Client:
    """Checks the order of what it is told."""

    def __init__(self, walk):
        self.walk = walk
        self.gone = self.begun = self.over = self.paused = False
        self.body = b""

    def trip(self):
        if self.walk.chance.random() < self.walk.faults:
            raise InjectedError

    def begin(self, status, headers, length):
        self.note(not self.begun, "begun twice")
        self.note(not self.over, "begun after the end")
        self.trip()
        self.begun = True

    def write(self, data):
        self.note(self.begun, "written before it began")
        self.note(not self.over, "written after the end")
        self.trip()
        self.body += data

    def finish(self):
        self.note(self.begun, "finished before it began")
        self.note(not self.over, "finished twice")
        self.over = True

    def cut(self):
        self.over = True

    def release(self):
        pass

    def note(self, condition, what):
        if not condition:
            self.walk.broken.append(what)


class Call:
    """One request at a worker; the walk speaks to its sink until it is over."""

    def __init__(self, sink, stream):
        self.sink = sink
        self.stream = stream
        self.over = self.headed = False

    def abort(self):
        self.over = True

    def pause(self):
        pass

    def resume(self):
        pass


class Walk:
    """``seed`` decides all; ``faults`` is how often our own code fails."""

    def __init__(self, seed, faults=0.0):
        self.chance = random.Random(seed)
        self.faults = faults
        self.loop = FakeLoop()
        breaker = BreakerConfig(open_s=0.5, busy_rest_s=0.25)
        flow = FlowConfig(requests_per_worker=2, queued_requests_max=6, breaker=breaker)
        self.driver = Driver(FlowController(flow, random.Random(seed)), self.loop, self.loop)
        self.calls = []
        self.journeys = []
        self.settled = []
        self.broken = []
        limits = RelayConfig(2.0, 1.0, 3.0, 1.0, 0.5, 0.25, 0.1, 300)
        accounts = Accounts([self])
        self.road = Road(self.driver, self, accounts, self.loop, self.loop.call_later, limits, lambda worker: b"w")
        self.workers = ["a", "b"]
        for name in self.workers:
            self.driver.submit(WorkerJoined(WorkerId(name)))
            self.driver.submit(WorkerHealthChanged(WorkerId(name), True))

    def settle(self, settlement):
        self.settled.append(settlement)

    def open(self, worker_id, target, headers, body, sink):
        call = Call(sink, sink._traveller.stream)
        self.calls.append(call)
        if self.chance.random() < self.faults:
            call.over = True
            raise InjectedError
        return call

    # ---------------------------------------------------------------- steps

    def arrive(self):
        name = RequestId(f"r{len(self.journeys)}")
        stream = self.chance.random() < 0.7
        now = self.loop.moment
        settlement = Settlement(name, "chat", now)
        settlement.stream = stream
        request = Request(name, TenantId("t"), TierName("x"), 0, 10, None, stream, now, now + 1.5)
        client = Client(self)
        out = Outbound(b"POST /", b"", (b"{}",), self.chance.random() < 0.5)
        journey = Journey(self.road, request, out, client, OPENAI, b"", settlement)
        self.journeys.append((journey, client))
        self.guarded(journey, journey.start)

    def guarded(self, journey, step):
        """As the corridor does."""
        try:
            step()
        except InjectedError:
            with contextlib.suppress(InjectedError):
                journey.on_fault()

    def answer(self):
        """A worker says the next thing."""
        live = [call for call in self.calls if not call.over]
        if not live:
            return
        call = self.chance.choice(live)
        sink = call.sink
        try:
            if not call.headed:
                call.headed = True
                status = self.chance.choices([200, 503, 500, 400], [8, 1, 1, 1])[0]
                sink.on_head(status, SSE if call.stream and status == 200 else JSON)
            elif self.chance.random() < 0.75:
                sink.on_body(self.chance.choice(PIECES))
            else:
                self.end(call)
        except InjectedError as error:
            call.over = True
            sink.on_fault(error)

    def end(self, call):
        call.over = True
        if self.chance.random() < 0.6:
            call.sink.on_end()
        else:
            call.sink.on_failure(self.chance.choice(CAUSES[1:]))

    def refuse_connection(self):
        fresh = [call for call in self.calls if not call.over and not call.headed]
        if fresh:
            call = self.chance.choice(fresh)
            call.over = True
            call.sink.on_failure(self.chance.choice(CAUSES))

    def client(self):
        """A client leaves, stops reading or reads again."""
        live = [(journey, client) for journey, client in self.journeys if not client.over and not client.gone]
        if not live:
            return
        journey, client = self.chance.choice(live)
        if self.chance.random() < 0.3:
            client.gone = True
            journey.on_client_gone()
            insist(journey.settlement.outcome is not None, "it goes on for nobody")
        elif client.paused:
            client.paused = False
            journey.on_client_ready()
        else:
            client.paused = True
            journey.on_client_paused()

    def time(self):
        self.loop.run(self.loop.moment + self.chance.choice([0.01, 0.1, 0.3, 1.0]))
        self.driver.sweep()

    def workers_change(self):
        name = WorkerId(self.chance.choice(self.workers))
        what = self.chance.random()
        known = {worker.worker_id for worker in self.driver.stats().workers}
        if what < 0.3 and name in known:
            self.driver.submit(WorkerHealthChanged(name, False))
        elif what < 0.4 and name in known:
            self.driver.submit(WorkerLeft(name))
        elif what < 0.5 and name in known:
            self.driver.submit(WorkerDrainChanged(name, self.chance.random() < 0.5))
        else:
            self.driver.submit(WorkerJoined(name))
            self.driver.submit(WorkerHealthChanged(name, True))

    def cut_one(self):
        passengers = self.driver.passengers()
        if passengers:
            passenger = self.chance.choice(passengers)
            self.guarded(passenger, passenger.on_drain_cut)

    def run(self, steps=150):
        logging.disable(logging.CRITICAL)
        try:
            kinds = [self.arrive, self.answer, self.refuse_connection, self.client, self.time, self.workers_change]
            for _ in range(steps):
                self.chance.choices([*kinds, self.cut_one], [4, 14, 1, 3, 3, 1, 0.3])[0]()
                self.check()
            self.driver.submit(DrainBegan())
            for passenger in self.driver.passengers():
                self.guarded(passenger, passenger.on_drain_cut)
            self.loop.run(self.loop.moment + 100.0)
            self.driver.sweep()
        finally:
            logging.disable(logging.NOTSET)
        self.check()
        self.check_end()

    # ---------------------------------------------------------------- what must hold

    def check(self):
        insist(not self.broken, f"a client was {self.broken[:1]}")
        stats = self.driver.stats()
        running = sum(not call.over for call in self.calls)
        insist(stats.in_flight == running, f"{stats.in_flight} permits, {running} calls")
        under_way = sum(journey.settlement.outcome is None for journey, _ in self.journeys)
        insist(self.driver.travelling == under_way, "not every request under way is on board")
        insist(stats.in_flight + stats.queued_requests == under_way, "the core believes in other requests")
        insist(len(self.settled) == len(self.journeys) - under_way, "not one settlement for each")

    def check_end(self):
        insist(self.driver.travelling == 0, "somebody is still on board")
        insist(all(call.over for call in self.calls), "a call is left open")
        insist(len({id(one) for one in self.settled}) == len(self.settled) == len(self.journeys), "settlements")
        for journey, client in self.journeys:
            insist(client.over or client.gone, "a client was left waiting")
            if client.over and journey.stream and not client.gone:
                insist(client.body.count(b'"internal_error"') <= 1, "told twice")
