"""D17, the side of the workers, and responses that live at one: nothing is lost when one drains, leaves or fails."""

import asyncio
import contextlib

import pytest

from service.domain.event import WorkerDrainChanged, WorkerHealthChanged, WorkerLeft
from service.runtime.journey import Journey
from tests.support.gateway import KEY, MODEL, OTHER_KEY, running_gateway
from tests.support.raw_client import RawClient, until
from tests.support.scripted_worker import ROLE, STOP, USAGE, ScriptedWorker, serve, silent, token

pytestmark = pytest.mark.integration
PATH = "/v1/chat/completions"
AUTH = [f"authorization: Bearer {KEY}"]
STREAM = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 9}


class Held:
    """Streams that begin and end when the test says so."""

    def __init__(self):
        self.go_on = asyncio.Event()

    async def __call__(self, seat):
        seat.begin()
        seat.say(ROLE, token("a"))
        await self.go_on.wait()
        seat.say(token("b"), STOP, USAGE)
        seat.done()


async def connect(gateway, stack, count=5):
    return [await stack.enter_async_context(await RawClient.connect(gateway.port)) for _ in range(count)]


async def open_streams(gateway, worker, stack, count=5):
    clients = await connect(gateway, stack, count)
    for client in clients:
        client.send("POST", PATH, STREAM, AUTH)
    for client in clients:
        await client.head()
        await client.chunk()
    assert len(worker.seats) == count
    return clients


@pytest.mark.parametrize("how", ["drains", "leaves"])
async def test_d17_streams_of_a_worker_that_goes_are_finished_and_nothing_new_comes(how):
    held = Held()
    async with (
        ScriptedWorker(held) as old,
        ScriptedWorker(serve) as new,
        running_gateway([]) as gateway,
        contextlib.AsyncExitStack() as stack,
    ):
        name = gateway.add_worker(old.port)
        clients = await open_streams(gateway, old, stack)
        gateway.add_worker(new.port)
        if how == "drains":
            gateway.driver.submit(WorkerDrainChanged(name, True))
        else:
            gateway.pool.remove(name)
            gateway.driver.submit(WorkerLeft(name))
        async with await RawClient.connect(gateway.port) as client:
            for _ in range(10):
                assert (await client.ask("POST", PATH, STREAM, AUTH)).status == 200
        assert (len(old.seats), len(new.seats)) == (5, 10)
        held.go_on.set()
        for client in clients:
            assert b"".join(await client.rest()).endswith(b"data: [DONE]\n\n")
        await gateway.settled(15)
        assert set(gateway.ledger.outcomes) == {"completed"}
        gateway.check_nothing_is_held()
        if how == "leaves":
            await until(lambda: not old.open)
            assert len(gateway.driver.stats().workers) == 1


async def fall_ill():
    held = Held()
    async with (
        ScriptedWorker(held) as ill,
        ScriptedWorker(serve) as well,
        running_gateway([]) as gateway,
        contextlib.AsyncExitStack() as stack,
    ):
        name = gateway.add_worker(ill.port)
        begun = await open_streams(gateway, ill, stack)
        ill.script = silent
        waiting = await connect(gateway, stack)
        for client in waiting:
            client.send("POST", PATH, STREAM, AUTH)
        await until(lambda: len(ill.seats) == 10)
        gateway.add_worker(well.port)
        gateway.driver.submit(WorkerHealthChanged(name, False))
        for client in begun:
            body = b"".join(await client.rest())
            assert body.count(b'"error"') == 1
            assert body.endswith(b"data: [DONE]\n\n")
        for client in waiting:
            answer = await client.answer()
            assert (answer.status, b'"error"' in answer.body) == (200, False)
        await until(lambda: not ill.open)
        assert len(well.seats) == 5
        await gateway.settled(10)
        assert sorted(gateway.ledger.outcomes) == ["completed"] * 5 + ["stream_broken"] * 5
        assert all(one.output_tokens for one in gateway.ledger.settlements)
        gateway.check_nothing_is_held()


async def test_d17_what_an_ill_worker_did_not_answer_moves_and_what_it_began_ends_in_words():
    await fall_ill()


async def test_d17_is_seen_to_fail_where_nobody_takes_work_back(monkeypatch):
    monkeypatch.setattr(Journey, "on_revoke", lambda self, outcome: None)
    monkeypatch.setattr("tests.support.raw_client.BOUND_S", 0.5)
    with pytest.raises((AssertionError, TimeoutError)):
        await fall_ill()


async def test_responses_live_at_one_worker_and_belong_to_one_tenant():
    async def script(seat):
        seat.json(200, {"id": "resp", "usage": {"input_tokens": 3, "output_tokens": 2}, "path": seat.path})

    async with ScriptedWorker(script) as one, ScriptedWorker(script) as two, running_gateway([]) as gateway:
        gateway.add_worker(one.port)
        async with await RawClient.connect(gateway.port) as client:
            body = {"model": MODEL, "input": "hi"}
            assert (await client.ask("POST", "/v1/responses", body, AUTH)).status == 200
            made = one.seats[0].body.split(b'"request_id":"')[1].split(b'"')[0].decode()
            gateway.add_worker(two.port)
            for _ in range(6):
                answer = await client.ask("POST", "/v1/responses", body | {"previous_response_id": made}, AUTH)
                assert answer.status == 200
            answer = await client.ask("GET", f"/v1/responses/{made}", headers=AUTH)
            assert answer.json()["path"] == f"/v1/responses/{made}"
            answer = await client.ask("POST", f"/v1/responses/{made}/cancel", headers=AUTH)
            assert answer.json()["path"] == f"/v1/responses/{made}/cancel"
            assert (len(one.seats), len(two.seats)) == (9, 0)
            theirs = [f"authorization: Bearer {OTHER_KEY}"]
            for method, path in (("GET", f"/v1/responses/{made}"), ("POST", f"/v1/responses/{made}/cancel")):
                assert (await client.ask(method, path, headers=theirs)).status == 404
            answer = await client.ask("POST", "/v1/responses", body | {"previous_response_id": made}, theirs)
            assert answer.status == 404
            assert (len(one.seats), len(two.seats)) == (9, 0)
        gateway.check_nothing_is_held()


async def test_a_stored_response_whose_worker_fails_or_the_house_closes():
    async with ScriptedWorker(serve) as worker, running_gateway([worker.port]) as gateway:
        async with await RawClient.connect(gateway.port) as client:
            await client.ask("POST", "/v1/responses", {"model": MODEL, "input": "hi"}, AUTH)
            made = worker.seats[0].body.split(b'"request_id":"')[1].split(b'"')[0].decode()

            async def broken(seat):
                seat.reset()

            worker.script = broken
            answer = await client.ask("GET", f"/v1/responses/{made}", headers=AUTH)
            assert (answer.status, int(answer.headers["retry-after"]) > 0) == (502, True)
            worker.script = silent
            client.send("GET", f"/v1/responses/{made}", headers=AUTH)
            await until(lambda: gateway.driver.travelling == 1)
            for passenger in gateway.driver.passengers():
                passenger.on_drain_cut()
            assert (await client.answer()).status == 503
        gateway.check_nothing_is_held()
