"""D01 and D03: a client that leaves stops its worker at once and never reaches one from the queue."""

import asyncio
from pathlib import Path

import pytest
import uvloop

from service.flow.config import FlowConfig
from service.workers.call import PooledCall
from tests.support.gateway import KEY, MODEL, running_gateway
from tests.support.raw_client import RawClient, until
from tests.support.scripted_worker import ScriptedWorker, drip, serve, silent

pytestmark = pytest.mark.integration
AUTH = [f"authorization: Bearer {KEY}"]
MESSAGES = [{"role": "user", "content": "hi"}]
BODIES = {
    "/v1/chat/completions": {"model": MODEL, "messages": MESSAGES},
    "/v1/completions": {"model": MODEL, "prompt": "hi"},
    "/v1/responses": {"model": MODEL, "input": "hi"},
    "/v1/messages": {"model": MODEL, "messages": MESSAGES, "max_tokens": 9},
    "/v1/messages/count_tokens": {"model": MODEL, "messages": MESSAGES},
    "/v1/embeddings": {"model": MODEL, "input": "hi"},
}
CASES = [(path, stream) for path in list(BODIES)[:4] for stream in (True, False)] + [
    (path, False) for path in list(BODIES)[4:]
]


def count_descriptors():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def leave_while_running(path, stream, script):
    async with ScriptedWorker(script) as worker, running_gateway([worker.port]) as gateway:
        async with await RawClient.connect(gateway.port) as client:
            client.send("POST", path, BODIES[path] | ({"stream": True} if stream else {}), AUTH)
            seat = await worker.seat()
            if stream and script is drip and path.endswith("chat/completions"):
                await client.head()
                await client.chunk()
            else:
                await asyncio.sleep(0.03)
        async with asyncio.timeout(2.0):
            await seat.closed.wait()
        await gateway.settled(1)
        assert gateway.ledger.outcomes == ["client_gone"]
        gateway.check_nothing_is_held()
        (state,) = gateway.driver.stats().workers
        assert not state.resting
        worker.script = serve
        async with await RawClient.connect(gateway.port) as client:
            assert (await client.ask("POST", path, BODIES[path], AUTH)).status == 200


@pytest.mark.parametrize("script", [silent, drip])
@pytest.mark.parametrize(("path", "stream"), CASES)
async def test_d01_the_workers_socket_closes_with_the_clients(path, stream, script):
    await leave_while_running(path, stream, script)


async def test_d01_is_seen_to_fail_where_the_call_is_only_forgotten(monkeypatch):
    monkeypatch.setattr(PooledCall, "abort", PooledCall._end)
    with pytest.raises(TimeoutError):
        await leave_while_running("/v1/chat/completions", True, silent)


async def test_d01_a_stored_response_that_nobody_waits_for_any_more():
    async with ScriptedWorker(serve) as worker, running_gateway([worker.port]) as gateway:
        response_id = await make_response(gateway, worker)
        worker.script = silent
        async with await RawClient.connect(gateway.port) as client:
            client.send("GET", f"/v1/responses/{response_id}", headers=AUTH)
            seat = await worker.seat(1)
        async with asyncio.timeout(2.0):
            await seat.closed.wait()
        await gateway.settled(2)
        assert gateway.ledger.outcomes[-1] == "client_gone"
        gateway.check_nothing_is_held()


async def make_response(gateway, worker):
    async with await RawClient.connect(gateway.port) as client:
        assert (await client.ask("POST", "/v1/responses", BODIES["/v1/responses"], AUTH)).status == 200
    body = worker.seats[-1].body
    return body.split(b'"request_id":"')[1].split(b'"')[0].decode()


async def leave_the_queue():
    flow = FlowConfig(requests_per_worker=1)
    async with ScriptedWorker(silent) as worker, running_gateway([worker.port], flow=flow) as gateway:
        path = "/v1/chat/completions"
        async with await RawClient.connect(gateway.port) as first, await RawClient.connect(gateway.port) as live:
            first.send("POST", path, BODIES[path], AUTH)
            await worker.seat()
            leaving = [await RawClient.connect(gateway.port) for _ in range(5)]
            for number, client in enumerate(leaving):
                client.send("POST", path, BODIES[path] | {"stream": number % 2 == 0}, AUTH)
            await until(lambda: gateway.driver.stats().queued_requests == 5)
            live.send("POST", path, BODIES[path] | {"user": "live"}, AUTH)
            await until(lambda: gateway.driver.stats().queued_requests == 6)
            for client in leaving:
                client.writer.close()
            await until(lambda: gateway.driver.stats().queued_requests == 1, 2.0)
            worker.script = serve
            first.writer.close()
            assert (await live.answer()).status == 200
        await gateway.settled(7)
        assert len(worker.seats) == 2
        assert b'"live"' in worker.seats[1].body
        assert sorted(gateway.ledger.outcomes) == ["client_gone", *["client_gone_queued"] * 5, "completed"]
        gateway.check_nothing_is_held()


async def test_d03_nothing_is_sent_for_a_client_that_left_the_queue():
    await leave_the_queue()


async def test_d03_is_seen_to_fail_where_nobody_looks_at_the_queued(monkeypatch):
    from service.runtime.journey import Journey

    monkeypatch.setattr(Journey, "on_client_gone", lambda self: None)
    with pytest.raises((TimeoutError, AssertionError)):
        await leave_the_queue()


async def cancel_a_thousand():
    path = "/v1/chat/completions"
    async with ScriptedWorker(silent) as worker, running_gateway([worker.port]) as gateway:
        tasks, descriptors = len(asyncio.all_tasks()), count_descriptors()
        for round_no in range(10):
            clients = [await RawClient.connect(gateway.port) for _ in range(100)]
            for number, client in enumerate(clients):
                client.send("POST", path, BODIES[path] | {"stream": number % 2 == 0}, AUTH)
            if round_no % 2:
                await until(lambda: gateway.driver.travelling == 100)  # else most are still connecting
            for client in clients:
                client.writer.transport.abort()
            await until(lambda: gateway.driver.travelling == 0 and not gateway.connections)
        await until(lambda: not worker.open)
        await until(lambda: len(asyncio.all_tasks()) <= tasks)
        assert count_descriptors() <= descriptors
        assert gateway.pool.open_connections == 0
        gateway.check_nothing_is_held()
        assert set(gateway.ledger.outcomes) <= {"client_gone", "client_gone_queued", "client_gone_early"}


async def test_a_thousand_cancelled_requests_leave_no_descriptor_and_no_task():
    await cancel_a_thousand()


@pytest.mark.parametrize(
    "case", [cancel_a_thousand, leave_the_queue, lambda: leave_while_running("/v1/messages", True, silent)]
)
def test_the_loop_of_production_tells_other_things_and_comes_to_the_same(case):
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(case())
