"""A whole gateway in the test's own process and event loop, on loopback, in front of workers the test names."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from service.domain.event import WorkerHealthChanged, WorkerJoined
from service.domain.tenant import Tenant
from service.domain.tier import Tier
from service.domain.units import TenantId, TierName, WorkerId
from service.flow.config import FlowConfig
from service.flow.controller import FlowController
from service.gateway.app import Guard, build_rest
from service.gateway.auth import hash_key
from service.gateway.corridor import Corridor
from service.gateway.cors import CorsPolicy
from service.gateway.directory import Directory
from service.gateway.promises import CorridorConfig
from service.gateway.server import EdgeConfig, EdgeProtocol, build_protocol_factory
from service.runtime.account import Accounts, Settlement
from service.runtime.clock import MonotonicClock, sleep
from service.runtime.driver import Driver
from service.runtime.journey import Road
from service.runtime.leasing import Leasing
from service.runtime.limits import RelayConfig
from service.runtime.outbox import Outbox
from service.runtime.quota import Quotas
from service.runtime.turnstile import Turnstile
from service.store.connect import RedisConfig
from service.store.hub import Store
from service.workers.addresses import WorkerAddress
from service.workers.pool import PoolConfig, WorkerPool

MODEL = "MiniMax-M3.1-Flash"
_FLOW = FlowConfig(requests_per_new_worker=1024)
"""Workers of tests say nothing of their load; nothing has to be found before they are used."""
KEY = "sk-sluice-test-acme"
OTHER_KEY = "sk-sluice-test-umbra"
SUSPENDED_KEY = "sk-sluice-test-suspended"
TIERS = {
    TierName("priority"): Tier(TierName("priority"), 0),
    TierName("default"): Tier(TierName("default"), 1),
}


@dataclass
class Ledger:
    """Keeps every settlement, in order."""

    settlements: list[Settlement] = field(default_factory=list)

    def settle(self, settlement: Settlement) -> None:
        self.settlements.append(settlement)

    @property
    def outcomes(self) -> list[str]:
        return [s.outcome.label for s in self.settlements if s.outcome is not None]


@dataclass
class TestGateway:
    """What a test can look at. ``port`` is the public port."""

    __test__ = False

    port: int
    driver: Driver
    pool: WorkerPool
    ledger: Ledger
    corridor: Corridor
    quotas: Quotas
    leasing: Leasing | None
    connections: set[EdgeProtocol]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def add_worker(self, port: int, name: str | None = None) -> WorkerId:
        worker_id = WorkerId(name or f"127.0.0.1:{port}")
        self.pool.add(worker_id, WorkerAddress(worker_id, "127.0.0.1", port, False))
        self.driver.submit(WorkerJoined(worker_id))
        self.driver.submit(WorkerHealthChanged(worker_id, True))
        return worker_id

    def check_nothing_is_held(self) -> None:
        """All in-flight counts are back at zero."""
        stats = self.driver.stats()
        assert (stats.in_flight, stats.queued_requests, stats.queued_tokens) == (0, 0, 0)
        assert all(worker.in_flight == 0 for worker in stats.workers)
        assert all(self.pool.in_flight(worker.worker_id) == 0 for worker in stats.workers)
        assert self.driver.travelling == 0

    async def settled(self, count: int, within_s: float = 5.0) -> list[Settlement]:
        """Wait until ``count`` requests are settled."""
        async with asyncio.timeout(within_s):
            while len(self.ledger.settlements) < count:
                await sleep(0.005)
        return self.ledger.settlements


async def forever() -> None:
    await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def running_gateway(
    worker_ports: Sequence[int] = (),
    *,
    flow: FlowConfig | None = None,
    relay: RelayConfig | None = None,
    edge: EdgeConfig | None = None,
    pool: PoolConfig | None = None,
    cors: CorsPolicy | None = None,
    sweep_s: float = 0.02,
    ready: Callable[[], str | None] = lambda: None,
    tenants: Sequence[tuple[str, Tenant]] = (),
    tiers: Mapping[TierName, Tier] = TIERS,
    redis_url: str | None = None,
) -> AsyncIterator[TestGateway]:
    """Serve on a free loopback port until the block ends; sweeps run every ``sweep_s``."""
    loop = asyncio.get_running_loop()
    clock = MonotonicClock()
    driver = Driver(FlowController(flow or _FLOW, random.Random(1)), clock, loop)
    outbox, turnstile = Outbox(loop.call_soon), Turnstile(loop.call_soon)
    worker_pool = WorkerPool(pool or PoolConfig(), loop, clock.now, outbox.write, turnstile.enter)
    ledger = Ledger()

    def opaque(worker_id: WorkerId) -> bytes:
        return b"w-" + hash_key(worker_id.encode()).hex()[:8].encode()

    store = None if redis_url is None else Store(RedisConfig(redis_url))
    leasing = None if store is None else Leasing(store.leases, clock, lambda: quotas.month)
    quotas = Quotas(driver, clock, loop.call_later, leasing)
    road = Road(driver, worker_pool, Accounts([quotas, ledger]), clock, loop.call_later, relay or RelayConfig(), opaque)
    directory = Directory(clock.wall)
    known = [
        (KEY, Tenant(TenantId("acme"), TierName("priority"))),
        (OTHER_KEY, Tenant(TenantId("umbra"), TierName("default"))),
        (SUSPENDED_KEY, Tenant(TenantId("gone"), TierName("default"), suspended=True)),
        *tenants,
    ]
    directory.replace([(hash_key(key.encode()), tenant, None) for key, tenant in known])
    policy = cors or CorsPolicy()
    corridor = Corridor(road, directory, quotas, CorridorConfig(MODEL, tiers, salt=b"test"), policy)
    rest = build_rest(lambda: [{"id": MODEL, "object": "model"}], ready)
    factory, state = build_protocol_factory(
        Guard(rest, directory, policy), edge or EdgeConfig(), corridor, loop, None, outbox, turnstile
    )
    server = await loop.create_server(factory, "127.0.0.1", 0, backlog=1024)
    gateway = TestGateway(
        server.sockets[0].getsockname()[1],
        driver,
        worker_pool,
        ledger,
        corridor,
        quotas,
        leasing,
        state.connections,  # type: ignore[arg-type]
    )
    for port in worker_ports:
        gateway.add_worker(port)

    async def sweep() -> None:
        while True:
            await sleep(sweep_s)
            driver.sweep()
            quotas.beat()
            worker_pool.sweep()
            for connection in list(gateway.connections):
                connection.on_sweep(clock.now())

    sweeping = asyncio.create_task(sweep())
    lending = asyncio.create_task(forever() if leasing is None else leasing.run())
    if leasing is not None:
        await leasing.turn()
    try:
        yield gateway
    finally:
        for task in (sweeping, lending):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if store is not None:
            await store.close()
        server.close()
        for connection in list(gateway.connections):
            connection.transport.abort()
        worker_pool.close()
        await sleep(0)
        await server.wait_closed()
