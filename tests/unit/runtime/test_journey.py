"""What a journey tells its client, its worker and the ledger, where a walk would not look closely."""

import random

import pytest

from service.domain.event import (
    AttemptFailed,
    FailureCause,
    PermitEnded,
    RequestArrived,
    WorkerHealthChanged,
    WorkerJoined,
)
from service.domain.outcome import Fault, Outcome
from service.domain.permit import PermitEnding
from service.flow.config import FlowConfig
from service.flow.controller import FlowController
from service.gateway.responses import MESSAGES, OPENAI
from service.gateway.sse import EventTap
from service.runtime.account import Accounts, Settlement
from service.runtime.advice import compute_retry_after_s
from service.runtime.bypass import Bypass
from service.runtime.driver import Driver
from service.runtime.guard import guard
from service.runtime.journey import Journey, Outbound, Road
from service.runtime.limits import RelayConfig
from service.workers.suspicion import TROUBLE
from tests.support.flow import build_request
from tests.support.loop import FakeLoop
from tests.support.scripted_worker import ROLE, USAGE, event, token
from tests.support.walk import SSE


class Client:
    """Keeps what it is sent, in order."""

    paused = False

    def __init__(self):
        self.log = []
        self.body = b""

    def begin(self, status, headers, length):
        self.log.append((status, headers, length))

    @property
    def begun(self):
        """The head as it was begun."""
        (head,) = [entry for entry in self.log if isinstance(entry, tuple)]
        return head

    def write(self, data):
        self.body += data

    def finish(self):
        self.log.append("finish")

    def cut(self):
        self.log.append("cut")

    def release(self):
        self.log.append("release")


class Call:
    def __init__(self, sink):
        self.sink = sink
        self.log = []

    def __getattr__(self, name):
        return lambda: self.log.append(name)


class Stand:
    """A journey on a driver with one worker."""

    def __init__(self, stream=True, dialect=OPENAI, healthy=True, limits=None, arrived_at=0.25, **flow):
        self.loop = FakeLoop()
        self.loop.moment = arrived_at
        self.heard = []
        self.driver = Driver(FlowController(FlowConfig(**flow), random.Random(1)), self.loop, self.loop, [self])
        self.settled, self.calls = [], []
        self.driver.submit(WorkerJoined("w"))
        self.driver.submit(WorkerHealthChanged("w", healthy))
        limits = limits or RelayConfig(2.0, 1.0, 3.0, 1.0, 0.5, 0.25, 0.1, 300)
        accounts = Accounts([self])
        road = Road(self.driver, self, accounts, self.loop, self.loop.call_later, limits, lambda worker: b"opaque")
        request = build_request("r", arrived_at=arrived_at)
        request = type(request)(*[getattr(request, name) for name in request.__slots__[:6]], stream,
                                *[getattr(request, name) for name in request.__slots__[7:]])  # fmt: skip
        self.settlement = Settlement("r", "chat", arrived_at)
        self.settlement.stream = stream
        self.client = Client()
        out = Outbound(b"POST /", b"", (b"",))
        self.journey = Journey(road, request, out, self.client, dialect, b"x-ours: 1\r\n", self.settlement)
        self.road = road

    def settle(self, settlement):
        self.settled.append(settlement)

    def observe(self, now, event, commands):
        self.heard.append(event)

    def open(self, worker_id, target, headers, body, sink):
        call = Call(sink)
        self.calls.append(call)
        return call

    def start(self):
        self.journey.start()
        return self.calls[-1].sink

    def sweep(self, after_s=0.0):
        self.loop.moment += after_s
        self.driver.sweep()

    @property
    def outcome(self):
        (one,) = self.settled
        return one.outcome


def test_the_head_says_who_served_and_how_long_it_waited():
    stand = Stand()
    sink = stand.start()
    sink.on_head(200, SSE)
    sink.on_body(event(token()))
    status, headers, length = stand.client.begun
    assert (status, length) == (200, None)
    assert headers.endswith(b"x-ours: 1\r\nx-sluice-queue-ms: 0\r\nx-sluice-worker: opaque\r\n")


def test_heartbeats_go_on_after_the_head_until_the_first_token():
    stand = Stand()
    sink = stand.start()
    stand.sweep(0.6)
    assert stand.client.body == b": waiting\n\n"
    sink.on_head(200, SSE)
    sink.on_body(event(ROLE))
    sink.release()
    stand.sweep(0.1)
    assert stand.client.body.count(b": waiting") == 1  # the role was a sign of life
    stand.sweep(0.2)
    assert stand.client.body.endswith(event(ROLE) + b": waiting\n\n")
    sink.on_body(event(token()))
    stand.sweep(0.5)
    assert stand.client.body.endswith(event(token()))


def test_no_heartbeat_inside_an_event(monkeypatch):
    monkeypatch.setattr("service.gateway.sse._PARTIAL_MAX", 50)
    stand = Stand()
    sink = stand.start()
    sink.on_head(200, SSE)
    sink.on_body(b"data: " + b"x" * 400)  # too long to be held: sent on in part
    assert stand.client.body.startswith(b"data: xxx")
    stand.sweep(0.6)
    assert b"waiting" not in stand.client.body
    sink.on_failure(FailureCause.BROKEN)
    assert b'\n\ndata: {"error"' in stand.client.body
    assert stand.outcome is Outcome.STREAM_BROKEN


@pytest.mark.parametrize(("dialect", "end"), [(OPENAI, b"data: [DONE]\n\n"), (MESSAGES, b"}}\n\n")])
def test_a_heartbeat_then_a_failure(dialect, end):
    stand = Stand(dialect=dialect)
    sink = stand.start()
    stand.sweep(0.6)
    sink.on_head(400, [(b"content-type", b"text/html")])
    sink.on_body(b"<html>")
    sink.on_end()
    assert stand.client.body.endswith(end)
    assert stand.client.log[1:] == ["finish", "release"]
    assert stand.outcome is Outcome.WORKER_REFUSED


def test_patience_by_phase():
    for stream, lapse, outcome in (
        (True, 2.0, Outcome.FIRST_TOKEN_TIMEOUT),
        (False, 3.0, Outcome.FIRST_TOKEN_TIMEOUT),
    ):
        stand = Stand(stream)
        stand.start()
        stand.sweep(lapse - 0.01)
        assert stand.settled == []
        stand.sweep(0.02)
        assert stand.outcome is outcome
        assert "abort" in stand.calls[0].log


def test_the_clients_own_deadline_and_the_silence_between_tokens():
    stand = Stand()
    stand.journey.first_token_limit_at = 0.5
    stand.start()
    stand.sweep(0.3)
    assert stand.outcome is Outcome.CLIENT_DEADLINE
    stand = Stand()
    sink = stand.start()
    sink.on_head(200, SSE)
    sink.on_body(event(token()))
    stand.sweep(1.1)
    assert stand.outcome is Outcome.STREAM_STALLED
    assert stand.client.body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_the_clients_own_deadline_says_nothing_about_the_worker(stream):
    stand = Stand(stream)
    stand.journey.first_token_limit_at = 0.5
    sink = stand.start()
    sink.on_head(200, SSE if stream else [])
    sink.on_body(event(ROLE))
    stand.heard.clear()
    stand.sweep(0.24)
    assert stand.settled == []
    stand.sweep(0.02)
    assert stand.outcome is Outcome.CLIENT_DEADLINE
    assert Outcome.CLIENT_DEADLINE not in TROUBLE
    assert Outcome.CLIENT_DEADLINE.fault is Fault.CLIENT
    assert stand.client.begun[0] == 504
    assert stand.heard == [PermitEnded("r", PermitEnding.IGNORED, None)]
    assert stand.calls[0].log == ["abort"]
    assert not stand.driver.stats().workers[0].resting


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_what_began_before_the_clients_own_deadline_goes_on(stream):
    stand = Stand(stream)
    stand.journey.first_token_limit_at = 0.5
    sink = stand.start()
    sink.on_head(200, SSE if stream else [])
    sink.on_body(event(token()) if stream else b"x" * 400)
    stand.sweep(0.5)
    assert stand.settled == []


def test_a_client_that_was_slow_before_holds_its_worker_from_the_first():
    stand = Stand()
    stand.client.paused = True
    stand.start()
    assert stand.calls[0].log == ["pause"]
    stand.sweep(1.1)
    assert stand.outcome is Outcome.CLIENT_STALLED


def test_whoever_asks_hears_whose_answer_began():
    stand = Stand()
    told = []
    stand.journey.on_answered = told.append
    sink = stand.start()
    sink.on_head(200, SSE)
    assert told == []
    sink.on_body(event(token()) + event(token()))
    assert told == ["w"]


def test_a_slow_client_is_not_its_workers_fault():
    stand = Stand()
    sink = stand.start()
    sink.on_head(200, SSE)
    sink.on_body(event(token()))
    stand.journey.on_client_paused()
    stand.sweep(0.9)
    stand.journey.on_client_ready()
    stand.sweep(0.9)
    assert stand.settled == []
    assert stand.calls[0].log == ["pause", "resume"]
    stand.journey.on_client_paused()
    stand.sweep(1.1)
    assert stand.outcome is Outcome.CLIENT_STALLED
    assert stand.client.log[-2:] == ["cut", "release"]


def test_a_client_paused_in_the_queue_holds_its_worker_from_the_first():
    stand = Stand(healthy=False)
    stand.driver.submit(WorkerHealthChanged("w", True))
    stand.journey.on_client_paused()
    stand.journey.on_client_ready()
    stand.journey.on_client_paused()
    stand.start()
    assert stand.calls[0].log == ["pause"]
    stand.journey.on_client_ready()
    assert stand.calls[0].log == ["pause", "resume"]


def test_a_worker_that_is_busy_lends_its_status():
    stand = Stand()
    sink = stand.start()
    sink.on_head(429, [(b"retry-after", b"3")])
    sink.on_end()
    assert stand.client.log[0][0] == 429
    assert stand.outcome is Outcome.WORKER_BUSY


def test_a_whole_answer_that_breaks_is_cut():
    stand = Stand(stream=False)
    sink = stand.start()
    sink.on_head(200, [(b"content-length", b"1000")])
    sink.on_body(b"x" * 400)
    assert stand.client.begun[2] == 1000
    stand.sweep(3.1)
    assert [entry for entry in stand.client.log if entry in ("finish", "cut")] == ["cut"]
    assert stand.outcome is Outcome.STREAM_STALLED


def test_the_ledger_takes_usage_over_counting():
    stand = Stand()
    sink = stand.start()
    sink.on_head(200, SSE)
    sink.on_body(event(token()) * 3 + event(USAGE))
    sink.on_failure(FailureCause.BROKEN)
    assert (stand.settlement.prompt_tokens, stand.settlement.output_tokens) == (7, 3)
    assert not stand.settlement.output_estimated


def test_the_drain_cut_in_every_state():
    stand = Stand()
    stand.start()
    stand.journey.on_drain_cut()
    assert (stand.client.log[0][0], stand.outcome) == (503, Outcome.DRAIN_CUT)
    stand.journey.on_drain_cut()
    stand.journey.on_revoke(Outcome.STREAM_BROKEN)
    stand.journey.on_client_gone()
    stand.journey.on_fault()
    stand.journey.on_sweep(99.0)
    assert len(stand.settled) == 1
    queued = Stand(requests_per_worker=1)
    queued.driver.submit(RequestArrived(build_request("other")))
    queued.journey.start()
    queued.journey.on_drain_cut()
    assert queued.outcome is Outcome.DRAINING
    assert b"retry-after-ms: %d\r\n" % (compute_retry_after_s(0.25) * 1000) in queued.client.log[0][1]


@pytest.mark.parametrize("state", ["queued", "silent", "streaming", "whole"])
def test_a_fault_in_every_state(state):
    stand = Stand(stream=state != "whole", requests_per_worker=1)
    if state == "queued":
        stand.driver.submit(RequestArrived(build_request("other")))
        stand.journey.start()
    else:
        sink = stand.start()
        if state == "streaming":
            sink.on_head(200, SSE)
            sink.on_body(event(token()))
        elif state == "whole":
            sink.on_head(200, [])
            sink.on_body(b"x" * 400)
    stand.journey.on_fault()
    assert stand.outcome is Outcome.GATEWAY_FAULT
    stats = stand.driver.stats()
    assert (stats.in_flight, stats.queued_requests, stand.driver.travelling) == (state == "queued", 0, 0)
    if state == "streaming":
        assert b"internal_error" in stand.client.body
    elif state == "whole":
        assert "cut" in stand.client.log
    else:
        assert stand.client.log[0][0] == 500


def test_a_client_that_cannot_be_told_is_cut_and_all_is_given_back():
    stand = Stand()
    stand.start()

    def explode(*_):
        raise RuntimeError("injected")

    stand.client.begin = explode
    guard(None, "a fault", stand.journey.on_fault)
    assert stand.client.log == ["cut", "release"]
    assert stand.outcome is Outcome.GATEWAY_FAULT
    assert stand.driver.stats().in_flight == 0


def test_settling_does_not_depend_on_the_client():
    stand = Stand()
    stand.start()

    def explode():
        raise RuntimeError("injected")

    stand.client.release = explode
    stand.journey.on_client_gone()
    assert stand.outcome is Outcome.CLIENT_GONE


def test_a_timer_of_an_ended_journey_is_harmless():
    stand = Stand()
    sink = stand.start()
    sink.on_head(200, SSE)
    sink.on_body(event(ROLE))
    stand.journey.on_client_gone()
    stand.loop.run(10.0)
    assert stand.client.log == ["release"]
    stand.journey.on_hold()


def test_a_relay_that_is_gone_still_lets_it_complete():
    stand = Stand(stream=False)
    stand.start()
    stand.journey.relay = None
    stand.journey.on_answer(b"", 2, b"{}")
    stand.journey.on_complete(Outcome.COMPLETED, b"{}")
    assert stand.settlement.last_token_at is None
    stand = Stand()
    stand.start()
    stand.journey.relay = None
    stand.journey.on_first_token()
    assert stand.settlement.first_token_at == stand.loop.moment
    stand.journey.on_revoke(Outcome.STREAM_BROKEN)
    assert stand.outcome is Outcome.WORKER_FAILED


def test_the_bypass_dispatches_once_and_is_swept():
    stand = Stand()
    bypass = Bypass("w", stand.driver)
    told = []

    class Passenger:
        def on_dispatch(self, worker_id, attempt):
            told.append((worker_id, attempt))

        def on_refuse(self, outcome, retry_after_s):
            told.append((outcome, retry_after_s))

        def on_sweep(self, now):
            told.append("sweep")

    bypass.board("x", Passenger())
    bypass.submit(RequestArrived(build_request("x", arrived_at=4.25)))
    stand.driver.sweep()
    bypass.submit(AttemptFailed("x", FailureCause.BUSY, 7.0))
    bypass.submit(AttemptFailed("x", FailureCause.BROKEN))
    bypass.submit(WorkerJoined("w"))
    bypass.alight("x")
    bypass.submit(RequestArrived(build_request("x")))
    assert told == [
        ("w", 1),
        "sweep",
        (Outcome.WORKER_BUSY, compute_retry_after_s(4.25, 7.0)),
        (Outcome.WORKER_FAILED, compute_retry_after_s(4.25)),
    ]
    assert stand.driver.travelling == 0


def test_advice_to_those_sent_away_together_is_spread_and_never_too_early():
    burst = [compute_retry_after_s(5e5 + i * 1e-4, 3.0) for i in range(100)]
    assert min(burst) >= 3.0
    assert max(burst) < 4.0
    tenths = [int(one * 10) for one in burst]
    assert max(map(tenths.count, range(30, 40))) <= 15


def test_a_settlement_closes_once_and_knows_its_times():
    class Broken:
        def settle(self, settlement):
            raise RuntimeError("injected")

    kept = []

    class Good:
        def settle(self, settlement):
            kept.append(settlement.outcome)

    one = Settlement("r", "chat", 1.0)
    assert (one.ttft_s, one.queue_s, one.tpot_s) == (None, None, None)
    accounts = Accounts([Broken(), Good()])
    accounts.settle(one, Outcome.COMPLETED, 2.0)
    accounts.settle(one, Outcome.CLIENT_GONE, 3.0)
    assert (kept, one.settled_at) == ([Outcome.COMPLETED], 2.0)
    one.stream, one.admitted_at, one.dispatched_at = True, 1.0, 1.5
    one.first_token_at, one.last_token_at, one.output_tokens = 2.0, 4.0, 3
    assert (one.ttft_s, one.queue_s, one.tpot_s) == (1.0, 0.5, 1.0)
    one.output_tokens = 1
    assert one.tpot_s is None


def test_the_tap_holds_a_torn_event():
    tap = EventTap(lambda name, data: None, False)
    assert tap.feed(b"data: {") == b""
    assert not tap.torn
    assert tap.drain() == b"data: {"
