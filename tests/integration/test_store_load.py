"""Reports in a real Redis, beside their twin in the process: the same is heard, and whatever goes wrong is told."""

import asyncio

import pytest

from service.domain.condition import Condition, StoreError
from service.domain.event import ReplicasSeen, ReportDue
from service.domain.units import ReplicaId
from service.runtime.sharing import LoadSharing
from service.store.connect import RedisConfig, open_redis
from service.store.shared_load import MemoryLoad, RedisLoad, decode_reports
from tests.support.redis_process import run_redis
from tests.support.replicas import build_report, build_use
from tests.support.until import until

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def redis(tmp_path_factory):
    with run_redis(tmp_path_factory.mktemp("redis"), "secret") as server:
        yield server


@pytest.fixture
async def client(redis):
    redis.say("FLUSHALL")
    client = open_redis(RedisConfig(redis.url, "secret"))
    yield client
    await client.aclose()


@pytest.fixture(params=["redis", "twin"])
def load(request, client):
    return RedisLoad(client, "pool", 1.0) if request.param == "redis" else MemoryLoad({})


def report(name, number, **use):
    return build_report(name, build_use(promises=((0.025, 3),), slack_s=0.1 + 0.2, **use), number=number)


async def test_each_hears_the_latest_of_all_others_and_not_itself(load):
    assert list(await load.exchange(report("a", 1))) == []
    assert list(await load.exchange(report("b", 7))) == [report("a", 1)]
    assert list(await load.exchange(report("a", 2, held=3))) == [report("b", 7)]
    heard = await load.exchange(report("c", 1))
    assert sorted(heard, key=lambda one: one.replica_id) == [report("a", 2, held=3), report("b", 7)]


async def test_one_that_was_overtaken_is_not_taken(load):
    await load.exchange(report("a", 5))
    await load.exchange(report("a", 4))
    assert list(await load.exchange(report("b", 1))) == [report("a", 5)]


async def test_pools_do_not_hear_each_other_and_no_key_lives_for_ever(client, redis):
    one, other = RedisLoad(client, "one", 1.0), RedisLoad(client, "other", 1.0)
    await one.exchange(report("a", 1))
    assert list(await other.exchange(report("b", 1))) == []
    keys = redis.say("KEYS", "*").split()
    assert len(keys) == 2
    for key in keys:
        assert key.startswith("sluice:{load:")
        assert 0 < int(redis.say("PTTL", key)) <= 10_000


async def test_reports_of_the_dead_are_swept_out(client, redis):
    load = RedisLoad(client, "pool", 1.0)
    await load.exchange(report("a", 1))
    (key,) = redis.say("KEYS", "*").split()
    redis.say("HSET", key, "a", "1000 1 written long ago")
    assert list(await load.exchange(report("b", 1))) == []
    assert redis.say("HKEYS", key) == "b"


async def test_a_flush_of_scripts_is_not_noticed(client, redis):
    load = RedisLoad(client, "pool", 1.0)
    await load.exchange(report("a", 1))
    redis.say("SCRIPT", "FLUSH")
    assert list(await load.exchange(report("b", 1))) == [report("a", 1)]
    assert list(await load.exchange(report("b", 2))) == [report("a", 1)]


async def test_a_wrong_password_a_pause_and_what_cannot_be_read_are_told_apart(client, redis):
    stranger = open_redis(RedisConfig(redis.url, "wrong"))
    with pytest.raises(StoreError) as denied:
        await RedisLoad(stranger, "pool", 1.0).exchange(report("a", 1))
    assert denied.value.condition is Condition.DENIED
    await stranger.aclose()
    load = RedisLoad(client, "pool", 0.05)
    await load.exchange(report("a", 1))
    redis.pause()
    try:
        with pytest.raises(StoreError) as slow:
            await load.exchange(report("a", 2))
        assert slow.value.condition is Condition.SLOW
    finally:
        redis.resume()
    with pytest.raises(StoreError) as unread:
        decode_reports([b"\xc1"])
    assert unread.value.condition is Condition.FAILED


class Core:
    """The driver's end."""

    def __init__(self, silent=False):
        self.events = []
        self.silent = silent

    def submit(self, event):
        self.events.append(event)

    def report(self):
        return None if self.silent else build_report("me", number=sum(isinstance(e, ReportDue) for e in self.events))


class Failing:
    """A store that answers, and does not, in turn."""

    def __init__(self):
        self.asked = 0

    async def exchange(self, said):
        self.asked += 1
        if self.asked % 2 == 0:
            raise StoreError(Condition.SLOW, "late")
        return [report("other", self.asked)]


async def test_a_turn_says_and_hears_and_a_failure_is_counted_and_tried_again(caplog):
    core, store = Core(), Failing()
    sharing = LoadSharing(core, store, ReplicaId("me"), lambda: 0.0)
    for _ in range(3):
        await sharing.turn()
    assert core.events == [
        ReportDue("me"), ReplicasSeen(1, (report("other", 1),)), ReportDue("me"), ReportDue("me"),
        ReplicasSeen(3, (report("other", 3),)),
    ]  # fmt: skip
    assert sharing.calls == {Condition.FINE: 2, Condition.SLOW: 1}
    assert [record.levelname for record in caplog.records if record.name == "sluice.store"][:1] == ["WARNING"]


async def test_it_goes_on_by_itself_until_it_is_cancelled():
    core = Core(silent=True)
    sharing = LoadSharing(core, Failing(), ReplicaId("me"), asyncio.get_running_loop().time)
    sharing.begin()
    running = asyncio.ensure_future(sharing.run())
    await until(lambda: len(core.events) >= 3)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert all(event == ReportDue("me") for event in core.events)
