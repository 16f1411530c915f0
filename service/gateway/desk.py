"""The operators' view and hand: what the admin port shows, put together from the parts that run."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from service.domain.units import WorkerId
from service.gateway.inspection import Json, WorkersView, describe_queues, describe_worker, find_reason_not_ready
from service.runtime.drain import Drain, Phase, Premises
from service.runtime.driver import Driver
from service.runtime.pressure import Pressure

_log = logging.getLogger("sluice.desk")


class Papers(Protocol):
    """What is known of the configuration, without its secrets."""

    def model(self) -> str:
        """The model served."""
        ...

    def queue_bounds(self) -> tuple[int, int]:
        """Requests and tokens that may wait."""
        ...

    def tenants(self) -> Sequence[Json]:
        """Tenants and the beginnings of their keys."""
        ...

    def config(self) -> Json:
        """The settings in force."""
        ...

    async def reload(self) -> tuple[Sequence[str], Sequence[str]]:
        """Read them again: faults, and what waits for a restart."""
        ...

    def budgets(self) -> Sequence[Json]:
        """What is left of each error budget."""
        ...


class Desk:
    """Satisfies :class:`service.gateway.admin.Operations`."""

    def __init__(
        self,
        driver: Driver,
        monitor: WorkersView,
        drain: Drain,
        premises: Premises,
        papers: Papers,
        pressure: Pressure,
        set_draining: Callable[[WorkerId, bool], None],
        opaque: Callable[[WorkerId], bytes],
        decisions: Callable[[str | None, int], Json],
    ) -> None:
        self._driver = driver
        self._monitor = monitor
        self._drain = drain
        self._premises = premises
        self._papers = papers
        self._pressure = pressure
        self._set_draining = set_draining
        self._opaque = opaque
        self._one_at_a_time = asyncio.Lock()
        self._reloading: set[asyncio.Task[tuple[Sequence[str], Sequence[str]]]] = set()
        self._decisions = decisions

    def ready(self) -> str | None:
        """Why no traffic should come, or ``None``."""
        return find_reason_not_ready(self._driver.stats(), self._drain.phase is not Phase.SERVING)

    def state(self) -> Json:
        """The gateway at a glance."""
        source = self._monitor.discovery_status()
        reason = self.ready()
        return {
            "model": self._papers.model(),
            "ready": reason is None,
            "reason": reason,
            **self.drain_status(),
            "discovery": {
                "source": source.source,
                "listed": source.listed,
                "failures": source.failures,
                "last_error": source.last_error,
            },
            "brownout_level": self._pressure.brownout_level,
            "restraint": self._pressure.describe(),
            "budgets": list(self._papers.budgets()),
            **self.queues(),
            "workers": list(self.workers()),
        }

    def workers(self) -> Sequence[Json]:
        """Each worker as the gateway sees it."""
        core = {worker.worker_id: worker for worker in self._driver.stats().workers}
        return [
            describe_worker(status, core.get(status.worker_id), self._opaque(status.worker_id).decode())
            for status in self._monitor.status()
        ]

    def queues(self) -> Json:
        """What waits, and what bounds it."""
        return describe_queues(self._driver.stats(), *self._papers.queue_bounds())

    def tenants(self) -> Sequence[Json]:
        """Tenants and the beginnings of their keys."""
        return self._papers.tenants()

    def config(self) -> Json:
        """The settings in force."""
        return self._papers.config()

    def decisions(self, request_id: str | None, limit: int) -> Json:
        """The latest decisions, or all about one request."""
        return self._decisions(request_id, limit)

    def force_brownout(self, level: int) -> None:
        """Refuse what this level keeps out; 0 ends it."""
        _log.warning("brownout level %d, was %d", level, self._pressure.brownout_level)
        self._pressure.force_brownout(level)

    def restrain(self, on: bool) -> Json:
        """Let burning budgets hold traffic back, or not."""
        _log.warning("restraint by burning budgets: %s", "on" if on else "off")
        self._pressure.restrain(on)
        return dict(self._pressure.describe())

    def drain_status(self) -> Json:
        """How far the gateway has left."""
        premises = self._premises
        return {
            "phase": self._drain.phase.value,
            "under_way": premises.under_way(),
            "connections": premises.open_connections(),
        }

    def begin_drain(self) -> None:
        """Leave; said again, it changes nothing."""
        _log.info("an operator wants this gateway to leave")
        self._drain.begin()

    def take_signal(self) -> None:
        """Leave; a second signal: at once."""
        _log.info("a signal to leave")
        self._drain.signal()

    def drain_worker(self, worker_id: str, draining: bool) -> bool:
        """Give a worker, named by its id or its pod, no new work, or give it work again."""
        for status in self._monitor.status():
            if worker_id in (status.worker_id, status.address.pod):
                _log.info("worker %s: %s", status.worker_id, "draining" if draining else "takes work again")
                self._set_draining(status.worker_id, draining)
                return True
        return False

    def let_worker_go(self) -> str | None:
        """Drain the worker whose going is felt least; its id, or ``None`` if none may go."""
        worker_id = self._driver.choose_leaving()
        if worker_id is not None:
            _log.info("worker %s: draining, one too many", worker_id)
            self._set_draining(worker_id, True)
        return worker_id

    def begin_reload(self) -> None:
        """Read the configuration again; how that went is in the log."""
        task = asyncio.ensure_future(self.reload())
        self._reloading.add(task)
        task.add_done_callback(self._reloading.discard)

    async def reload(self) -> tuple[Sequence[str], Sequence[str]]:
        """Read the configuration again; one after the other, so that the last word of the file is in force."""
        async with self._one_at_a_time:
            faults, waiting = await self._papers.reload()
        for fault in faults:
            _log.error("reload refused: %s", fault)
        if not faults:
            _log.info("configuration applied%s", f"; waits for a restart: {', '.join(waiting)}" if waiting else "")
        return faults, waiting
