"""Discovery by EndpointSlices against an API server that fails in every way a watch can: D18."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from loadtests.live.fake_cluster import FakeCluster, lost
from service.workers.addresses import WorkerAddress
from service.workers.cluster import ClusterAccess
from service.workers.kubernetes import KubernetesConfig, KubernetesDiscovery
from tests.support.until import holds, until

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
