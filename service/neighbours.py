"""What one gateway shares with its neighbours through the store: leases of quota, tenants and keys, load. Part of the
composition root: it joins the adapters of the store to the runtime that uses them.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Protocol

from service.domain.condition import Condition
from service.domain.contract import Allowance
from service.domain.record import Changes
from service.domain.units import ReplicaId, TenantId
from service.gateway.directory import Directory
from service.runtime.clock import sleep
from service.runtime.driver import Driver
from service.runtime.following import PACE_S, Following
from service.runtime.leasing import Leasing
from service.runtime.ports import Clock
from service.runtime.quota import Quotas
from service.runtime.sharing import LoadSharing
from service.settings.build import find_allowances
from service.settings.records import find_ladders, read_records
from service.store.connect import RedisConfig
from service.store.hub import Store
from service.telemetry.gauges import QuotaFigures
from service.workers.guard import run_guarded

_log = logging.getLogger("sluice.store")

_REFUSED_SHOWN = 10


class Neighbours:
    """``pool`` names the workers that all of them serve. ``tiers`` gives the tiers in force, ``month`` the calendar
    month as accounts know it; ``on_allowances`` hears that guaranteed worker-seconds have changed,
    ``on_ladders`` who has another ladder of credits than the standard one.
    """

    def __init__(
        self,
        redis: RedisConfig,
        pool: str,
        driver: Driver,
        directory: Directory,
        clock: Clock,
        tiers: Callable[[], Iterable[str]],
        month: Callable[[], int],
        on_allowances: Callable[[], None],
        on_ladders: Callable[[Mapping[TenantId, str]], None],
    ) -> None:
        self._store = Store(redis, pool=pool)
        self.load = LoadSharing(driver, self._store.load, ReplicaId(self._store.gateway), clock.now)
        self._directory = directory
        self._tiers = tiers
        self._on_allowances = on_allowances
        self._on_ladders = on_ladders
        self._ladders: Mapping[TenantId, str] = {}
        self.leasing = Leasing(self._store.leases, clock, month)
        self.following = Following(self._store.directory, self._take)
        self.allowances: Mapping[TenantId, Allowance] = {}

    def background(self) -> list[Coroutine[Any, Any, None]]:
        """What runs beside the requests until the end."""
        return [
            _keep("leases of quota", self.leasing),
            _keep("following tenants and keys", self.following),
            _keep("sharing the load", self.load),
        ]

    async def enter(self) -> None:
        """Learn what the others know, if it can be learned, before the doors are opened."""
        self.load.begin()
        for what, part in (("leases of quota", self.leasing), ("tenants and keys", self.following)):
            if not await run_guarded(what, part.turn):
                part.note_fault()

    async def leave(self) -> None:
        """Tell the others, if they can be told, that this one is gone."""
        await self._store.close()

    def combine(self, written: Mapping[TenantId, Allowance]) -> Mapping[TenantId, Allowance]:
        """Guaranteed worker-seconds of the store's tenants and of the file's (``written``), which count where both name
        one. The core keeps an equal part of them (``flow.band``)."""
        return {**self.allowances, **written}

    def count_calls(self) -> Counter[tuple[str, Condition]]:
        """Calls so far, by what was asked and how that was answered."""
        load = Counter({("load", condition): count for condition, count in self.load.calls.items()})
        return self.leasing.calls + self.following.calls + load

    async def _take(self, changes: Changes) -> None:
        found = await asyncio.to_thread(read_records, changes.records, frozenset(self._tiers()))
        for name, reason in found.refused[:_REFUSED_SHOWN]:
            _log.error("the store's record of %s is not used: %s", name, reason)
        self._directory.follow(changes.whole, found.keys, found.tenants)
        allowances = {} if changes.whole else dict(self.allowances)
        for tenant_id in found.tenants:
            allowances.pop(tenant_id, None)
        allowances |= find_allowances([tenant for tenant in found.tenants.values() if tenant is not None])
        if allowances != self.allowances:
            self.allowances = allowances
            self._on_allowances()
        kept = {} if changes.whole else self._ladders
        ladders = {name: own for name, own in kept.items() if name not in found.tenants} | find_ladders(found.tenants)
        if ladders != self._ladders:
            self._ladders = ladders
            self._on_ladders(ladders)


class _Part(Protocol):
    async def run(self) -> None: ...

    def note_fault(self) -> None: ...


async def _keep(what: str, part: _Part) -> None:
    """Run ``part`` until cancelled: a turn that fails is logged and counted, and is not the last one."""
    while True:
        if not await run_guarded(what, part.run):
            part.note_fault()
        await sleep(PACE_S)


def read_quota_figures(quotas: Quotas, neighbours: Neighbours | None) -> QuotaFigures:
    """What is counted of limits and of the store."""
    if neighbours is None:
        return QuotaFigures(quotas.accounts, quotas.counts)
    leasing = neighbours.leasing
    return QuotaFigures(quotas.accounts, quotas.counts, neighbours.count_calls(), leasing.away, leasing.replicas)
