"""D22: patience by phase, heartbeats that no real client minds, and workers that never accept or never answer."""
# ruff: noqa: SIM117 - a worker, its gateway, a client: each opened in front of the one before

import asyncio
import socket

import anthropic
import openai
import pytest

from service.flow.config import FlowConfig
from service.runtime import journey as journey_room
from service.runtime.limits import RelayConfig
from service.workers.pool import PoolConfig
from tests.support.gateway import KEY, MODEL, running_gateway
from tests.support.raw_client import RawClient, until
from tests.support.scripted_worker import ROLE, STOP, USAGE, ScriptedWorker, drip, event, serve, silent, token

pytestmark = pytest.mark.integration
PATH = "/v1/chat/completions"
AUTH = [f"authorization: Bearer {KEY}"]
MESSAGES = [{"role": "user", "content": "hi"}]
STREAM = {"model": MODEL, "messages": MESSAGES, "stream": True, "max_tokens": 9}
WHOLE = STREAM | {"stream": False}
BEATS = RelayConfig(heartbeat_after_s=0.05, heartbeat_every_s=0.05, first_token_s=30.0, inter_token_s=30.0)


async def late(seat):
    """First token long after the first heartbeat."""
    await asyncio.sleep(0.3)
    seat.begin()
    seat.say(ROLE)
    await asyncio.sleep(0.3)
    seat.say(token("a"), token("b"), token("c"), STOP, USAGE)
    seat.done()


async def late_503(seat):
    await asyncio.sleep(0.3)
    seat.json(503, {"error": {"message": "busy"}})


async def late_400(seat):
    await asyncio.sleep(0.3)
    seat.json(400, {"error": {"message": "too long", "type": "BadRequestError", "param": None, "code": 400}})


async def late_message(seat):
    await asyncio.sleep(0.3)
    seat.begin()
    start = {"type": "message_start", "message": {
        "id": "m", "type": "message", "role": "assistant", "model": MODEL, "content": [], "stop_reason": None,
        "stop_sequence": None, "usage": {"input_tokens": 3, "output_tokens": 0}}}  # fmt: skip
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    seat.say(event(start, "message_start"), event(block, "content_block_start"))
    await asyncio.sleep(0.2)
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "abc"}}
    stop = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}}
    seat.say(
        event(delta, "content_block_delta"), event({"type": "content_block_stop", "index": 0}, "content_block_stop")
    )
    seat.say(event(stop, "message_delta"), event({"type": "message_stop"}, "message_stop"))
    seat.end()


async def beats_before_and_after_the_head():
    async with ScriptedWorker(late) as worker, running_gateway([worker.port], relay=BEATS) as gateway:
        async with await RawClient.connect(gateway.port) as client:
            answer = await client.ask("POST", PATH, STREAM, AUTH)
            assert answer.headers["content-type"].startswith("text/event-stream")
            before, after = answer.body.split(b"data: ", 1)
            assert before.count(b": waiting\n\n") >= 2
            assert after.count(b": waiting\n\n") >= 2
            assert after.replace(b": waiting\n\n", b"").endswith(b"data: [DONE]\n\n")
            (settlement,) = await gateway.settled(1)
            assert settlement.outcome.label == "completed"
            assert settlement.ttft_s >= 0.55


async def test_d22_heartbeats_until_the_first_token():
    await beats_before_and_after_the_head()


async def test_d22_is_seen_to_fail_without_heartbeats(monkeypatch):
    monkeypatch.setattr(journey_room, "find_due", lambda *_: None)
    with pytest.raises((AssertionError, ValueError)):
        await beats_before_and_after_the_head()


async def test_d22_a_queued_stream_hears_heartbeats_too():
    flow = FlowConfig(requests_per_worker=1)
    async with (
        ScriptedWorker(silent) as worker,
        running_gateway([worker.port], relay=BEATS, flow=flow) as gateway,
        await RawClient.connect(gateway.port) as first,
        await RawClient.connect(gateway.port) as second,
    ):
        first.send("POST", PATH, WHOLE, AUTH)
        await worker.seat()
        second.send("POST", PATH, STREAM, AUTH)
        status, _ = await second.head()
        assert status == 200
        assert await second.chunk() == b": waiting\n\n"
        assert gateway.driver.stats().queued_requests == 1
        worker.script = serve
        first.writer.close()
        body = b"".join(await second.rest())
        assert body.endswith(b"data: [DONE]\n\n")


async def test_d22_failures_after_a_heartbeat_are_events():
    async with ScriptedWorker(late_503) as worker, running_gateway([worker.port], relay=BEATS) as gateway:
        async with await RawClient.connect(gateway.port) as client:
            answer = await client.ask("POST", PATH, STREAM, AUTH)
            last = answer.body.split(b": waiting\n\n")[-1]
            assert answer.status == 200
            assert last.count(b"data: ") == 2
            assert b'"server_overloaded"' in last
            assert last.endswith(b"data: [DONE]\n\n")
            (settlement,) = await gateway.settled(1)
            assert settlement.outcome.label == "worker_busy"


async def test_d22_gaps_below_the_limit_survive_and_above_it_end():
    async def gap(seat):
        seat.begin()
        seat.say(ROLE, token("a"))
        await asyncio.sleep(0.25 if b"short" in seat.body else 30)
        seat.say(token("b"), STOP)
        seat.done()

    limits = RelayConfig(inter_token_s=1.0, first_token_s=0.2)
    async with ScriptedWorker(gap) as worker, running_gateway([worker.port], relay=limits) as gateway:

        async def ask(**more):
            async with await RawClient.connect(gateway.port) as client:
                return await client.ask("POST", PATH, STREAM | more, AUTH)

        short, long = await asyncio.gather(ask(user="short"), ask(user="long"))
        assert b'"error"' not in short.body
        assert long.events()[-1]["error"]["code"] == "deadline_exceeded"
        await gateway.settled(2)
        assert sorted(gateway.ledger.outcomes) == ["completed", "stream_stalled"]
        gateway.check_nothing_is_held()


@pytest.mark.parametrize("body", [STREAM, WHOLE], ids=["stream", "whole"])
async def test_d22_a_worker_that_never_answers_harms_nobody_else(body):
    async def script(seat):
        await (silent if b"stuck" in seat.body else serve)(seat)

    limits = RelayConfig(first_token_s=0.3, whole_s=0.3)
    async with ScriptedWorker(script) as worker, running_gateway([worker.port], relay=limits) as gateway:
        async with await RawClient.connect(gateway.port) as stuck, await RawClient.connect(gateway.port) as other:
            stuck.send("POST", PATH, body | {"user": "stuck"}, AUTH)
            seat = await worker.seat()
            for _ in range(5):
                assert (await other.ask("POST", PATH, body, AUTH)).status == 200
            answer = await stuck.answer()
            assert (answer.status, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
            await asyncio.wait_for(seat.closed.wait(), 2.0)
        assert len(worker.seats) == 6
        gateway.check_nothing_is_held()


async def test_d22_a_stored_response_that_never_comes():
    limits = RelayConfig(whole_s=0.2)
    async with ScriptedWorker(serve) as worker, running_gateway([worker.port], relay=limits) as gateway:
        async with await RawClient.connect(gateway.port) as client:
            await client.ask("POST", "/v1/responses", {"model": MODEL, "input": "hi"}, AUTH)
            response_id = worker.seats[0].body.split(b'"request_id":"')[1].split(b'"')[0].decode()
            worker.script = silent
            answer = await client.ask("GET", f"/v1/responses/{response_id}", headers=AUTH)
            assert answer.status == 504
        gateway.check_nothing_is_held()


class Blackhole:
    """A listener whose backlog is full: connections to it are never made."""

    def __enter__(self):
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.socket.listen(0)
        self.port = self.socket.getsockname()[1]
        self.fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", self.port))
            self.fillers.append(filler)
        return self

    def __exit__(self, *_):
        for one in [*self.fillers, self.socket]:
            one.close()


async def test_d22_a_worker_that_never_accepts_is_left_for_another():
    with Blackhole() as hole:
        async with ScriptedWorker(serve) as worker, running_gateway([], pool=PoolConfig(0.2)) as gateway:
            gateway.add_worker(hole.port)
            async with await RawClient.connect(gateway.port) as client:
                client.send("POST", PATH, STREAM, AUTH)
                await until(lambda: gateway.driver.stats().in_flight == 1)
                gateway.add_worker(worker.port)
                answer = await client.answer()
                assert answer.status == 200
                assert len(worker.seats) == 1
                (settlement,) = await gateway.settled(1)
                assert (settlement.attempts, settlement.outcome.label) == (2, "completed")
            assert gateway.pool.open_connections == 1
            gateway.check_nothing_is_held()


# ---------------------------------------------------------------- real clients


def openai_client(gateway, retries=0):
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    return openai.AsyncOpenAI(
        base_url=gateway.url + "/v1", api_key=KEY, max_retries=retries, http_client=http, timeout=10.0
    )


def anthropic_client(gateway):
    http = anthropic.DefaultAsyncHttpxClient(trust_env=False)
    return anthropic.AsyncAnthropic(base_url=gateway.url, api_key=KEY, max_retries=0, http_client=http, timeout=10.0)


async def test_d22_the_openai_client_does_not_mind_heartbeats():
    async with ScriptedWorker(late) as worker, running_gateway([worker.port], relay=BEATS) as gateway:
        async with openai_client(gateway) as client:
            stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
        assert text == "abc"


@pytest.mark.parametrize("script", [late_503, late_400], ids=["503", "400"])
async def test_d22_the_openai_client_raises_its_own_exception_at_an_error_event(script):
    async with ScriptedWorker(script) as worker, running_gateway([worker.port], relay=BEATS) as gateway:
        async with openai_client(gateway) as client:
            stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
            with pytest.raises(openai.APIError):
                [chunk async for chunk in stream]


async def test_d22_the_anthropic_client_does_not_mind_heartbeats():
    async with ScriptedWorker(late_message) as worker, running_gateway([worker.port], relay=BEATS) as gateway:
        async with (
            anthropic_client(gateway) as client,
            client.messages.stream(model=MODEL, messages=MESSAGES, max_tokens=9) as stream,
        ):
            text = "".join([piece async for piece in stream.text_stream])
        assert text == "abc"


async def test_d22_the_anthropic_client_raises_its_own_exception_at_an_error_event():
    async with ScriptedWorker(late_503) as worker, running_gateway([worker.port], relay=BEATS) as gateway:
        async with anthropic_client(gateway) as client:
            stream = await client.messages.create(model=MODEL, messages=MESSAGES, max_tokens=9, stream=True)
            with pytest.raises(anthropic.APIStatusError):
                [one async for one in stream]


async def test_d22_the_clients_deadline_ends_a_long_prefill():
    async with ScriptedWorker(silent) as worker, running_gateway([worker.port]) as gateway:
        async with await RawClient.connect(gateway.port) as client:
            answer = await client.ask("POST", PATH, STREAM, [*AUTH, "x-sluice-deadline-ms: 200"])
            assert answer.status == 504
        gateway.check_nothing_is_held()


async def test_d22_a_client_that_reads_keeps_its_stream_however_long():
    limits = RelayConfig(first_token_s=0.2, inter_token_s=0.2, client_stall_s=0.2, whole_s=0.2)
    async with ScriptedWorker(drip) as worker, running_gateway([worker.port], relay=limits) as gateway:
        async with await RawClient.connect(gateway.port) as client:
            client.send("POST", PATH, STREAM, AUTH)
            await client.head()
            for _ in range(50):
                assert await client.chunk()
        await gateway.settled(1)
        assert gateway.ledger.outcomes == ["client_gone"]
