"""Leases in a real Redis, beside their twin in the process: the same asks get the same answers, whatever goes wrong."""

import random

import pytest

from service.domain.condition import Condition, StoreError
from service.flow.lease import Ask, Grant, Report, bound_overshoot
from service.store.book import LeaseBook
from service.store.connect import RedisConfig, open_redis
from service.store.redis_leases import RedisLeases
from tests.support.redis_process import run_redis

pytestmark = pytest.mark.integration
MONTH = 24312


@pytest.fixture(scope="module")
def redis(tmp_path_factory):
    with run_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
async def client(redis):
    redis.say("FLUSHALL")
    client = open_redis(RedisConfig(redis.url))
    yield client
    await client.aclose()


def ask(limit, want, spent=(), recall=()):
    return Ask(limit, want, want, list(spent), list(recall))


def report(number, requests=None, tokens=None, fresh=True, running=0, want_running=0, limit_running=None, month=0):
    return Report(number, fresh, requests, tokens, running, want_running, limit_running, MONTH, month)


async def test_the_script_and_its_twin_give_the_same_answers(client):
    chance = random.Random(5)
    book = LeaseBook()
    gateways = {name: RedisLeases(client, name, 1.0) for name in ("a", "b", "c")}
    known, numbers, now_ms = set(), dict.fromkeys(gateways, 0), 1_700_000_000_000
    for _ in range(400):
        now_ms += chance.choice((1, 40, 250, 900, 3500, 20_000))
        name = chance.choice(sorted(gateways))
        numbers[name] += chance.choice((0, 1, 1, 1))

        def some(limit):
            spent = [(chance.randrange(0, 4), chance.randrange(-5, 30)) for _ in range(chance.randrange(3))]
            recall = [(chance.randrange(0, 100), chance.randrange(40)) for _ in range(chance.randrange(2))]
            return None if chance.random() < 0.1 else ask(limit, chance.randrange(0, 60), spent, recall)

        said = report(
            numbers[name], some(200), some(5000), fresh=chance.random() < 0.2, running=chance.randrange(3),
            want_running=chance.randrange(9), limit_running=chance.choice((None, 6)), month=chance.randrange(50),
        )  # fmt: skip
        (answer,) = await gateways[name].exchange([("acme", said)], now_ms)
        assert answer == book.exchange(name, "acme", said, now_ms / 1000.0)
        known.add(answer.lost)
    assert known == {True, False}


async def test_every_key_has_a_ttl_and_a_tenants_keys_share_a_slot(client, redis):
    leases = RedisLeases(client, "a", 1.0)
    await leases.exchange([("acme", report(1, ask(10, 5, [(0, 3)]), month=7))])
    assert await leases.count_gateways(5.0) == 1
    keys = redis.say("KEYS", "*").split()
    assert len(keys) == 3
    assert all(int(redis.say("PTTL", key)) > 0 for key in keys)
    slots = {redis.say("CLUSTER", "KEYSLOT", key) for key in keys if "acme" in key}
    assert len(slots) == 1


async def test_scripts_are_loaded_again_after_a_flush(client, redis):
    leases = RedisLeases(client, "a", 1.0)
    await leases.exchange([("acme", report(1, ask(10, 5, [(0, 3)])))])
    redis.say("SCRIPT", "FLUSH")
    (grant,) = await leases.exchange([("acme", report(2, ask(10, 5), fresh=False))])
    assert (grant.lost, grant.requests.held, grant.requests.spare) == (False, 5, 2)


async def test_what_was_said_twice_is_counted_once(client):
    leases = RedisLeases(client, "a", 1.0)
    for _ in range(3):
        (grant,) = await leases.exchange([("acme", report(1, ask(100, 0, [(0, 30)]), month=30))])
    assert grant.requests.spare == 70
    assert grant.month_spent == 30


async def test_a_flushed_store_is_told_what_was_known(client, redis):
    leases = RedisLeases(client, "a", 1.0)
    await leases.exchange([("acme", report(1, ask(100, 0, [(0, 30)])))])
    redis.say("FLUSHALL")
    (grant,) = await leases.exchange([("acme", report(2, ask(100, 0, [(0, 5)]), fresh=False))])
    assert grant == Grant(lost=True)
    (grant,) = await leases.exchange([("acme", report(2, ask(100, 0, [(0, 5)], [(0, 30)])))])
    assert grant.requests.spare == 65


async def test_gateways_are_counted_while_they_live(client):
    one, two = RedisLeases(client, "a", 1.0), RedisLeases(client, "b", 1.0)
    assert await one.count_gateways(5.0) == 1
    assert await two.count_gateways(5.0) == 2
    await one.leave()
    assert await two.count_gateways(5.0) == 1


async def find_condition(url, password=None, limit_s=0.5):
    client = open_redis(RedisConfig(url, password))
    try:
        with pytest.raises(StoreError) as caught:
            await RedisLeases(client, "a", limit_s).exchange([("acme", report(1, ask(10, 5)))])
        return caught.value.condition
    finally:
        await client.aclose()


async def test_each_way_of_failing_is_told_apart(tmp_path):
    with run_redis(tmp_path, password="right") as redis:
        assert await find_condition(redis.url, "wrong") is Condition.DENIED
        assert await find_condition(redis.url) is Condition.DENIED
        redis.say("SET", "sluice:{acme}:quota", "somebody else's")
        assert await find_condition(redis.url, "right") is Condition.FAILED
        redis.say("DEL", "sluice:{acme}:quota")
        redis.say("CONFIG", "SET", "min-replicas-to-write", "1")
        assert await find_condition(redis.url, "right") is Condition.READ_ONLY
        redis.say("CONFIG", "SET", "min-replicas-to-write", "0")
        redis.say("REPLICAOF", "127.0.0.1", "1")
        assert await find_condition(redis.url, "right") is Condition.READ_ONLY
        redis.say("REPLICAOF", "NO", "ONE")
        redis.pause()
        assert await find_condition(redis.url, "right", 0.05) is Condition.SLOW
        redis.resume()
        redis.kill()
        assert await find_condition(redis.url, "right") is Condition.AWAY


@pytest.mark.parametrize(("limit", "replicas", "bound"), [(100, 1, 0), (100, 4, 75), (10, 4, 9), (1, 4, 3)])
def test_the_bound(limit, replicas, bound):
    assert bound_overshoot(limit, replicas) == bound
