"""Keeps one watch per worker process and tells the core who joined, who left, and how they are."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from service.domain.event import Event, WorkerHealthChanged, WorkerJoined, WorkerLeft
from service.domain.load import WorkerLoad
from service.domain.replica import GENERATION_MARK
from service.domain.units import WorkerId
from service.workers.addresses import WorkerAddress
from service.workers.discovery import Discovery, DiscoveryStatus, reconcile
from service.workers.guard import run_guarded
from service.workers.health import Health
from service.workers.identity import Incarnation
from service.workers.pacing import Chance, wait_until_set
from service.workers.probe import ClientFactory, Probe
from service.workers.watch import MonitorConfig, Watch

_LOG = logging.getLogger("sluice.workers")

_REMEMBERED = 4096
"""Addresses whose last process is remembered after they left, so that a return is told from a newcomer."""


class Traffic(Protocol):
    """The gateway's own view of a worker."""

    def in_flight(self, worker_id: WorkerId) -> int:
        """Our requests on it."""
        ...

    def last_byte_at(self, worker_id: WorkerId) -> float | None:
        """When a byte of an answer last came from it, on the monitor's clock."""
        ...


class Roster(Protocol):
    """Whoever connects to workers by their id."""

    def add(self, worker_id: WorkerId, address: WorkerAddress) -> None:
        """``worker_id`` is reached at ``address``; called before the core hears of it."""
        ...

    def welcome(self, worker_id: WorkerId) -> None:
        """The core knows ``worker_id`` and it has no work yet; it may be one that was here before."""
        ...

    def remove(self, worker_id: WorkerId) -> None:
        """No new connections; called after the core heard that it left. What is under way may end."""
        ...

    def replaced(self, old: WorkerId, new: WorkerId) -> None:
        """``new`` is another process in the place of ``old``; called when the core knows ``new`` and it has no work
        yet, so that a drain meant for the place can be carried over."""
        ...

    def set_leaving(self, worker_id: WorkerId, leaving: bool) -> None:
        """The platform is about to end ``worker_id``: no new work; called when the core knows it."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker for the admin page."""

    worker_id: WorkerId
    address: WorkerAddress
    health: Health
    load: WorkerLoad | None
    load_age_s: float | None
    starved_s: float
    in_flight: int
    served_models: frozenset[str] | None
    deviations: tuple[str, ...] | None
    scrape_failures: int
    faults: int


@dataclass(slots=True)
class _Past:
    address: WorkerAddress
    generation: int
    incarnation: Incarnation


class Monitor:
    """The one that watches all workers. Everything happens on one event loop.

    A worker's id is its address' id, and ``~2``, ``~3`` ... behind it for later processes at the same place.
    """

    def __init__(
        self,
        config: MonitorConfig,
        discovery: Discovery,
        build_client: ClientFactory,
        submit: Callable[[Event], None],
        traffic: Traffic,
        roster: Roster,
        now: Callable[[], float],
        chance: Chance,
    ) -> None:
        self._config = config
        self._discovery = discovery
        self._build_client = build_client
        self._submit = submit
        self._traffic = traffic
        self._roster = roster
        self._now = now
        self._chance = chance
        self._watches: dict[WorkerId, Watch] = {}
        self._tasks: dict[WorkerId, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._past: OrderedDict[WorkerId, _Past] = OrderedDict()
        self._pause = asyncio.Event()

    def status(self) -> tuple[WorkerStatus, ...]:
        """All workers, in the order in which they joined."""
        now = self._now()
        return tuple(_describe(watch, now) for watch in self._watches.values())

    def discovery_status(self) -> DiscoveryStatus:
        """How the source of addresses is doing."""
        return self._discovery.status()

    def suspect(self, worker_id: WorkerId) -> None:
        """The request path had trouble with this worker: ask it at once."""
        watch = self._watches.get(worker_id)
        if watch is not None:
            watch.suspect()

    async def run(self) -> None:
        """Watch until cancelled. The core is told nothing of the end: the workers did not leave, we did."""
        try:
            while True:
                await run_guarded("discovery", self._discover)
                await wait_until_set(self._pause, self._config.interval_s)
        finally:
            for watch in self._watches.values():
                watch.close()
            tasks = {*self._tasks.values(), *self._ending}
            self._watches.clear()
            self._tasks.clear()
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    async def _discover(self) -> None:
        await self._discovery.run(self.publish)

    def publish(self, found: Sequence[WorkerAddress]) -> None:
        """Take ``found`` as the whole list of where workers should be."""
        known = [watch.address for watch in self._watches.values()]
        joined, left = reconcile(known, found)
        gone = set(left)
        for watch in [watch for watch in self._watches.values() if watch.address in gone]:
            self._leave(watch)
        for address in joined:
            self._join(address, None)
        leaving = {address.worker_id: address.leaving for address in found}
        for watch in self._watches.values():
            self._note_leaving(watch, leaving[watch.address.worker_id])

    def _note_leaving(self, watch: Watch, leaving: bool) -> None:
        if leaving is not watch.address.leaving:
            watch.set_leaving(leaving)
            _LOG.info("worker %s is %s", watch.worker_id, "about to end" if leaving else "to stay after all")
            self._roster.set_leaving(watch.worker_id, leaving)

    def _join(self, address: WorkerAddress, incarnation: Incarnation | None) -> WorkerId:
        """``incarnation`` is given if it is known that another process is there than before."""
        past = self._past.pop(address.worker_id, None)
        if past is None:
            past = _Past(address, 1, Incarnation())
        elif incarnation is not None or past.address != address:
            past = _Past(address, past.generation + 1, incarnation or Incarnation())
        self._past[address.worker_id] = past
        if len(self._past) > _REMEMBERED + len(self._watches):
            self._past.popitem(last=False)
        suffix = f"{GENERATION_MARK}{past.generation}" if past.generation > 1 else ""
        worker_id = WorkerId(f"{address.worker_id}{suffix}")
        watch = Watch(
            worker_id,
            address.as_leaving(False),
            past.incarnation,
            Probe(self._build_client(), address.base_url, self._config.probe, address.server_name),
            self._config,
            self._now,
            self._chance,
            self._look_at_traffic,
            self._submit,
            self._found_other,
        )
        self._watches[worker_id] = watch
        _LOG.info("worker %s joined at %s", worker_id, address.base_url)
        self._roster.add(worker_id, address)
        self._submit(WorkerJoined(worker_id))
        self._roster.welcome(worker_id)
        self._tasks[worker_id] = asyncio.ensure_future(watch.run())
        return worker_id

    def _leave(self, watch: Watch) -> None:
        worker_id = watch.worker_id
        watch.close()
        del self._watches[worker_id]
        task = self._tasks.pop(worker_id)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        task.cancel()
        past = self._past.get(watch.address.worker_id)
        if past is not None:
            past.incarnation = watch.incarnation
        _LOG.info("worker %s left", worker_id)
        self._submit(WorkerLeft(worker_id))
        self._roster.remove(worker_id)

    def _found_other(self, watch: Watch, incarnation: Incarnation) -> None:
        """Another process answers at this address: the old one is gone, and so is all it was working on."""
        _LOG.warning("worker %s was replaced by another process", watch.worker_id)
        if watch.health.healthy:
            self._submit(WorkerHealthChanged(watch.worker_id, healthy=False))
        self._leave(watch)
        new_id = self._join(watch.address, incarnation)
        self._roster.replaced(watch.worker_id, new_id)
        self._note_leaving(self._watches[new_id], watch.address.leaving)

    def _look_at_traffic(self, worker_id: WorkerId) -> tuple[int, float | None]:
        return self._traffic.in_flight(worker_id), self._traffic.last_byte_at(worker_id)


def _describe(watch: Watch, now: float) -> WorkerStatus:
    evidence = watch.evidence
    return WorkerStatus(
        watch.worker_id,
        watch.address,
        watch.health,
        evidence.load,
        None if evidence.load is None else evidence.load.age_s(now),
        evidence.starved_s,
        evidence.in_flight,
        evidence.served_models,
        evidence.deviations,
        evidence.scrape_failures,
        watch.faults,
    )
