"""Four gateway processes, emulated workers and a real Redis: together they never ask more of a worker than it carries,
whoever dies."""

import asyncio
import contextlib
import re
import time

import httpx
import pytest

from tests.support.redis_process import run_redis
from tests.support.service_process import KEY, request_body, run_gateway, run_worker

pytestmark = pytest.mark.integration
CARRIES = 12
VALVE = 14
"""The worker's own valve, a fifth above the gateways' limit."""
TIERS = {"flex": {"rank": 0, "best_effort": True, "queue_ttl_s": 60.0}}


def read_metrics(text, name):
    return {labels: float(value) for labels, value in re.findall(rf"^{name}(\{{.*?\}})? (\S+)$", text, re.MULTILINE)}


class Fleet:
    """The gateways that live, the workers, and what was seen of them meanwhile."""

    def __init__(self, gateways, workers, redis):
        self.gateways, self.workers, self.redis = list(gateways), workers, redis
        self.client = httpx.AsyncClient(trust_env=False, timeout=60.0, limits=httpx.Limits(max_connections=400))
        self.most = 0
        self.statuses = []

    async def read(self, gateway, name):
        headers = {"authorization": "Bearer admin-token-of-a-test"}
        answer = await self.client.get(f"{gateway.admin_url}/metrics", headers=headers)
        return read_metrics(answer.text, name)

    async def sum_permits(self):
        """Permits of all living gateways, by worker."""
        total = {}
        for gateway in self.gateways:
            for worker, permits in (await self.read(gateway, "sluice_worker_permits")).items():
                total[worker] = total.get(worker, 0) + permits
        return list(total.values())

    async def look_until(self, wanted, patience_s):
        """Sums of permits until they are as ``wanted``; the seconds it took."""
        begun = time.monotonic()
        while time.monotonic() - begun < patience_s:
            if wanted(seen := await self.sum_permits()):
                return time.monotonic() - begun
            await asyncio.sleep(0.05)
        raise AssertionError(f"still {seen} after {patience_s} s")

    async def watch(self):
        """How many requests any worker has at once."""
        while True:
            for worker in self.workers:
                text = (await self.client.get(f"{worker.url}/metrics")).text
                running = sum(read_metrics(text, "vllm:num_requests_running").values())
                waiting = sum(read_metrics(text, "vllm:num_requests_waiting").values())
                self.most = max(self.most, running + waiting)
            await asyncio.sleep(0.02)

    async def feed(self, tokens, number):
        """One client that asks its gateway again and again, so that no gateway is ever without work; another one when
        its own is dead."""
        while True:
            gateway = self.gateways[number % len(self.gateways)]
            try:
                answer = await self.client.post(
                    f"{gateway.url}/v1/chat/completions",
                    json=request_body(tokens),
                    headers={"authorization": f"Bearer {KEY}"},
                )
                self.statuses.append((gateway, answer.status_code))
            except httpx.HTTPError:
                self.statuses.append((gateway, None))

    async def count_rejected(self):
        total = 0.0
        for worker in self.workers:
            text = (await self.client.get(f"{worker.url}/metrics")).text
            total += sum(read_metrics(text, "vllm:admission_rejections_total").values())
        return total


@contextlib.asynccontextmanager
async def run_fleet(folder, count=4):
    limits = {"requests_per_worker": CARRIES, "replicas_assumed": count, "drain_delay_s": 0.0, "grace_s": 2.0}
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(run_redis(folder))
        workers = [
            stack.enter_context(run_worker(folder, "m3.1-flash", "--max-num-queued-reqs", str(VALVE))) for _ in range(2)
        ]
        more = {"state": redis.url, "limits": limits, "tiers": TIERS}
        environment = {"SLUICE_CACHE_SALT": "the same on every gateway"}
        gateways = [stack.enter_context(run_gateway(folder, workers, environment, **more)) for _ in range(count)]
        fleet = Fleet(gateways, workers, redis)
        tasks = [asyncio.ensure_future(fleet.watch())]
        tasks += [asyncio.ensure_future(fleet.feed(240, number)) for number in range(60)]
        try:
            yield fleet
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await fleet.client.aclose()


def all_of_it(sums):
    """No share lies idle: a dead gateway's would be three or four of the twelve of a worker. One or two may be missing,
    since a limit is learned, and a busy machine lets requests wait inside a worker that could carry them."""
    return len(sums) == 2 and all(CARRIES - 2 <= one <= CARRIES for one in sums)


async def test_they_act_as_one_whoever_dies(tmp_path):
    async with run_fleet(tmp_path) as fleet:
        await fleet.look_until(all_of_it, 30.0)
        assert [await fleet.read(one, "sluice_replicas") for one in fleet.gateways] == [{"": 4.0}] * 4
        await asyncio.sleep(3.0)

        dead = fleet.gateways.pop()
        dead.process.kill()
        await fleet.look_until(all_of_it, 30.0)  # how soon is the simulator's to say: this machine may be busy

        fleet.redis.kill()
        until = time.monotonic() + 3.0
        while time.monotonic() < until:
            assert all(one <= CARRIES for one in await fleet.sum_permits())
            await asyncio.sleep(0.1)
        assert [await fleet.read(one, "sluice_replicas_silent") for one in fleet.gateways] == [{"": 1.0}] * 3
        served = len(fleet.statuses)
        await asyncio.sleep(1.0)
        assert len(fleet.statuses) > served, "nobody is served while Redis is away"

        fleet.redis.start()
        begun = time.monotonic()
        while any([(await fleet.read(one, "sluice_replicas_silent"))[""] for one in fleet.gateways]):
            assert time.monotonic() - begun < 30.0
            await asyncio.sleep(0.05)
        await fleet.look_until(all_of_it, 30.0)

        assert await fleet.count_rejected() == 0.0
        assert CARRIES - 2 <= fleet.most <= VALVE
        failed = [status for gateway, status in fleet.statuses if gateway is not dead and status != 200]
        assert not failed
