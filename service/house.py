"""The composition root's house: one gateway, built and wired from a plan, changed while it runs, taken out of service.

With ``service.main``, the only module that knows both the ports of the runtime and the adapters behind them.
"""

import asyncio
import functools
import hashlib
import logging
import random
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

from service.domain.event import DrainBegan
from service.domain.units import WorkerId
from service.flow.controller import FlowController
from service.gateway.app import Guard, build_rest
from service.gateway.corridor import Corridor
from service.gateway.desk import Desk
from service.gateway.directory import Directory
from service.gateway.doors import Doors
from service.gateway.exchange import ByteBudget
from service.gateway.server import build_protocol_factory
from service.neighbours import Neighbours, read_quota_figures
from service.papers import Papers, Reread
from service.record import open_record
from service.runtime.account import Accountant, Accounts
from service.runtime.beat import Beat
from service.runtime.clock import MonotonicClock
from service.runtime.decisions import DecisionLog
from service.runtime.descriptors import bound_connections
from service.runtime.drain import Drain
from service.runtime.driver import Driver
from service.runtime.journal import JournalHeader
from service.runtime.journey import Road
from service.runtime.outbox import Outbox
from service.runtime.ports import Observer
from service.runtime.pressure import Pressure
from service.runtime.quota import Quotas
from service.runtime.recording import open_journal
from service.runtime.turnstile import Turnstile
from service.settings.build import Plan
from service.settings.release import read_version
from service.settings.tls import Certificates
from service.telemetry.budget import Budgets
from service.telemetry.exposition import Exposition
from service.telemetry.gauges import Discovered, Snapshot
from service.telemetry.lag import LoopLag
from service.telemetry.logs import RequestLog
from service.telemetry.recorder import Recorder
from service.workers.deletion_cost import DeletionCosts
from service.workers.discovery import StaticDiscovery
from service.workers.monitor import Monitor
from service.workers.pool import WorkerPool
from service.workers.probe import build_client_factory
from service.workers.roster import PoolRoster
from service.workers.sources import build_discovery
from service.workers.suspicion import Suspicion

_log = logging.getLogger("sluice.main")

_SWEEP_REQUESTS_S, _SWEEP_CONNECTIONS_S, _FLUSH_JOURNAL_S = 0.25, 1.0, 1.0
_READ_BUDGETS_S = 2.0


class House(Papers):
    """One gateway, built and wired, on the running loop."""

    def __init__(self, plan: Plan, reread: Reread, descriptors: int, seed: int) -> None:
        loop = asyncio.get_running_loop()
        chance = random.Random(seed)  # noqa: S311 - spreads load and delays, guards nothing
        self.plan = plan
        self._started = plan.settings
        self._reread = reread
        self._clock = clock = MonotonicClock()
        outbox, turnstile = Outbox(loop.call_soon), Turnstile(loop.call_soon)
        self._pool = WorkerPool(plan.pool, loop, clock.now, outbox.write, turnstile.enter)
        self._recorder = Recorder(plan.corridor.tiers.values())
        self._budgets = Budgets(plan.corridor.tiers.values(), plan.corridor.model, clock.now())
        logs = plan.settings.logs
        wall_offset_s = clock.wall() - clock.now()
        self._decisions = DecisionLog(logs.decisions, plan.flow, wall_offset_s)
        self._journal = open_journal(
            logs.journal, logs.journal_max_bytes, JournalHeader(seed, plan.flow, wall_offset_s)
        )
        self._directory = Directory(clock.wall)
        self._directory.replace(plan.keys, plan.tenants)
        self.record = open_record(plan, clock, loop.call_later, self._directory.find_tenant)
        observers: list[Observer] = [
            self._recorder,
            self._decisions,
            *([] if self._journal is None else [self._journal]),
        ]
        core_chance = random.Random(seed)  # noqa: S311 - its own: a journal is played again from the seed
        self._driver = Driver(FlowController(plan.flow, core_chance), clock, loop, observers)
        self.pressure = Pressure(plan.flow, self._configure_core)
        roster = PoolRoster(self._pool, self._driver.submit)
        self._discovery = build_discovery(plan.source, plan.workers, loop, clock.now, chance)
        self.monitor = Monitor(
            plan.monitor, self._discovery, build_client_factory(plan.monitor.probe), self._driver.submit,
            self._pool, roster, clock.now, chance,
        )  # fmt: skip
        costs = plan.deletion_cost
        self.costs = None if costs is None else DeletionCosts(costs, self.monitor.status, chance)
        self._request_log = RequestLog(logs.requests)
        self.neighbours = None if plan.redis is None else Neighbours(
            plan.redis, plan.corridor.model, self._driver, self._directory, clock,
            lambda: self._corridor.config.tiers, lambda: self._quotas.month,
            lambda: self.pressure.reconfigure(self.plan.flow),
            (lambda ladders: None) if self.record is None else self.record.note_ladders,
        )  # fmt: skip
        leasing = None if self.neighbours is None else self.neighbours.leasing
        self._quotas = quotas = Quotas(self._driver, clock, loop.call_later, leasing)
        accountants: list[Accountant] = [
            quotas, self._recorder, self._budgets.events, self._request_log, Suspicion(self.monitor.suspect),
            self._decisions, *([] if self.record is None else [self.record.bookkeeper]),
        ]  # fmt: skip
        self._accounts = accounts = Accounts(accountants, plan.corridor.tiers)
        accounts.wall_offset_s, accounts.maintenance = wall_offset_s, plan.maintenance
        self._opaque = functools.lru_cache(maxsize=4096)(functools.partial(_name_for_clients, plan.corridor.salt))
        road = Road(self._driver, self._pool, accounts, clock, loop.call_later, plan.relay, self._opaque)
        self._corridor = Corridor(road, self._directory, quotas, plan.corridor, plan.cors)
        self._corridor.lines.note_alias = self._decisions.note_alias
        if self.record is not None:
            self._corridor.note_opened = self.record.bookkeeper.open
        standing = None if self.record is None else self.record.describe_standing
        rest = build_rest(self._model_cards, lambda: self.desk.ready(), standing)
        self._guard = Guard(rest, self._directory, plan.cors)
        edge = plan.edge
        connections_max = bound_connections(edge.connections_max, edge.connections_reserve, descriptors)
        if connections_max < edge.connections_max:
            _log.warning("%d descriptors: no more than %d client connections", descriptors, connections_max)
        self._bodies = ByteBudget(edge.bodies_max_bytes)
        self.factory, state = build_protocol_factory(
            self._guard, replace(edge, connections_max=connections_max), self._corridor, loop, self._bodies, outbox,
            turnstile,
        )  # fmt: skip
        self._doors = Doors(state)
        self.drain = Drain(self, clock.now)
        self.desk = Desk(
            self._driver, self.monitor, self.drain, self, self, self.pressure, roster.set_draining, self._opaque,
            self._decisions.describe,
        )  # fmt: skip
        self.server: asyncio.Server | None = None
        self.certificates: Certificates | None = None
        self._born_at = int(clock.wall())
        lag = LoopLag()
        self.exposition = Exposition(
            self._recorder, lag, self._snapshot, read_version(), self._budgets.families,
            self._budgets.misses,
        )  # fmt: skip
        self.beats: tuple[Beat, ...] = (
            Beat(_SWEEP_REQUESTS_S, self._driver.sweep, loop.call_later, clock.now, lag.observe),
            Beat(_SWEEP_REQUESTS_S, quotas.beat, loop.call_later, clock.now),
            Beat(_SWEEP_REQUESTS_S, self._directory.beat, loop.call_later, clock.now),
            Beat(_SWEEP_CONNECTIONS_S, self._doors.sweep, loop.call_later, clock.now),
            Beat(_SWEEP_CONNECTIONS_S, self._pool.sweep, loop.call_later, clock.now),
            Beat(_READ_BUDGETS_S, self._read_budgets, loop.call_later, clock.now),
        )
        if self._journal is not None:
            self.beats += (Beat(_FLUSH_JOURNAL_S, self._journal.flush, loop.call_later, clock.now),)

    def background(self) -> Sequence[Coroutine[Any, Any, None]]:
        """What runs beside the requests until the end."""
        return [self.monitor.run(), *([] if self.neighbours is None else self.neighbours.background())]

    def _snapshot(self) -> Snapshot:
        statuses = self.monitor.status()
        ages = {status.worker_id: status.load_age_s for status in statuses}
        kv = {one.worker_id: None if one.load is None else one.load.kv_cache_ratio for one in statuses}
        return Snapshot(
            self._driver.stats(), ages, self._bodies.taken, self.open_connections(), self.pressure.brownout_level,
            None if self._journal is None else self._journal.dropped,
            self._accounts.is_maintained(self._clock.now()),
            None if self.record is None else self.record.read_figures(),
            self._describe_discovery(),
            self.pressure.ceilings(), self._driver.demand(), kv,
            read_quota_figures(self._quotas, self.neighbours),
        )  # fmt: skip

    def _describe_discovery(self) -> Discovered:
        status = self.monitor.discovery_status()
        at = None if isinstance(self._discovery, StaticDiscovery) else status.confirmed_at
        age_s = None if at is None else self._clock.now() - at
        return Discovered(age_s, status.failures, status.missed)

    def _model_cards(self) -> list[dict[str, Any]]:
        model = self._corridor.config.model
        return [{"id": model, "object": "model", "created": self._born_at, "owned_by": "sluice"}]

    # ---------------------------------------------------------------- the way out (runtime.drain.Premises)

    def send_elsewhere(self) -> None:
        """Keep no connection of a client."""
        self._doors.send_elsewhere()

    def close_doors(self) -> None:
        """Stop listening, close what is idle. From here on only what a client was sending can still come, so the core
        refuses nothing before that is in."""
        if self.server is not None:
            self.server.close()
        if not self._doors.arriving:
            self._driver.submit(DrainBegan())
        self._doors.close_idle()

    def under_way(self) -> int:
        """Requests that wait, run or still arrive."""
        return self._driver.travelling + self._doors.arriving + self._quotas.put_aside_now

    def open_connections(self) -> int:
        """Connections of clients."""
        return self._doors.open

    def cut(self) -> None:
        """End what is left with an error, then close what is idle."""
        self._driver.submit(DrainBegan())
        self._driver.cut()
        self._doors.cut_arriving()
        self._doors.close_idle()

    def bounds(self) -> tuple[float, float]:
        """Delay and grace in force."""
        return self.plan.settings.limits.drain_delay_s, self.plan.settings.limits.grace_s

    def close(self) -> None:
        """Nothing is open afterwards, whoever was still reading."""
        for beat in self.beats:
            beat.stop()
        self._doors.abort()
        self._pool.close()
        if self._journal is not None:
            self._journal.close()


def _name_for_clients(salt: bytes, worker_id: WorkerId) -> bytes:
    """A worker's name in answers: the same on every replica, and no address."""
    return hashlib.blake2b(worker_id.encode(), key=salt[:64], digest_size=6).hexdigest().encode()
