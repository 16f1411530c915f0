"""Discovery by EndpointSlices against an API server that fails in every way a watch can: D18."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from loadtests.live.fake_cluster import FakeCluster, lost
from service.workers.addresses import WorkerAddress
from service.workers.cluster import ClusterAccess
from service.workers.kubernetes import KubernetesConfig, KubernetesDiscovery
from service.workers.slices import PortChoice
from tests.support.until import holds, until
from tests.support.virtual_loop import run_virtually

pytestmark = pytest.mark.integration


class Lists(list[dict[str, str]]):
    """The published lists, as addresses by identity; ``leaving`` are the identities said to be on their way out."""

    leaving: frozenset[str] = frozenset()

    def publish(self, found: Sequence[WorkerAddress]) -> None:
        self.append({address.worker_id: address.authority for address in found})
        self.leaving = frozenset(address.worker_id for address in found if address.leaving)

    @property
    def last(self) -> dict[str, str] | None:
        return self[-1] if self else None


def now() -> float:
    return asyncio.get_running_loop().time()


@contextlib.asynccontextmanager
async def following(cluster: FakeCluster, **changes: Any) -> AsyncIterator[tuple[KubernetesDiscovery, Lists]]:
    access = changes.pop("access", ClusterAccess(cluster.url, cluster.namespace))
    changes = {"relist_s": 30.0, "retry_first_s": 0.01, "retry_longest_s": 0.05, "request_timeout_s": 0.5, **changes}
    discovery = KubernetesDiscovery(KubernetesConfig(access, cluster.service, **changes), now, random.Random(1))
    lists = Lists()
    task = asyncio.create_task(discovery.run(lists.publish))
    try:
        yield discovery, lists
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_what_is_there_is_listed_and_what_comes_and_goes_is_told_by_the_watch() -> None:
    async with FakeCluster() as cluster:
        cluster.add("w-0", "uid-0", 9001)
        async with following(cluster) as (discovery, lists):
            await until(lambda: lists.last == {"uid-0": "127.0.0.1:9001"})
            await until(lambda: cluster.watching == 1)
            cluster.add("w-1", "uid-1", 9002)
            await until(lambda: lists.last == {"uid-0": "127.0.0.1:9001", "uid-1": "127.0.0.1:9002"})
            cluster.remove("uid-0")
            await until(lambda: lists.last == {"uid-1": "127.0.0.1:9002"})
            assert discovery.status().source == "kubernetes:inference/workers"
            assert (discovery.status().listed, discovery.status().last_error) == (1, None)
            assert sum("watch=1" not in call for call in cluster.calls) == 1


async def test_d18_a_terminating_pod_is_told_at_once_and_listed_until_it_is_gone() -> None:
    async with FakeCluster() as cluster:
        cluster.add("w-0", "uid-0", 9001)
        async with following(cluster) as (_, lists):
            await until(lambda: cluster.watching == 1)
            cluster.terminate("uid-0")
            await until(lambda: lists.leaving == {"uid-0"})
            assert lists.last == {"uid-0": "127.0.0.1:9001"}
            cluster.remove("uid-0")
            await until(lambda: lists.last == {})


@pytest.mark.parametrize("rudely", [False, True])
async def test_d18_a_watch_that_ends_is_opened_again_and_nothing_is_lost(rudely: bool) -> None:
    async with FakeCluster() as cluster:
        cluster.add("w-0", "uid-0", 9001)
        cluster.add("w-1", "uid-1", 9002)
        async with following(cluster) as (_, lists):
            await until(lambda: cluster.watching == 1)
            cluster.bookmark()
            cluster.end_watches(rudely=rudely)
            cluster.remove("uid-0")  # while no watch is open
            await until(lambda: lists.last == {"uid-1": "127.0.0.1:9002"})


async def test_d18_a_delete_that_no_watch_tells_is_mended_by_the_next_list() -> None:
    async with FakeCluster() as cluster:
        cluster.add("w-0", "uid-0", 9001)
        cluster.add("w-1", "uid-1", 9002)
        async with following(cluster, relist_s=0.2) as (discovery, lists):
            await until(lambda: cluster.watching == 1)
            with lost(cluster):  # silent: the watch stays open, without events or errors
                cluster.remove("uid-0")
                await until(lambda: lists.last == {"uid-1": "127.0.0.1:9002"})
            assert discovery.status().missed >= 1


async def test_d18_410_is_followed_by_a_list_at_once() -> None:
    async with FakeCluster() as cluster:
        cluster.add("w-0", "uid-0", 9001)
        async with following(cluster) as (_, lists):
            await until(lambda: cluster.watching == 1)
            with lost(cluster):
                cluster.add("w-1", "uid-1", 9002)
            cluster.forget_history()
            cluster.end_watches()
            await until(lambda: lists.last == {"uid-0": "127.0.0.1:9001", "uid-1": "127.0.0.1:9002"})
            await until(lambda: cluster.watching == 1)


async def test_d18_a_reused_address_is_another_worker() -> None:
    async with FakeCluster() as cluster:
        cluster.add("w-0", "uid-0", 9001)
        async with following(cluster) as (_, lists):
            await until(lambda: cluster.watching == 1)
            cluster.remove("uid-0")
            cluster.add("w-7", "uid-7", 9001)
            await until(lambda: lists.last == {"uid-7": "127.0.0.1:9001"})


async def test_an_address_that_changes_under_a_pod_is_followed() -> None:
    async with FakeCluster() as cluster:
        cluster.add("w-0", "uid-0", 9001)
        async with following(cluster) as (_, lists):
            await until(lambda: cluster.watching == 1)
            cluster.add("w-0", "uid-0", 9009)
            await until(lambda: lists.last == {"uid-0": "127.0.0.1:9009"})


async def test_lists_come_in_pages() -> None:
    async with FakeCluster() as cluster:
        for number in range(5):
            cluster.add(f"w-{number}", f"uid-{number}", 9001 + number)
        cluster.page_limit = 2
        async with following(cluster) as (_, lists):
            await until(lambda: lists.last is not None)
            assert len(lists[0]) == 5
            assert sum("continue=" in call for call in cluster.calls) == 2


async def test_a_watch_is_resumed_where_it_was_without_a_list() -> None:
    async with FakeCluster() as cluster:
        cluster.add("w-0", "uid-0", 9001)
        async with following(cluster) as (discovery, lists):
            await until(lambda: cluster.watching == 1)
            cluster.bookmark()
            version = cluster.version
            await until(lambda: discovery.status().confirmed_at is not None)
            await asyncio.sleep(0.02)
            cluster.end_watches()
            await until(lambda: sum("watch=1" in call for call in cluster.calls) == 2)
            assert f"resourceVersion={version}" in cluster.calls[-1]  # the bookmark's, not the list's
            assert sum("watch=1" not in call for call in cluster.calls) == 1
            assert len(lists) == 1


async def test_410_over_and_over_is_not_asked_without_pause() -> None:
    async with FakeCluster() as cluster:
        cluster.add("w-0", "uid-0", 9001)
        cluster.always_gone = True
        async with following(cluster, retry_first_s=0.1, retry_longest_s=0.1) as (discovery, lists):
            await until(lambda: discovery.status().failures >= 3)
            assert lists.last == {"uid-0": "127.0.0.1:9001"}
            calls = len(cluster.calls)
            await holds(lambda: len(cluster.calls) <= calls + 10, 0.3, "a bounded pace")


ODD_LINES = [
    b"this is no JSON\n",
    b"[]\n",
    b'{"type": "ADDED"}\n',
    b'{"type": "ADDED", "object": 3}\n',
    b'{"type": "SURPRISE", "object": {"metadata": {}}}\n',
    b'{"type": "ERROR", "object": "odd"}\n',
    b'{"type": "ERROR", "object": {"code": 500, "message": "etcd"}}\n',
    b"x" * (5 << 20),
]


@pytest.mark.parametrize("line", ODD_LINES, ids=range(len(ODD_LINES)))
async def test_a_watch_that_sends_nonsense_is_left_for_a_list(line: bytes) -> None:
    async with FakeCluster() as cluster:
        cluster.add("w-0", "uid-0", 9001)
        async with following(cluster) as (discovery, lists):
            await until(lambda: cluster.watching == 1)
            with lost(cluster):
                cluster.add("w-1", "uid-1", 9002)
            cluster.say(line)
            await until(lambda: lists.last == {"uid-0": "127.0.0.1:9001", "uid-1": "127.0.0.1:9002"})
            assert discovery.status().failures == 1


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (403, "grant the gateway's service account get, list and watch on endpointslices"),
        (401, "pool.kubernetes.token_file"),
        (404, "is pool.kubernetes.api_server a Kubernetes API server?"),
        (500, "etcd is slow"),
        (429, "etcd is slow"),
    ],
)
async def test_a_refusal_names_its_cure_and_takes_nobody_away(status: int, words: str) -> None:
    async with FakeCluster() as cluster:
        cluster.add("w-0", "uid-0", 9001)
        async with following(cluster) as (discovery, lists):
            await until(lambda: cluster.watching == 1)
            cluster.refusal = (status, "etcd is slow")
            cluster.end_watches()
            await until(lambda: discovery.status().failures >= 2)
            assert words in (discovery.status().last_error or "")
            assert lists.last == {"uid-0": "127.0.0.1:9001"}
            cluster.refusal = None
            await until(lambda: discovery.status().last_error is None)


async def test_an_api_server_that_takes_requests_and_answers_none_is_given_up_on() -> None:
    async with FakeCluster() as cluster:
        cluster.hanging = True
        async with following(cluster, request_timeout_s=0.05) as (discovery, _):
            await until(lambda: discovery.status().failures >= 2)


@pytest.mark.parametrize(
    "answer",
    [
        b"[]",
        b"{}",
        b"<html>",
        b'{"metadata": {"resourceVersion": 3}, "items": []}',
        b'{"metadata": {"resourceVersion": "3", "continue": 4}, "items": []}',
        b'{"metadata": {"resourceVersion": "3"}, "items": "some"}',
        b'{"metadata": "odd", "items": null}',
    ],
)
async def test_a_list_that_is_none_is_not_believed(answer: bytes) -> None:
    async with FakeCluster() as cluster:
        cluster.list_answer = answer
        async with following(cluster) as (discovery, lists):
            await until(lambda: discovery.status().failures >= 2)
            assert "answered a list with something else" in (discovery.status().last_error or "")
            assert lists == []


async def test_a_service_that_selects_nobody_is_told_by_its_setting() -> None:
    async with FakeCluster() as cluster, following(cluster) as (discovery, lists):
        await until(lambda: lists.last == {})
        assert "pool.service: 'workers' has no endpoints" in (discovery.status().last_error or "")
        cluster.add("w-0", "uid-0", 9001)
        await until(lambda: lists.last == {"uid-0": "127.0.0.1:9001"})
        assert discovery.status().last_error is None


async def test_a_port_that_is_not_there_is_told_by_its_setting() -> None:
    async with FakeCluster() as cluster:
        cluster.add("w-0", "uid-0", 9001)
        async with following(cluster, port=PortChoice("web")) as (discovery, lists):
            await until(lambda: lists.last == {})
            assert "pool.port_name" in (discovery.status().last_error or "")


async def test_a_bundle_of_authorities_that_cannot_be_read_is_tried_again(tmp_path: Path) -> None:
    async with FakeCluster() as cluster:
        access = ClusterAccess(cluster.url, cluster.namespace, ca_file=tmp_path / "none")
        async with following(cluster, access=access) as (discovery, _):
            await until(lambda: discovery.status().failures >= 2)
            assert "No such file" in (discovery.status().last_error or "")


def test_an_interval_that_breaks_the_promise_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 30"):
        KubernetesConfig(ClusterAccess("http://x", "n"), "s", relist_s=31.0)


# ------------------------------------------------------------------ in virtual time, with the paces of production


def test_d18_ten_minutes_without_the_api_server_change_nothing() -> None:
    async def live() -> None:
        cluster = await FakeCluster().start()
        cluster.add("w-0", "uid-0", 9001)
        access = ClusterAccess(cluster.url, cluster.namespace)
        discovery = KubernetesDiscovery(KubernetesConfig(access, cluster.service), now, random.Random(1))
        lists = Lists()
        task = asyncio.create_task(discovery.run(lists.publish))
        await asyncio.sleep(60.0)
        assert lists.last == {"uid-0": "127.0.0.1:9001"}
        await cluster.stop()
        count, went_at = len(lists), now()
        await asyncio.sleep(600.0)
        status = discovery.status()
        assert (len(lists), lists.last, status.listed) == (count, {"uid-0": "127.0.0.1:9001"}, 1)
        assert status.failures >= 50  # it tries, at most each 12 s
        assert status.failures < 120
        assert status.confirmed_at is not None
        assert status.confirmed_at <= went_at
        cluster.remove("uid-0")
        cluster.add("w-1", "uid-1", 9002)
        await cluster.start()
        await asyncio.sleep(15.0)
        assert lists.last == {"uid-1": "127.0.0.1:9002"}
        task.cancel()
        await asyncio.wait({task})
        await cluster.stop()

    run_virtually(live())


@pytest.mark.parametrize("how", ["silent", "forgetful", "told"])
def test_d18_a_worker_that_is_gone_is_removed_within_30_s(how: str) -> None:
    async def live() -> None:
        cluster = await FakeCluster().start()
        cluster.add("w-0", "uid-0", 9001)
        cluster.add("w-1", "uid-1", 9002)
        access = ClusterAccess(cluster.url, cluster.namespace)
        discovery = KubernetesDiscovery(KubernetesConfig(access, cluster.service), now, random.Random(3))
        lists = Lists()
        task = asyncio.create_task(discovery.run(lists.publish))
        await asyncio.sleep(31.0)
        cluster.muted = how == "silent"
        if how == "forgetful":  # the watch breaks, a worker goes, and the next watch begins behind that
            cluster.forgetful = True
            cluster.end_watches()
        cluster.remove("uid-0")
        went_at = now()
        while lists.last != {"uid-1": "127.0.0.1:9002"}:  # noqa: ASYNC110 - virtual time: no event tells of it
            await asyncio.sleep(0.1)
        assert now() - went_at <= (1.0 if how == "told" else 30.0)
        task.cancel()
        await asyncio.wait({task})
        await cluster.stop()

    run_virtually(live())


class Weather:
    """What may happen to a cluster and its API server, by chance; ``clear`` mends what was broken."""

    def __init__(self, cluster: FakeCluster, chance: random.Random) -> None:
        self.cluster = cluster
        self._chance = chance
        self._count = 0
        self._away = False

    async def change(self) -> None:
        """One thing happens."""
        cluster, chance = self.cluster, self._chance
        known = sorted(cluster.endpoints)
        match chance.randrange(10):
            case 0 | 1:
                self._count += 1
                cluster.add(f"w-{self._count}", f"uid-{self._count}", 9000 + chance.randrange(4))  # reused addresses
            case 2 if known:
                cluster.terminate(chance.choice(known))
            case 3 | 4 if known:
                cluster.remove(chance.choice(known))
            case 5:
                cluster.end_watches(rudely=chance.random() < 0.5)
            case 6:
                cluster.muted = not cluster.muted
            case 7:
                cluster.forget_history()
            case 8:
                cluster.forgetful = not cluster.forgetful
            case 9:
                await (cluster.start() if self._away else cluster.stop())
                self._away = not self._away
            case _:
                cluster.bookmark()

    async def clear(self) -> None:
        """The API server is there and answers; what its watches have not told stays untold."""
        if self._away:
            await self.cluster.start()
            self._away = False


@pytest.mark.parametrize("seed", range(12))
def test_d18_whatever_happened_the_list_is_true_30_s_after_the_api_server_is_there(seed: int) -> None:
    async def live() -> None:
        chance = random.Random(seed)
        cluster = await FakeCluster().start()
        weather = Weather(cluster, chance)
        access = ClusterAccess(cluster.url, cluster.namespace)
        discovery = KubernetesDiscovery(KubernetesConfig(access, cluster.service), now, random.Random(seed))
        lists = Lists()
        task = asyncio.create_task(discovery.run(lists.publish))
        for _ in range(4):
            for _ in range(10):
                await weather.change()
                await asyncio.sleep(chance.expovariate(0.3))
            await weather.clear()
            await asyncio.sleep(30.0)
            assert lists.last == {uid: f"127.0.0.1:{pod.port}" for uid, pod in cluster.endpoints.items()}
            assert lists.leaving == {uid for uid, pod in cluster.endpoints.items() if pod.terminating}
        task.cancel()
        await asyncio.wait({task})
        await cluster.stop()

    run_virtually(live())


async def test_while_the_api_server_is_away_the_last_list_stays() -> None:
    async with FakeCluster() as cluster:
        cluster.add("w-0", "uid-0", 9001)
        async with following(cluster) as (discovery, lists):
            await until(lambda: cluster.watching == 1)
            count = len(lists)
            await cluster.stop()
            await until(lambda: discovery.status().failures >= 4)
            assert len(lists) == count
            cluster.remove("uid-0")
            cluster.add("w-1", "uid-1", 9002)
            await cluster.start()
            await until(lambda: lists.last == {"uid-1": "127.0.0.1:9002"})
            assert discovery.status().last_error is None
            await holds(lambda: cluster.watching <= 1, 0.05)
