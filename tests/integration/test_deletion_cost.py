"""The annotation on workers' pods: written seldom, to the right pod, and with a cure where it may not be."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest

from loadtests.live.fake_cluster import FakeCluster
from service.domain.load import WorkerLoad
from service.domain.units import WorkerId
from service.workers.addresses import WorkerAddress
from service.workers.cluster import ClusterAccess
from service.workers.deletion_cost import ANNOTATION, DeletionCostConfig, DeletionCosts
from tests.support.virtual_loop import run_virtually

pytestmark = pytest.mark.integration


class House:
    """Two workers' pods, and what writes their costs."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.running = {"0": 0, "1": 0}
        self.costs = DeletionCosts(
            DeletionCostConfig(ClusterAccess(cluster.url, cluster.namespace), timeout_s=1.0),
            self.look,
            random.Random(1),
        )

    def look(self) -> list[SimpleNamespace]:
        at = asyncio.get_running_loop().time()
        return [
            SimpleNamespace(
                address=WorkerAddress(WorkerId(f"uid-{name}"), "127.0.0.1", 9000, pod=f"w-{name}"),
                load=WorkerLoad(at, running_requests=running, waiting_requests=0),
            )
            for name, running in self.running.items()
        ]

    @property
    def annotations(self) -> dict[str, str | None]:
        return {name: pod["metadata"]["annotations"].get(ANNOTATION) for name, pod in self.cluster.pods.items()}


def live(scene: Callable[[House], Awaitable[None]]) -> None:
    async def play() -> None:
        async with FakeCluster() as cluster:
            for name in ("0", "1"):
                cluster.add(f"w-{name}", f"uid-{name}", 9000 + int(name))
            house = House(cluster)
            task = asyncio.create_task(house.costs.run())
            await scene(house)
            task.cancel()
            await asyncio.wait({task})

    run_virtually(play())


def test_costs_follow_the_load_with_few_writes() -> None:
    async def scene(house: House) -> None:
        house.running["1"] = 20
        await asyncio.sleep(600)
        assert house.annotations == {"w-0": "0", "w-1": "50"}
        assert house.costs.writes == len(house.cluster.patches) == 2
        house.running["1"] = 3
        await asyncio.sleep(600)
        assert house.annotations == {"w-0": "0", "w-1": "20"}
        assert house.costs.writes == 3

    live(scene)


def test_another_pod_of_the_same_name_is_not_written() -> None:
    async def scene(house: House) -> None:
        house.cluster.pods["w-0"]["metadata"]["uid"] = "uid-of-a-newcomer"
        house.cluster.pods.pop("w-1")
        await asyncio.sleep(600)
        assert house.annotations == {"w-0": None}
        assert house.costs.writes == 0

    live(scene)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (403, "deletion cost: pool.kubernetes.deletion_cost: grant patch on pods in namespace 'inference'"),
        (500, "answered 500 to a patch of pod w-"),
    ],
)
def test_a_refusal_is_told_once_and_tried_again(caplog: pytest.LogCaptureFixture, status: int, words: str) -> None:
    async def scene(house: House) -> None:
        house.running.pop("1")
        house.cluster.refusal = (status, "no")
        await asyncio.sleep(600)
        told = [record.message for record in caplog.records if "deletion cost" in record.message]
        assert len(told) == 1
        assert words in told[0]
        house.cluster.refusal = None
        await asyncio.sleep(120)
        assert house.annotations["w-0"] == "0"

    with caplog.at_level(logging.WARNING, "sluice.workers"):
        live(scene)


@pytest.mark.parametrize("how", ["away", "hanging"])
def test_an_api_server_that_is_away_is_tried_again(how: str) -> None:
    async def scene(house: House) -> None:
        if how == "away":
            await house.cluster.stop()
        house.cluster.hanging = how == "hanging"
        await asyncio.sleep(300)
        assert house.costs.writes == 0
        house.cluster.hanging = False
        if how == "away":
            await house.cluster.start()
        await asyncio.sleep(120)
        assert house.annotations == {"w-0": "0", "w-1": "0"}

    live(scene)


def test_no_more_than_so_many_are_written_at_once() -> None:
    async def scene(house: House) -> None:
        house.running = {str(number): 1 for number in range(40)}
        for number in range(40):
            house.cluster.add(f"w-{number}", f"uid-{number}", 9000 + number)
        counts = set()
        for _ in range(60):
            before = house.costs.writes
            await asyncio.sleep(5)
            counts.add(house.costs.writes - before)
        assert house.costs.writes == 40
        assert max(counts) == 16

    live(scene)
