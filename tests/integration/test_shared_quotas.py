"""Four gateways and one real Redis: together they let pass what one would, whatever becomes of Redis. Case D11."""

import asyncio
import contextlib
import itertools
import time

import pytest

from service.domain.condition import Condition
from service.domain.contract import Contract, Excess
from service.domain.tenant import Tenant
from service.domain.tier import Tier
from service.domain.units import TenantId, TierName
from service.flow.lease import bound_overshoot
from tests.support.gateway import MODEL, running_gateway
from tests.support.raw_client import RawClient
from tests.support.redis_process import run_redis
from tests.support.until import until
from tests.support.written_worker import HANG, ScriptedWorker

pytestmark = pytest.mark.integration
CHAT = "/v1/chat/completions"
PAID, FREE = "sk-sluice-test-paid", "sk-sluice-test-free"
TIERS = {
    TierName("default"): Tier(TierName("default"), 0),
    TierName("flex"): Tier(TierName("flex"), 1, best_effort=True),
}


@pytest.fixture
def redis(tmp_path):
    with run_redis(tmp_path) as server:
        yield server


@contextlib.asynccontextmanager
async def fleet(redis, worker, count=4, **contract):
    """So many gateways that know of each other."""
    sold = Contract(**contract)
    tenants = [
        (PAID, Tenant(TenantId("paid"), TierName("default"), contract=sold)),
        (FREE, Tenant(TenantId("free"), TierName("flex"), contract=sold)),
    ]
    async with contextlib.AsyncExitStack() as stack:
        gateways = [
            await stack.enter_async_context(
                running_gateway([worker.port], tenants=tenants, tiers=TIERS, redis_url=redis.url)
            )
            for _ in range(count)
        ]
        await until(lambda: all(one.leasing.replicas == count for one in gateways))
        yield gateways


def body(**more):
    return {"model": MODEL, "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]} | more


async def ask(gateway, key=PAID):
    """Status, headers and seconds."""
    async with await RawClient.connect(gateway.port) as client:
        began_at = time.monotonic()
        client.send("POST", CHAT, body(), [f"authorization: Bearer {key}"])
        answer = await client.answer()
        return answer.status, dict(answer.headers), time.monotonic() - began_at


async def ask_in_turn(gateways, count, key=PAID):
    """Round robin, all at once."""
    turns = itertools.islice(itertools.cycle(gateways), count)
    return await asyncio.gather(*[ask(gateway, key) for gateway in turns])


def passed(answers):
    return sum(status == 200 for status, _, _ in answers)


async def test_exactly_the_limit_passes_of_a_burst_over_four(redis):
    async with ScriptedWorker() as worker, fleet(redis, worker, requests_per_minute=100) as gateways:
        answers = await ask_in_turn(gateways, 500)
        assert passed(answers) == 100
        assert {status for status, _, _ in answers} == {200, 429}
        waits = {int(headers["retry-after"]) for status, headers, _ in answers if status == 429}
        assert 1 <= min(waits) <= max(waits) <= 62


async def test_exactly_the_limit_passes_of_a_burst_on_one_of_four(redis):
    async with ScriptedWorker() as worker, fleet(redis, worker, requests_per_minute=100) as gateways:
        assert passed(await ask_in_turn(gateways[:1], 300)) == 100
        assert passed(await ask_in_turn(gateways, 40)) == 0


async def test_d09_tokens_and_concurrency_over_two_gateways(redis):
    async with ScriptedWorker([HANG]) as worker, fleet(redis, worker, 2, concurrency=3) as gateways:
        asks = [asyncio.create_task(ask(gateway)) for gateway in [*gateways] * 25]
        done, running = await asyncio.wait(asks, timeout=2.0)
        assert (len(done), len(running)) == (47, 3)
        assert {task.result()[0] for task in done} == {429}
        for task in running:
            task.cancel()
        await until(lambda: not any(one.driver.travelling for one in gateways))
    async with ScriptedWorker([HANG]) as worker, fleet(redis, worker, 2, tokens_per_minute=150) as gateways:
        asks = [asyncio.create_task(ask(gateway)) for gateway in [*gateways] * 3]
        done, running = await asyncio.wait(asks, timeout=2.0)
        assert 1 <= len(running) < 6
        reserved = sum(account.tokens.limit - account.tokens.free(False, 1, one.quotas._clock.now())
                       for one in gateways for account in one.quotas._accounts.values())  # fmt: skip
        assert reserved <= 2 * 150  # each knows the fleet's spending; the sum counts none of it twice beyond that
        for task in running:
            task.cancel()


async def test_a_lease_that_is_given_back_is_anothers(redis):
    async with ScriptedWorker() as worker, fleet(redis, worker, 2, requests_per_minute=20) as gateways:
        for _ in range(8):
            assert (await ask(gateways[0]))[0] == 200
        await until(lambda: not gateways[0].leasing._entries)
        assert passed(await ask_in_turn(gateways[1:], 30)) == 12


@pytest.mark.parametrize("how", ["killed", "paused", "read-only", "flushed"])
async def test_d11_redis_fails_in_the_middle(redis, how):
    limit = 80
    async with ScriptedWorker() as worker, fleet(redis, worker, requests_per_minute=limit) as gateways:
        before = await ask_in_turn(gateways, 40)
        assert passed(before) == 40
        await until(lambda: not any(one.leasing._entries for one in gateways))
        if how == "killed":
            redis.kill()
        elif how == "paused":
            redis.pause()
        elif how == "read-only":
            redis.say("REPLICAOF", "127.0.0.1", "1")
        else:
            redis.say("FLUSHALL")
        slow = []
        total = 40
        for _ in range(6):
            answers = await ask_in_turn(gateways, 40)
            total += passed(answers)
            slow += [length_s for _, _, length_s in answers]
            if how == "flushed":
                assert {status for status, _, _ in answers} <= {200, 429}
            else:  # never a word that blames the tenant for what nobody can know
                assert {status for status, _, _ in answers} <= {200, 429, 503}
        assert limit <= total <= limit + bound_overshoot(limit, 4)
        if how == "flushed":
            assert all(one.leasing.condition is Condition.FINE for one in gateways)
            return
        assert all(one.leasing.away for one in gateways)
        closed = await ask_in_turn(gateways, 4, FREE)
        assert [status for status, _, _ in closed] == [503] * 4
        if how == "killed":
            redis.start()
        elif how == "paused":
            redis.resume()
        else:
            redis.say("REPLICAOF", "NO", "ONE")
        await until(lambda: all(one.leasing.condition is Condition.FINE for one in gateways))
        await until(lambda: not any(one.leasing._entries for one in gateways))
        assert passed(await ask_in_turn(gateways, 40)) == 0
        found = redis.say("HGETALL", "sluice:{paid}:quota").split()
        used = sum(int(amount) for name, amount in zip(found[::2], found[1::2], strict=True) if name[0] == "r")
        assert used == total  # all of it, and nothing twice


async def test_excess_runs_on_when_nobody_can_say(redis):
    async with (
        ScriptedWorker() as worker,
        fleet(redis, worker, 2, requests_per_minute=4, excess=Excess.RUN) as gateways,
    ):
        redis.kill()
        answers = await ask_in_turn(gateways, 20)
        assert passed(answers) == 20
        assert sum("x-sluice-excess" in headers for _, headers, _ in answers) == 16
