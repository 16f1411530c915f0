"""D23 and stale connections: what is tried again, how often and where."""
# ruff: noqa: SIM117 - a worker, its gateway, a client: each opened in front of the one before

import asyncio
import re

import openai
import pytest

from service.flow.config import BreakerConfig, FlowConfig, RetryConfig
from service.runtime.limits import RelayConfig
from service.runtime.relay import Relay
from service.workers.call import PooledCall
from service.workers.client import WorkerConnection
from service.workers.pool import PoolConfig
from tests.support.gateway import KEY, MODEL, running_gateway
from tests.support.raw_client import RawClient, until
from tests.support.scripted_worker import ABORT, HEAD, ROLE, ScriptedWorker, serve, silent, token

pytestmark = pytest.mark.integration
PATH = "/v1/chat/completions"
AUTH = [f"authorization: Bearer {KEY}"]
MESSAGES = [{"role": "user", "content": "hi"}]
STREAM = {"model": MODEL, "messages": MESSAGES, "stream": True, "max_tokens": 9}
WHOLE = STREAM | {"stream": False}
BODIES = pytest.mark.parametrize("body", [STREAM, WHOLE], ids=["stream", "whole"])
FLOW = FlowConfig(
    requests_per_new_worker=1024,
    breaker=BreakerConfig(failures_to_open=10**6, open_s=0.0, busy_rest_s=0.0),
    retry=RetryConfig(budget_burst=20.0),  # the failing worker is the quickest: it may be the choice every time
)


async def busy(seat):
    seat.json(503, {"error": {"message": "busy"}})


async def dies_after_the_role(seat):
    seat.begin()
    seat.say(ROLE)
    await seat.flushed()
    seat.reset()


async def dies_after_a_token(seat):
    seat.begin()
    seat.say(ROLE, token("a"))
    await seat.flushed()
    seat.reset()


@pytest.mark.parametrize(
    ("script", "stream", "asked", "calls"),
    [
        (busy, True, 3, 6),
        (busy, False, 3, 6),
        (silent, True, 3, 3),  # a timeout is never tried again by us
        (silent, False, 3, 3),
        (dies_after_the_role, True, 3, 6),
        (dies_after_a_token, True, 1, 1),
    ],
)
async def test_d23_at_most_one_more_attempt_and_on_another_worker(script, stream, asked, calls):
    limits = RelayConfig(first_token_s=0.15, whole_s=0.15)
    async with ScriptedWorker(script) as one, ScriptedWorker(script) as two, ScriptedWorker(script) as three:
        ports = [one.port, two.port, three.port]
        async with running_gateway(ports, relay=limits, flow=FLOW) as gateway:
            http = openai.DefaultAsyncHttpxClient(trust_env=False)
            client = openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key=KEY, http_client=http)
            async with client:
                client._calculate_retry_timeout = lambda *_: 0.01

                async def ask():
                    answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=stream)
                    return [chunk async for chunk in answer]

                with pytest.raises(openai.APIError):
                    await ask()
            settlements = await gateway.settled(asked)
            assert len(settlements) == asked
            seats = [seat for worker in (one, two, three) for seat in worker.seats]
            assert len(seats) == calls
            assert all(settlement.attempts == calls // asked for settlement in settlements)
            for settlement in settlements:  # never twice on one worker
                ident = f"x-request-id: {settlement.request_id}\r\n".encode()
                met = [w for w in (one, two, three) if sum(ident in seat.head for seat in w.seats)]
                assert len(met) == calls // asked
            if script is not busy:
                await until(lambda: all(seat.closed.is_set() for seat in seats))
            gateway.check_nothing_is_held()


async def test_d23_the_retry_budget_bounds_the_calls_of_an_outage():
    flow = FlowConfig(
        requests_per_new_worker=1024, breaker=FLOW.breaker, retry=RetryConfig(budget_burst=5.0, budget_ratio=0.1)
    )
    async with ScriptedWorker(busy) as one, ScriptedWorker(busy) as two:
        async with running_gateway([one.port, two.port], flow=flow) as gateway:
            advice = set()
            async with await RawClient.connect(gateway.port) as client:
                for _ in range(100):
                    answer = await client.ask("POST", PATH, STREAM, AUTH)
                    assert answer.status == 503
                    advice.add(answer.headers["retry-after-ms"])
                    assert 0 < int(answer.headers["retry-after"]) <= 60
            assert len(one.seats) + len(two.seats) <= 100 + 5 + 10
            assert len(advice) > 50  # spread
            gateway.check_nothing_is_held()


async def test_d23_refusals_of_the_journey_are_spread_too():
    async with ScriptedWorker(silent) as worker, running_gateway([worker.port]) as gateway:
        clients = [await RawClient.connect(gateway.port) for _ in range(10)]
        for number, client in enumerate(clients):
            client.send("POST", PATH, WHOLE, AUTH)
            await worker.seat(number)
        for passenger in gateway.driver.passengers():
            passenger.on_drain_cut()
        answers = [await client.answer() for client in clients]
        assert {answer.status for answer in answers} == {503}
        assert len({answer.headers["retry-after-ms"] for answer in answers}) > 3
        for client in clients:
            client.writer.close()


async def draining_032(seat):
    seat.json(500, {"error": {"message": "cannot schedule new futures after shutdown", "code": 500}})


async def draining_033(seat):
    if b'"stream":true' not in seat.body.replace(b" ", b""):
        seat.json(200, {"choices": [{"message": {"content": ""}, "finish_reason": "abort"}]})
        return
    seat.begin()
    seat.say(ROLE)
    await seat.flushed()
    seat.say(ABORT)
    seat.done()


async def served_unseen(script, body):
    async with ScriptedWorker(script) as draining, ScriptedWorker(serve) as good:
        async with running_gateway([draining.port], flow=FLOW) as gateway:
            async with await RawClient.connect(gateway.port) as client:
                served = 0
                gateway.add_worker(good.port)
                for _ in range(12):
                    answer = await client.ask("POST", PATH, body, AUTH)
                    assert answer.status == 200
                    assert b"abort" not in answer.body
                    assert b"abc" in answer.body or answer.body.count(b'"role"') == 1
                    served += 1
            await asyncio.sleep(0.15)  # what was held back long ago must not come to light
            assert (len(good.seats), len(draining.seats) > 0) == (served, True)
            assert set(gateway.ledger.outcomes) == {"completed"}
            gateway.check_nothing_is_held()


@BODIES
@pytest.mark.parametrize("script", [draining_032, draining_033])
async def test_d23_a_draining_worker_is_replaced_unseen(script, body):
    await served_unseen(script, body)


@BODIES
async def test_d23_is_seen_to_fail_where_an_abort_is_an_answer(body, monkeypatch):
    real = Relay._end_stream

    def naive(self, tap, rest):
        tap.aborted = False
        real(self, tap, rest)

    monkeypatch.setattr(Relay, "_end_stream", naive)
    monkeypatch.setattr("service.runtime.relay._ABORTED", re.compile(b"never"))
    with pytest.raises(AssertionError):
        await served_unseen(draining_033, body)


async def test_an_attempt_that_was_given_up_does_not_send_what_it_held(monkeypatch):
    """The held first event of a dead attempt is released by a timer: not into the answer of the next."""

    async def second(seat):
        await asyncio.sleep(0.3)
        await serve(seat)

    async def run():
        async with ScriptedWorker(dies_after_the_role) as one, ScriptedWorker(second) as two:
            async with running_gateway([one.port], flow=FLOW) as gateway:
                async with await RawClient.connect(gateway.port) as client:
                    client.send("POST", PATH, STREAM, AUTH)
                    await one.seat()
                    gateway.add_worker(two.port)
                    answer = await client.answer()
                    assert answer.body.count(b'"role"') == 1
                    assert answer.headers["x-sluice-worker"]

    await run()
    monkeypatch.setattr(Relay, "release", lambda self: None if not self._held or self._started else self._start(b""))
    with pytest.raises(AssertionError):
        await run()


# ---------------------------------------------------------------- stale connections


async def warm(client, worker):
    """Leave one idle connection behind."""
    assert (await client.ask("POST", PATH, WHOLE, AUTH)).status == 200
    assert worker.accepted == 1


async def stale(how, expected_status, expected_seats, wait_s=0.0):
    async with ScriptedWorker(serve) as worker, running_gateway([worker.port], flow=FLOW) as gateway:
        async with await RawClient.connect(gateway.port) as client:
            await warm(client, worker)
            if how == "fin before":
                for connection in list(worker.open):
                    connection.writer.transport.close()
            else:

                async def break_once(seat):
                    worker.script = serve
                    if how == "a byte came":
                        seat.raw(HEAD[:1])
                        await seat.flushed()
                    elif how == "an interim answer came":
                        seat.raw(b"HTTP/1.1 100 Continue\r\n\r\n")
                        await seat.flushed()
                    await asyncio.sleep(wait_s)
                    seat.reset()

                worker.script = break_once
            answer = await client.ask("POST", PATH, STREAM, AUTH)
            assert answer.status == expected_status
            assert len(worker.seats) == expected_seats
            assert (await gateway.settled(2))[1].attempts == 1
            gateway.check_nothing_is_held()


@pytest.mark.parametrize(
    ("how", "status", "seats"),
    [("fin before", 200, 2), ("rst after", 200, 3), ("a byte came", 502, 2), ("an interim answer came", 502, 2)],
)
async def test_a_stale_connection_is_replaced_once_and_unseen(how, status, seats):
    await stale(how, status, seats)


async def test_a_connection_that_breaks_late_was_not_stale():
    async with ScriptedWorker(serve) as worker:
        pool = PoolConfig(stale_within_s=0.05)
        async with running_gateway([worker.port], flow=FLOW, pool=pool) as gateway:
            async with await RawClient.connect(gateway.port) as client:
                await warm(client, worker)

                async def late(seat):
                    await asyncio.sleep(0.2)
                    seat.reset()

                worker.script = late
                assert (await client.ask("POST", PATH, STREAM, AUTH)).status == 502
                assert len(worker.seats) == 2


async def test_stale_is_seen_to_fail_where_it_is_not_tried_again(monkeypatch):
    naive = PooledCall.on_failure

    def once(self, cause):
        self._stale_until = None
        naive(self, cause)

    monkeypatch.setattr(PooledCall, "on_failure", once)
    with pytest.raises(AssertionError):
        await stale("rst after", 200, 3)


async def test_stale_is_seen_to_fail_where_a_byte_does_not_count(monkeypatch):
    monkeypatch.setattr(WorkerConnection, "untouched", property(lambda self: self._phase == 0))
    with pytest.raises(AssertionError):
        await stale("a byte came", 502, 2)


async def test_idle_connections_grow_old_and_connection_close_is_honoured():
    async with ScriptedWorker(serve) as worker:
        async with running_gateway([worker.port], pool=PoolConfig(keep_alive_s=0.1)) as gateway:
            async with await RawClient.connect(gateway.port) as client:
                await warm(client, worker)
                await until(lambda: gateway.pool.open_connections == 0)

                async def closing(seat):
                    seat.json(200, {"choices": []}, ["connection: close"])

                worker.script = closing
                for _ in range(3):
                    assert (await client.ask("POST", PATH, WHOLE, AUTH)).json() == {"choices": []}
                assert worker.accepted == 4
                await until(lambda: gateway.pool.open_connections == 0)


ODD = {
    "interim answers": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    "no length": b"HTTP/1.1 200 OK\r\n\r\n{}",
    "http/1.0": b"HTTP/1.0 200 OK\r\n\r\n{}",
    "surplus": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil",
    "surplus that is no HTTP": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}\x00evil",
}


@pytest.mark.parametrize("how", ODD)
async def test_odd_answers_are_read_and_their_connection_is_not_used_again(how):
    """Surplus bytes must never become the answer of whoever gets the connection next: with a queue behind it, the
    next request is sent in the very call that reads them."""

    async def script(seat):
        if b'"odd"' not in seat.body:
            await serve(seat)
            return
        await asyncio.sleep(0.1)
        seat.raw(ODD[how])
        if how in ("no length", "http/1.0"):
            seat.finish()

    flow = FlowConfig(requests_per_worker=1)
    async with ScriptedWorker(script) as worker, running_gateway([worker.port], flow=flow) as gateway:
        async with await RawClient.connect(gateway.port) as one, await RawClient.connect(gateway.port) as two:
            one.send("POST", PATH, WHOLE | {"user": "odd"}, AUTH)
            await worker.seat()
            two.send("POST", PATH, WHOLE, AUTH)
            await until(lambda: gateway.driver.stats().queued_requests == 1)
            assert (await one.answer()).json() == {}
            assert b"abc" in (await two.answer()).body
            assert worker.accepted == (1 if how == "interim answers" else 2)
            gateway.check_nothing_is_held()


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nx-big: " + b"y" * 70_000 + b"\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n" + b"x-many: y\r\n" * 8000,
        b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 204 No\r\n\r\n",
    ],
    ids=["one large header", "endless", "101", "204"],
)
async def test_heads_that_no_worker_sends(head):
    async def script(seat):
        seat.raw(head)

    async with ScriptedWorker(script) as worker, running_gateway([worker.port], flow=FLOW) as gateway:
        async with await RawClient.connect(gateway.port) as client:
            assert (await client.ask("POST", PATH, WHOLE, AUTH)).status == 502
        gateway.check_nothing_is_held()


async def test_a_large_body_right_behind_its_head_is_fine():
    async def script(seat):
        seat.json(200, {"text": "x" * 300_000})

    async with ScriptedWorker(script) as worker, running_gateway([worker.port]) as gateway:
        async with await RawClient.connect(gateway.port) as client:
            assert len((await client.ask("POST", PATH, WHOLE, AUTH)).json()["text"]) == 300_000
