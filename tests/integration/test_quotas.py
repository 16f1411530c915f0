"""Contracts at the edge of one gateway: what passes, what is refused and how, what is charged. Cases D09 and D10."""

import asyncio

import pytest

from service.domain.contract import Allowance, Contract, Excess
from service.domain.tenant import Tenant
from service.domain.tier import Tier
from service.domain.units import TenantId, TierName
from service.flow.config import FlowConfig
from tests.support.gateway import MODEL, running_gateway
from tests.support.raw_client import RawClient
from tests.support.until import until
from tests.support.written_worker import (
    DONE,
    HANG,
    RESET,
    USAGE,
    WHOLE,
    ScriptedWorker,
    chunk,
    delta,
    event,
    reply,
    stream,
    stream_head,
)

pytestmark = pytest.mark.integration
CHAT = "/v1/chat/completions"
SECRET = "sk-sluice-test-limited"
TIERS = {
    TierName("priority"): Tier(TierName("priority"), 0),
    TierName("default"): Tier(TierName("default"), 1),
    TierName("flex"): Tier(TierName("flex"), 2, best_effort=True),
}


def limited(**contract):
    return [(SECRET, Tenant(TenantId("limited"), TierName("default"), contract=Contract(**contract)))]


def body(stream=False, max_tokens=40, **more):
    return {
        "model": MODEL,
        "stream": stream,
        "max_tokens": max_tokens,
        "messages": [{"role": "user", "content": "x"}],
    } | more


async def ask(port, sent=None, path=CHAT):
    async with RawClient(*await asyncio.open_connection("127.0.0.1", port)) as client:
        client.send("POST", path, sent or body(), [f"authorization: Bearer {SECRET}"])
        return await client.answer()


def left(answer, what="tokens"):
    return int(dict(answer.headers)[f"x-ratelimit-remaining-{what}"])


async def left_after(gateway, count):
    await gateway.settled(count)
    account = next(iter(gateway.quotas._accounts.values()))
    now = gateway.quotas._clock.now()
    return account.requests.free(False, 1, now), account.tokens.free(False, 1, now)


async def test_exactly_the_limit_passes_of_a_burst():
    async with (
        ScriptedWorker() as worker,
        running_gateway([worker.port], tenants=limited(requests_per_minute=100)) as gateway,
    ):
        answers = await asyncio.gather(*[ask(gateway.port) for _ in range(500)])
        assert sum(answer.status == 200 for answer in answers) == 100
        refused = [answer for answer in answers if answer.status != 200]
        assert {answer.status for answer in refused} == {429}
        headers = dict(refused[0].headers)
        error = refused[0].json()["error"]
        assert error["code"] == "rate_limit_exceeded"
        assert "100 requests per minute" in error["message"]
        assert 50 < int(headers["retry-after"]) <= 62
        assert headers["x-ratelimit-limit-requests"] == "100"
        assert headers["x-ratelimit-remaining-requests"] == "0"
        assert headers["x-ratelimit-reset-requests"] in ("1m0s", "1m1s")
        assert "x-ratelimit-limit-tokens" not in headers
        assert len(worker.received) == 100


async def test_d09_what_is_reserved_never_exceeds_the_limit():
    contract = limited(tokens_per_minute=150)
    async with ScriptedWorker([HANG]) as worker, running_gateway([worker.port], tenants=contract) as gateway:
        asks = [asyncio.create_task(ask(gateway.port, body(max_tokens=10))) for _ in range(5)]
        done, _ = await asyncio.wait(asks, timeout=2.0)
        answers = [task.result() for task in done]
        assert answers
        assert all(answer.status == 429 and "retry-after" in dict(answer.headers) for answer in answers)
        account = next(iter(gateway.quotas._accounts.values()))
        assert 0 <= account.tokens.free(False, 1, gateway.quotas._clock.now()) < 150
        for task in asks:
            task.cancel()


async def test_d09_exactly_as_many_run_at_once_as_were_bought():
    contract = limited(concurrency=3)
    async with ScriptedWorker([HANG]) as worker, running_gateway([worker.port], tenants=contract) as gateway:
        asks = [asyncio.create_task(ask(gateway.port)) for _ in range(50)]
        done, running = await asyncio.wait(asks, timeout=2.0)
        assert (len(done), len(running)) == (47, 3)
        assert all(task.result().status == 429 for task in done)
        assert all(float(dict(task.result().headers)["retry-after"]) >= 1 for task in done)
        for task in running:
            task.cancel()
        await gateway.settled(50)
        assert next(iter(gateway.quotas._accounts.values())).running == 0
        gateway.check_nothing_is_held()


SAID = [event(delta("a")), event(delta("b")), event(delta("c"))]


@pytest.mark.parametrize(
    ("script", "sent", "charged"),
    [
        ([*stream([*SAID, event(USAGE), DONE])], body(True), 10),
        ([WHOLE], body(), 10),
        ([WHOLE], body(max_tokens=1), 10),
        ([RESET], body(), 0),
    ],
    ids=["a stream with usage", "c whole", "f one token", "e worker error"],
)
async def test_d10_what_was_reserved_is_settled_by_what_was_used(script, sent, charged):
    contract = limited(requests_per_minute=10, tokens_per_minute=10_000)
    async with ScriptedWorker(script) as worker, running_gateway([worker.port], tenants=contract) as gateway:
        await ask(gateway.port, sent)
        assert await left_after(gateway, 1) == (10 if charged == 0 else 9, 10_000 - charged)


async def test_d10_a_stream_without_usage_is_charged_by_its_events():
    contract = limited(requests_per_minute=10, tokens_per_minute=10_000)
    script = [*stream([*SAID, DONE])]
    async with ScriptedWorker(script) as worker, running_gateway([worker.port], tenants=contract) as gateway:
        await ask(gateway.port, body(True))
        requests, tokens = await left_after(gateway, 1)
        assert requests == 9
        charged = 10_000 - tokens
        assert 20 < charged < 80  # the prompt by its bytes, and three or so


async def test_d10_a_client_that_leaves_is_charged_for_what_was_produced():
    contract = limited(requests_per_minute=10, tokens_per_minute=10_000)
    script = [stream_head(), *[chunk(event(delta("x"))) for _ in range(20)], HANG]
    async with ScriptedWorker(script) as worker, running_gateway([worker.port], tenants=contract) as gateway:
        client = await RawClient.connect(gateway.port)
        client.send("POST", CHAT, body(True, max_tokens=2000), [f"authorization: Bearer {SECRET}"])
        await client.head()
        seen = b""
        while seen.count(b"data:") < 20:
            seen += await client.chunk()
        client.writer.close()
        requests, tokens = await left_after(gateway, 1)
        assert requests == 9
        assert 20 + 20 < 10_000 - tokens < 20 + 80


async def test_a_long_stream_is_charged_while_it_runs():
    contract = limited(tokens_per_minute=10_000)
    script = [stream_head(), *[chunk(event(delta("x"))) for _ in range(400)], HANG]
    async with ScriptedWorker(script) as worker, running_gateway([worker.port], tenants=contract) as gateway:
        client = await RawClient.connect(gateway.port)
        client.send("POST", CHAT, body(True, max_tokens=5000), [f"authorization: Bearer {SECRET}"])
        await client.head()
        account = next(iter(gateway.quotas._accounts.values()))
        await until(lambda: account.tokens.free(False, 1, gateway.quotas._clock.now()) <= 10_000 - 400)
        client.writer.close()


async def test_excess_runs_marked_and_lower():
    contract = limited(requests_per_minute=1, excess=Excess.RUN)
    async with ScriptedWorker() as worker, running_gateway([worker.port], tenants=contract) as gateway:
        first, second = await ask(gateway.port), await ask(gateway.port)
        assert (first.status, second.status) == (200, 200)
        assert "x-sluice-excess" not in dict(first.headers)
        assert dict(second.headers)["x-sluice-excess"] == "true"
        assert dict(second.headers)["x-sluice-tier"] == "default"
        settled = await gateway.settled(2)
        assert [one.excess for one in settled] == [False, True]


async def test_what_is_above_the_contracts_worker_seconds_is_marked():
    tiny = FlowConfig(requests_per_new_worker=1024, tiers=TIERS, contracts={TenantId("limited"): Allowance(1e-6, 1e-6)})
    async with (
        ScriptedWorker() as worker,
        running_gateway([worker.port], tenants=limited(work=Allowance(1e-6, 1e-6)), tiers=TIERS, flow=tiny) as gateway,
    ):
        told = [dict((await ask(gateway.port)).headers).get("x-sluice-excess") for _ in range(2)]
        assert told == [None, "true"]
        settled = await gateway.settled(2)
        assert [{mark.value for mark in one.marks} for one in settled] == [set(), {"excess"}]


async def test_a_month_that_is_used_up():
    contract = limited(tokens_per_month=100)
    async with ScriptedWorker() as worker, running_gateway([worker.port], tenants=contract) as gateway:
        answers = [await ask(gateway.port, body(max_tokens=1)) for _ in range(12)]
        assert answers[0].status == 200
        assert answers[-1].status == 429
        assert "100 tokens per month" in answers[-1].json()["error"]["message"]
        assert int(dict(answers[-1].headers)["retry-after"]) >= 1


async def test_what_counts_no_tokens():
    contract = limited(requests_per_minute=10, tokens_per_minute=100)
    async with ScriptedWorker() as worker, running_gateway([worker.port], tenants=contract) as gateway:
        answer = await ask(gateway.port, {"model": MODEL, "prompt": "x" * 4000}, "/tokenize")
        assert (answer.status, left(answer), left(answer, "requests")) == (200, 100, 9)


@pytest.mark.parametrize(
    ("asked", "served"),
    [("auto", "default"), ("default", "default"), ("flex", "flex"), ("priority", "default"), ("scale", "default")],
)
async def test_a_request_may_ask_for_a_lower_tier_and_never_for_a_higher_one(asked, served):
    async with (
        ScriptedWorker() as worker,
        running_gateway([worker.port], tenants=limited(requests_per_minute=9), tiers=TIERS) as gateway,
    ):
        answer = await ask(gateway.port, body(service_tier=asked))
        assert answer.status == 200
        assert dict(answer.headers)["x-sluice-tier"] == served
        settled = await gateway.settled(1)
        assert settled[0].tier == served
        assert worker.received[0].json()["service_tier"] == asked


async def test_a_tier_that_nobody_knows():
    async with ScriptedWorker() as worker, running_gateway([worker.port], tenants=limited(), tiers=TIERS) as gateway:
        answer = await ask(gateway.port, body(service_tier="gold"))
        assert answer.status == 400
        assert answer.json()["error"]["param"] == "service_tier"
        assert "auto, default, flex, priority" in answer.json()["error"]["message"]


async def echo(script, sent, path=CHAT):
    async with (
        ScriptedWorker(script) as worker,
        running_gateway([worker.port], tenants=limited(), tiers=TIERS) as gateway,
    ):
        return await ask(gateway.port, sent, path)


async def test_the_served_tier_is_named_in_a_whole_answer_and_nothing_else_is_touched():
    text = rb'"content": "\"service_tier\":null"'
    body_bytes = b'{"id": "c1", "choices": [{"message": {' + text + b'}}], "service_tier": null, "x": 1}'
    told = await echo([reply(body_bytes)], body(service_tier="flex"))
    assert told.body == body_bytes.replace(b'"service_tier": null', b'"service_tier": "flex"')
    told = await echo([WHOLE], body(service_tier="priority"))
    assert told.json()["service_tier"] == "default"
    assert told.body == b'{"service_tier":"default",' + WHOLE.split(b"\r\n\r\n", 1)[1][1:]
    assert "service_tier" not in (await echo([WHOLE], body())).json()


async def test_the_served_tier_is_named_in_the_last_chunks_of_a_stream():
    stop = {"id": "c1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    script = [*stream([*SAID, event(stop), event(USAGE), DONE])]
    sent = body(True, service_tier="flex", stream_options={"include_usage": True})
    told = await echo(script, sent)
    events = told.events()
    assert [one.get("service_tier") for one in events] == [None, None, None, "flex", "flex"]
    assert told.body.replace(b'"service_tier":"flex",', b"") == b"".join([*SAID, event(stop), event(USAGE), DONE])


async def test_the_served_tier_takes_the_place_of_the_workers_own_word():
    made = event({"type": "response.completed", "response": {"id": "r", "service_tier": "auto", "usage": {}}})
    told = await echo([*stream([made, DONE])], {"model": MODEL, "input": "x", "stream": True, "service_tier": "flex"},
                      "/v1/responses")  # fmt: skip
    assert told.events()[0]["response"]["service_tier"] == "flex"
    whole = reply({"id": "m", "content": [], "usage": {"input_tokens": 1, "output_tokens": 1}})
    told = await echo([whole], {**body(), "service_tier": "standard_only"}, "/v1/messages")
    assert "service_tier" not in told.json()
    assert dict(told.headers)["x-sluice-tier"] == "default"
