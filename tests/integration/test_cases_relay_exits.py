"""D02: fifty of each way out, and nothing is held afterwards: no permit, byte or connection, one settlement each."""

import asyncio
import logging

import pytest

from service.domain.event import WorkerHealthChanged, WorkerLeft
from service.flow.config import BreakerConfig, FlowConfig, RetryConfig
from service.gateway.responses import ApiDialect
from service.gateway.sse import EventTap
from service.runtime.journey import Journey
from service.runtime.limits import RelayConfig
from service.runtime.relay import Relay
from service.workers.call import PooledCall
from service.workers.pool import WorkerPool
from tests.support.gateway import KEY, MODEL, running_gateway
from tests.support.raw_client import RawClient, until
from tests.support.scripted_worker import HEAD, ROLE, ScriptedWorker, drip, serve, silent, token

pytestmark = pytest.mark.integration
PATH = "/v1/chat/completions"
AUTH = [f"authorization: Bearer {KEY}"]
STREAM = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True}
WHOLE = STREAM | {"stream": False}
FLOW = FlowConfig(
    requests_per_new_worker=1024,
    breaker=BreakerConfig(failures_to_open=10**6, open_s=0.0, busy_rest_s=0.0),
    retry=RetryConfig(1),
)
COUNT = 50


async def reset(seat):
    seat.reset()


async def reset_in_head(seat):
    seat.raw(HEAD[:40])
    await seat.flushed()
    seat.reset()


async def error_500(seat):
    seat.json(500, {"error": {"message": "engine dead"}})


async def error_503(seat):
    seat.json(503, {"error": {"message": "busy"}})


async def garbage(seat):
    seat.raw(b"\x00\x01 what is this\r\n\r\n")


async def reset_in_stream(seat):
    seat.begin()
    seat.say(ROLE, token(), token())
    await seat.flushed()
    seat.reset()


async def cut_body(seat):
    seat.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 200000\r\n\r\n" + b"x" * 100000)
    await seat.flushed()
    seat.finish()


async def checked(gateway, worker, outcomes, count=COUNT):
    """After a batch: every request settled once and as expected, nothing held, and the gateway serves."""
    settlements = await gateway.settled(count, 20.0)
    await asyncio.sleep(0.05)
    assert len(settlements) == count
    assert len({one.request_id for one in settlements}) == count
    assert set(gateway.ledger.outcomes) <= set(outcomes), set(gateway.ledger.outcomes)
    gateway.check_nothing_is_held()
    budgets = {connection._budget.left for connection in gateway.connections if hasattr(connection, "_budget")}
    assert budgets <= {1024 * 1024 * 1024}
    assert gateway.pool.open_connections <= count
    if worker is not None:
        worker.script = serve
        for worker_state in gateway.driver.stats().workers:
            gateway.driver.submit(WorkerHealthChanged(worker_state.worker_id, True))
        async with await RawClient.connect(gateway.port) as client:
            assert (await client.ask("POST", PATH, WHOLE, AUTH)).status == 200
    gateway.check_nothing_is_held()


async def ask_many(gateway, body, count=COUNT):
    """Ask ``count`` times at once; what each client got, ``None`` where its connection was closed on it."""

    async def ask():
        async with await RawClient.connect(gateway.port) as client:
            try:
                return await client.ask("POST", PATH, body, AUTH)
            except (ConnectionError, asyncio.IncompleteReadError):
                return None

    return await asyncio.gather(*[ask() for _ in range(count)])


WAYS = {
    "reset before the head": (reset, 502, ["worker_failed"]),
    "reset in the head": (reset_in_head, 502, ["worker_failed"]),
    "500": (error_500, 502, ["worker_failed"]),
    "503": (error_503, 503, ["worker_busy"]),
    "garbage": (garbage, 502, ["worker_failed"]),
    "first token too late": (silent, 504, ["first_token_timeout"]),
}


async def run_way(script, status, outcomes, body):
    limit_s = 0.4 if script is silent else 20.0  # the others fail by themselves, however busy the machine is
    limits = RelayConfig(first_token_s=limit_s, whole_s=limit_s)
    async with ScriptedWorker(script) as worker, running_gateway([worker.port], flow=FLOW, relay=limits) as gateway:
        answers = await ask_many(gateway, body)
        assert {answer.status for answer in answers} == {status}
        assert all("retry-after" in answer.headers for answer in answers)
        await until(lambda: not worker.open or script is error_500 or script is error_503)
        await checked(gateway, worker, outcomes)


@pytest.mark.parametrize("body", [STREAM, WHOLE], ids=["stream", "whole"])
@pytest.mark.parametrize("way", WAYS)
async def test_d02_a_worker_that_fails_before_it_answers(way, body):
    await run_way(*WAYS[way], body)


@pytest.mark.parametrize(
    ("owner", "name", "naive"),
    [
        (Journey, "_give_back", lambda self, ending: None),
        (Journey, "_end", lambda self, outcome: self._client.release()),
        (PooledCall, "_end", lambda self: setattr(self, "over", True)),
    ],
    ids=["permit kept", "never settled", "call kept"],
)
async def test_d02_is_seen_to_fail_where_something_is_kept(monkeypatch, owner, name, naive):
    monkeypatch.setattr(owner, name, naive)
    with pytest.raises((AssertionError, TimeoutError)):
        await leave_while("streaming", bound_s=1.0)


async def test_d02_a_worker_that_refuses_connections():
    async with ScriptedWorker(serve) as worker:
        await worker.stop()
        async with running_gateway([worker.port], flow=FLOW) as gateway:
            answers = await ask_many(gateway, STREAM)
            assert {answer.status for answer in answers} <= {502, 503}
            await checked(gateway, None, ["worker_unreachable", "no_workers", "expired"])


async def test_d02_streams_that_break():
    async with ScriptedWorker(reset_in_stream) as worker, running_gateway([worker.port], flow=FLOW) as gateway:
        answers = await ask_many(gateway, STREAM)
        assert all(answer.status == 200 and answer.body.endswith(b"data: [DONE]\n\n") for answer in answers)
        await checked(gateway, worker, ["stream_broken"])


async def test_d02_and_d05_a_whole_answer_that_is_cut_is_seen_as_incomplete():
    async with ScriptedWorker(cut_body) as worker, running_gateway([worker.port], flow=FLOW) as gateway:
        assert set(await ask_many(gateway, WHOLE)) == {None}
        await checked(gateway, worker, ["stream_broken"])


async def leave_while(phase, bound_s=10.0):
    flow = FlowConfig(requests_per_worker=1) if phase == "queued" else FLOW
    script = drip if phase == "streaming" else silent
    async with ScriptedWorker(script) as worker, running_gateway([worker.port], flow=flow) as gateway:
        clients = [await RawClient.connect(gateway.port) for _ in range(COUNT)]
        for client in clients:
            client.send("POST", PATH, STREAM, AUTH)
        if phase == "streaming":
            for client in clients:
                await client.head()
                await client.chunk()
        else:
            await until(lambda: gateway.driver.travelling == COUNT)
            await worker.seat(0)
        for client in reversed(clients):
            client.writer.transport.abort()
        await until(lambda: len(gateway.ledger.settlements) == COUNT, bound_s)
        await until(lambda: not worker.open)
        await checked(gateway, worker, ["client_gone", "client_gone_queued"])
        assert len(worker.seats) == (2 if phase == "queued" else COUNT + 1)


@pytest.mark.parametrize("phase", ["queued", "prefill", "streaming"])
async def test_d02_clients_that_leave(phase):
    await leave_while(phase)


def explode(*_, **__):
    raise RuntimeError("injected")


FAULTS = {
    "head": (Relay, "on_head", False),
    "dispatch": (WorkerPool, "open", False),
    "tap opened": (ApiDialect, "open_tap", False),
    "early piece": (Relay, "_feed_early", False),
    "answer": (Journey, "on_answer", False),
    "first token": (Journey, "on_first_token", True),
    "later piece": (EventTap, "_feed_slowly", True),
    "end": (Journey, "on_complete", True),
    "end of stream": (Relay, "_end_stream", True),
    "pool, head": (PooledCall, "on_head", False),
}


@pytest.mark.parametrize("where", FAULTS)
async def test_d02_a_fault_of_our_own_ends_its_request_and_no_other(where, monkeypatch, caplog):
    owner, name, begun = FAULTS[where]

    async def pieces(seat):
        seat.begin()
        seat.say(ROLE)
        await seat.flushed()
        seat.say(token(), token())
        await seat.flushed()
        await seat.flushed()
        seat.chunk(b"data: [DO")
        seat.chunk(b"NE]\n\n")
        seat.end()

    flow = FlowConfig(
        requests_per_worker=20, requests_per_new_worker=20
    )  # the rest waits and is dispatched by those that fail
    async with ScriptedWorker(pieces) as worker, running_gateway([worker.port], flow=flow) as gateway:
        if where == "later piece":
            real = EventTap._feed_slowly

            def naive(tap, data):
                return explode() if tap.events > 2 else real(tap, data)

            monkeypatch.setattr(owner, name, naive)
        else:
            monkeypatch.setattr(owner, name, explode)
        with caplog.at_level(logging.ERROR):
            answers = await ask_many(gateway, STREAM)
            await gateway.settled(COUNT, 20.0)
        faults = [record for record in caplog.records if record.exc_info]
        assert len(faults) == COUNT
        assert len(caplog.records) == COUNT
        for answer in answers:
            assert answer is not None
            if begun:
                assert answer.status == 200
                if b'"error"' in answer.body:
                    assert answer.events()[-1]["error"]["code"] == "internal_error"
                    assert answer.body.count(b'"error"') == 1
                    assert answer.body.endswith(b"data: [DONE]\n\n")
            else:
                assert (answer.status, answer.json()["error"]["code"]) == (500, "internal_error")
        monkeypatch.undo()
        await checked(gateway, worker, ["gateway_fault"])


@pytest.mark.parametrize("name", ["on_client_gone", "on_client_paused", "on_sweep", "on_hold", "release"])
async def test_d02_a_fault_in_a_callback_of_the_loop(name, monkeypatch, caplog):
    async def slow(seat):
        seat.begin()
        seat.say(ROLE)
        await asyncio.sleep(0.3)
        seat.say(*[token("y" * 4000)] * 3000)
        seat.done()

    async with ScriptedWorker(slow) as worker, running_gateway([worker.port], flow=FLOW) as gateway:
        if name == "on_client_gone":
            monkeypatch.setattr(Journey, "_give_up", explode)
        elif name == "on_client_paused":
            monkeypatch.setattr(PooledCall, "pause", explode)
        elif name == "release":
            monkeypatch.setattr(Relay, "_start", explode)
        elif name == "on_hold":
            monkeypatch.setattr(Journey, name, explode)
        clients = [await RawClient.connect(gateway.port, limit=1024) for _ in range(10)]
        for client in clients:
            client.send("POST", PATH, STREAM, AUTH)
        await until(lambda: len(worker.seats) == 10)
        if name == "on_sweep":  # from here on: a slow machine would be swept before all have reached the worker
            monkeypatch.setattr(Journey, name, explode)
        if name == "on_client_gone":
            for client in clients:
                client.writer.transport.abort()
        await gateway.settled(10)
        monkeypatch.undo()
        for client in clients:
            client.writer.transport.abort()
        await until(lambda: not worker.open)
        await checked(gateway, worker, ["gateway_fault"], 10)
        assert len([record for record in caplog.records if record.exc_info]) == 10


async def test_d02_an_observer_or_an_accountant_that_fails_ends_nobody(caplog):
    class Broken:
        observe = settle = explode

    async with ScriptedWorker(serve) as worker, running_gateway([worker.port]) as gateway:
        gateway.driver._observe = (Broken().observe,)
        gateway.corridor._road.accounts._accountants = (Broken(), gateway.ledger)
        answers = await ask_many(gateway, STREAM)
        assert {answer.status for answer in answers} == {200}
        await checked(gateway, worker, ["completed"])
    assert "injected" in caplog.text


@pytest.mark.parametrize("script", [silent, drip])
@pytest.mark.parametrize("way", ["drain", "revoke", "removed"])
async def test_d02_the_house_or_the_worker_goes(way, script):
    async with ScriptedWorker(script) as worker, running_gateway([worker.port], flow=FLOW) as gateway:
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(ask_many(gateway, STREAM))
            await until(lambda: len(worker.seats) == COUNT)
            await until(
                lambda: script is silent or all(j.settlement.first_token_at for j in gateway.driver.passengers())
            )
            (state,) = gateway.driver.stats().workers
            if way == "drain":
                for passenger in gateway.driver.passengers():
                    passenger.on_drain_cut()
            elif way == "revoke":
                gateway.driver.submit(WorkerHealthChanged(state.worker_id, False))
            else:
                gateway.pool.remove(state.worker_id)
                gateway.driver.submit(WorkerLeft(state.worker_id))
                worker.script = silent
                for connection in list(worker.open):
                    connection.reset()
        answers = asking.result()
        if script is drip:
            assert all(answer.body.endswith(b"data: [DONE]\n\n") for answer in answers)
            assert all(b'"error"' in answer.body for answer in answers)
            outcomes = ["drain_cut" if way == "drain" else "stream_broken"]
        else:
            assert {answer.status for answer in answers} <= {502, 503}
            outcomes = ["drain_cut"] if way == "drain" else ["worker_failed", "no_workers"]
        await until(lambda: not worker.open)
        await checked(gateway, worker if way != "removed" else None, outcomes)
