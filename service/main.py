"""The composition root: builds one gateway from a plan, runs it, changes it while it runs, takes it out of service.

The only module that knows both the ports of the runtime and the adapters behind them.
"""

import asyncio
import functools
import gc
import hashlib
import logging
import random
import secrets
import signal
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop

from service.domain.event import DrainBegan
from service.domain.units import WorkerId
from service.flow.config import Reconfigured
from service.flow.controller import FlowController
from service.gateway.admin import AdminGuard, build_admin
from service.gateway.admin_server import AdminServer
from service.gateway.app import Guard, build_rest
from service.gateway.auth import MemoryDirectory
from service.gateway.corridor import Corridor
from service.gateway.desk import Desk
from service.gateway.exchange import ByteBudget
from service.gateway.server import build_protocol_factory
from service.runtime.account import Accounts
from service.runtime.beat import Beat
from service.runtime.clock import MonotonicClock
from service.runtime.descriptors import bound_connections, raise_descriptor_limit
from service.runtime.drain import Drain
from service.runtime.driver import Driver
from service.runtime.journey import Road
from service.runtime.outbox import Outbox
from service.runtime.sockets import open_listener
from service.runtime.turnstile import Turnstile
from service.settings.admin_token import obtain_token
from service.settings.build import CACHE_SALT, Plan, load_plan
from service.settings.changes import describe_settings, describe_tenants, find_waiting_changes, keep_started
from service.settings.fault import SettingsRefusedError
from service.settings.release import read_version
from service.settings.tls import Certificates, build_tls_context, listening_options
from service.telemetry.exposition import Exposition
from service.telemetry.gauges import Snapshot
from service.telemetry.lag import LoopLag
from service.telemetry.logs import RequestLog, run_logs, set_level
from service.telemetry.recorder import Recorder
from service.workers.discovery import Discovery, DnsDiscovery, StaticDiscovery
from service.workers.monitor import Monitor
from service.workers.pool import WorkerPool
from service.workers.probe import build_client_factory
from service.workers.roster import PoolRoster
from service.workers.suspicion import Suspicion

_log = logging.getLogger("sluice.main")

_SWEEP_REQUESTS_S, _SWEEP_CONNECTIONS_S = 0.25, 1.0
_BACKLOG = 4096

Reread = Callable[[], Plan]
Now = Callable[[], float]


class House:
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
        self._driver = Driver(FlowController(plan.flow, chance), clock, loop, [self._recorder])
        roster = PoolRoster(self._pool, self._driver.submit)
        self._discovery = _build_discovery(plan, loop, clock.now, chance)
        self.monitor = Monitor(
            plan.monitor, self._discovery, build_client_factory(plan.monitor.probe), self._driver.submit,
            self._pool, roster, clock.now, chance,
        )  # fmt: skip
        self._request_log = RequestLog(plan.settings.logs.requests)
        accounts = Accounts([self._recorder, self._request_log, Suspicion(self.monitor.suspect)])
        self._opaque = functools.lru_cache(maxsize=4096)(functools.partial(_name_for_clients, plan.corridor.salt))
        road = Road(self._driver, self._pool, accounts, clock, loop.call_later, plan.relay, self._opaque)
        self._directory = MemoryDirectory(plan.keys)
        self._corridor = Corridor(road, self._directory, plan.corridor, plan.cors)
        self._guard = Guard(build_rest(self._model_cards, lambda: self.desk.ready()), self._directory, plan.cors)
        edge = plan.edge
        connections_max = bound_connections(edge.connections_max, edge.connections_reserve, descriptors)
        if connections_max < edge.connections_max:
            _log.warning("%d descriptors allow %d client connections, not the %d configured",
                         descriptors, connections_max, edge.connections_max)  # fmt: skip
        self._bodies = ByteBudget(edge.bodies_max_bytes)
        self.factory, self._edge_state = build_protocol_factory(
            self._guard, replace(edge, connections_max=connections_max), self._corridor, loop, self._bodies, outbox,
            turnstile,
        )  # fmt: skip
        self.drain = Drain(self, clock.now)
        self.desk = Desk(self._driver, self.monitor, self.drain, self, self, roster.set_draining, self._opaque)
        self.server: asyncio.Server | None = None
        self.certificates: Certificates | None = None
        self._born_at = int(clock.wall())
        lag = LoopLag()
        self.exposition = Exposition(self._recorder, lag, self._snapshot, read_version())
        self.beats = (
            Beat(_SWEEP_REQUESTS_S, self._driver.sweep, loop.call_later, clock.now, lag.observe),
            Beat(_SWEEP_CONNECTIONS_S, self._sweep_connections, loop.call_later, clock.now),
            Beat(_SWEEP_CONNECTIONS_S, self._pool.sweep, loop.call_later, clock.now),
        )

    def _snapshot(self) -> Snapshot:
        ages = {status.worker_id: status.load_age_s for status in self.monitor.status()}
        return Snapshot(self._driver.stats(), ages, self._bodies.taken, self.open_connections())

    def _model_cards(self) -> list[dict[str, Any]]:
        model = self._corridor.config.model
        return [{"id": model, "object": "model", "created": self._born_at, "owned_by": "sluice"}]

    def _sweep_connections(self) -> None:
        now = asyncio.get_running_loop().time()
        for connection in tuple(self._edge_state.connections):
            connection.on_sweep(now)  # type: ignore[union-attr]  # all of them are our own EdgeProtocol

    # ---------------------------------------------------------------- the way out (runtime.drain.Premises)

    def close_doors(self) -> None:
        """Stop listening, close what is idle. From here on only what a client was sending can still come, so the core
        refuses nothing before that is in."""
        if self.server is not None:
            self.server.close()
        if not self._arriving():
            self._driver.submit(DrainBegan())
        for connection in tuple(self._edge_state.connections):
            connection.shutdown()

    def under_way(self) -> int:
        """Requests that wait, run or still arrive."""
        return self._driver.travelling + self._arriving()

    def _arriving(self) -> int:
        return sum(connection.arriving for connection in self._edge_state.connections)  # type: ignore[union-attr]

    def open_connections(self) -> int:
        """Connections of clients."""
        return len(self._edge_state.connections)

    def cut(self) -> None:
        """End what is left with an error, then close what is idle."""
        self._driver.submit(DrainBegan())
        self._driver.cut()
        for connection in tuple(self._edge_state.connections):
            connection.cut_arriving()  # type: ignore[union-attr]  # all of them are our own EdgeProtocol
            connection.shutdown()

    def bounds(self) -> tuple[float, float]:
        """Delay and grace in force."""
        return self.plan.settings.limits.drain_delay_s, self.plan.settings.limits.grace_s

    def close(self) -> None:
        """Nothing is open afterwards, whoever was still reading."""
        for beat in self.beats:
            beat.stop()
        for connection in tuple(self._edge_state.connections):
            connection.transport.abort()
        self._pool.close()

    # ---------------------------------------------------------------- the configuration (gateway.desk.Papers)

    def model(self) -> str:
        """The model served."""
        return self._corridor.config.model

    def queue_bounds(self) -> tuple[int, int]:
        """Requests and tokens that may wait."""
        return self.plan.flow.queued_requests_max, self.plan.flow.queued_tokens_max

    def tenants(self) -> Sequence[dict[str, Any]]:
        """Tenants and the beginnings of their keys."""
        return describe_tenants(self.plan.settings)

    def config(self) -> dict[str, Any]:
        """The settings in force."""
        waiting = find_waiting_changes(self._started, self.plan.settings)
        return {"settings": describe_settings(self.plan.settings), "needs_restart": waiting}

    async def reload(self) -> tuple[Sequence[str], Sequence[str]]:
        """Read the file again, in a thread, and apply what can be applied while running; refused whole if anything is
        wrong."""
        try:
            plan, waiting, tls = await asyncio.to_thread(self._read_again)
        except SettingsRefusedError as refused:
            return [str(fault) for fault in refused.faults], []
        self._apply(plan, tls)
        return [], waiting

    def _read_again(self) -> tuple[Plan, Sequence[str], ssl.SSLContext | None]:
        """Everything that takes time: 5,000 tenants are read in some 0.5 s."""
        plan = self._reread()
        files = self._started.listen.tls
        tls = None if files is None else build_tls_context(files.cert, files.key)
        return plan, find_waiting_changes(self._started, plan.settings), tls

    def _apply(self, plan: Plan, tls: ssl.SSLContext | None) -> None:
        if self.certificates is not None and tls is not None:
            self.certificates.replace(tls)
        running = self._corridor.config
        corridor = keep_started(plan.corridor, running)
        self._recorder.reconfigure(corridor.tiers.values())
        self._driver.submit(Reconfigured(plan.flow))
        self._corridor.reconfigure(corridor, plan.cors, plan.relay)
        self._guard.reconfigure(plan.cors)
        self._directory.replace(plan.keys)
        if isinstance(self._discovery, StaticDiscovery) and plan.dns is None:
            self._discovery.replace(plan.workers)
        set_level(plan.settings.logs.level)
        self._request_log.which = plan.settings.logs.requests
        self.plan = plan


def _name_for_clients(salt: bytes, worker_id: WorkerId) -> bytes:
    """A worker's name in answers: the same on every replica, and no address."""
    return hashlib.blake2b(worker_id.encode(), key=salt[:64], digest_size=6).hexdigest().encode()


def _build_discovery(plan: Plan, loop: asyncio.AbstractEventLoop, now: Now, chance: random.Random) -> Discovery:
    if plan.dns is None:
        return StaticDiscovery(plan.workers, now)
    resolve = functools.partial(loop.getaddrinfo, type=socket.SOCK_STREAM)
    return DnsDiscovery(plan.dns, resolve, now, chance)


def run(path: Path, environment: Mapping[str, str], say: Callable[[str], None]) -> int:
    """Run one gateway from the file ``path`` to its end; the exit code. ``say`` gets what an operator must be told.

    Raises ``SettingsRefusedError`` for a configuration that cannot be used and ``OSError`` for an address that cannot
    be listened on.
    """
    salt = environment.get(CACHE_SALT, "").encode() or secrets.token_bytes(32)
    reread = functools.partial(load_plan, path, environment, salt)
    plan = reread()
    descriptors = raise_descriptor_limit()
    listen = plan.settings.listen
    public = open_listener(listen.host, listen.port, "listen.port")
    operators = open_listener(listen.admin_host, listen.admin_port, "listen.admin_port")
    # Only now: whoever holds these ports may have left a token of its own where ours goes.
    token, token_file = obtain_token(plan.settings.listen.admin_port, environment)
    if token_file is not None:
        say(f"admin token: in {token_file}")
    with run_logs(plan.settings.logs.level), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run_gateway(plan, reread, token, descriptors, public, operators))
    if token_file is not None:
        token_file.unlink(missing_ok=True)
    return 0


async def run_gateway(
    plan: Plan, reread: Reread, token: str, descriptors: int, public: socket.socket, operators: socket.socket
) -> None:
    """Serve until a signal or an operator says otherwise, then leave in order."""
    loop = asyncio.get_running_loop()
    listen = plan.settings.listen
    certificates = None if listen.tls is None else Certificates(listen.tls.cert, listen.tls.key)
    house = House(plan, reread, descriptors, secrets.randbits(64))
    admin = AdminServer(AdminGuard(build_admin(house.desk, house.exposition.render), token), operators)
    admin.start()
    house.certificates = certificates
    house.server = await loop.create_server(
        house.factory, sock=public, backlog=_BACKLOG, **listening_options(certificates, plan.edge.head_timeout_s)
    )
    monitoring = asyncio.ensure_future(house.monitor.run())
    for beat in house.beats:
        beat.start()
    loop.add_signal_handler(signal.SIGTERM, house.desk.take_signal)
    loop.add_signal_handler(signal.SIGINT, house.desk.take_signal)
    loop.add_signal_handler(signal.SIGHUP, house.desk.begin_reload)
    gc.collect()
    gc.freeze()  # what lives as long as the process is not looked at again (measured: 4 % of the CPU otherwise)
    gc.set_threshold(20_000, 20, 50)
    _log.info("listening on %s:%d, admin on %s:%d", listen.host, listen.port, listen.admin_host, listen.admin_port)
    try:
        await house.drain.run(house.bounds)
    finally:
        monitoring.cancel()
        await asyncio.wait({monitoring})
        await admin.stop()
        house.close()
    _log.info("left")
