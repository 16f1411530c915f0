"""The configuration of a gateway while it runs: shown to operators, read again, applied as far as it can be."""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from service.flow.config import FlowConfig, Reconfigured
from service.gateway.app import Guard
from service.gateway.corridor import Corridor
from service.gateway.directory import Directory
from service.neighbours import Neighbours
from service.record import Record
from service.runtime.account import Accounts
from service.runtime.clock import MonotonicClock
from service.runtime.decisions import DecisionLog
from service.runtime.driver import Driver
from service.runtime.pressure import Pressure
from service.settings.build import Plan
from service.settings.capacity import find_oversold
from service.settings.changes import describe_settings, describe_tenants, find_waiting_changes, keep_started
from service.settings.fault import SettingsRefusedError
from service.settings.schema import Settings
from service.settings.tls import Certificates, build_tls_context
from service.telemetry.budget import Budgets
from service.telemetry.logs import RequestLog, set_level
from service.telemetry.recorder import Recorder
from service.workers.discovery import Discovery, StaticDiscovery

Reread = Callable[[], Plan]


class Papers:
    """What ``service.house`` builds and an operator may change (``gateway.desk.Papers``)."""

    plan: Plan
    record: Record | None
    neighbours: Neighbours | None
    certificates: Certificates | None
    _started: Settings
    _reread: Reread
    _clock: MonotonicClock
    _recorder: Recorder
    _budgets: Budgets
    _decisions: DecisionLog
    _driver: Driver
    pressure: Pressure
    _discovery: Discovery
    _request_log: RequestLog
    _directory: Directory
    _accounts: Accounts
    _corridor: Corridor
    _guard: Guard

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

    def budgets(self) -> Sequence[dict[str, Any]]:
        """What is left of each error budget, and how fast it is being spent."""
        return self._budgets.describe()

    def _configure_core(self, flow: FlowConfig) -> None:
        if self.neighbours is not None:
            flow = replace(flow, contracts=self.neighbours.combine(flow.contracts))
        self._decisions.note_config(flow, self._clock.now())
        self._driver.submit(Reconfigured(flow))

    def _read_budgets(self) -> None:
        now = self._clock.now()
        self._budgets.observe(now)
        self.pressure.observe(self._budgets.strains(), now)

    async def reload(self) -> tuple[Sequence[str], Sequence[str]]:
        """Read the file again, in a thread, and apply what can be applied while running; refused whole if anything is
        wrong."""
        try:
            plan, waiting, tls = await asyncio.to_thread(self._read_again)
        except SettingsRefusedError as refused:
            return [str(fault) for fault in refused.faults], []
        if oversold := self.hold_against_capacity(plan):
            return oversold, []
        self._apply(plan, tls)
        return [], waiting

    def hold_against_capacity(self, plan: Plan) -> Sequence[str]:
        """Why what ``plan`` sells cannot be kept, if it is to be refused for that; else the log has a warning."""
        return find_oversold(plan, self._directory.stored_tenants(), self._driver.stats())

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
        self._budgets.reconfigure(corridor.tiers.values())
        self._accounts.tiers, self._accounts.maintenance = corridor.tiers, plan.maintenance
        if self.record is not None:
            self.record.reconfigure(plan)
        self.pressure.reconfigure(plan.flow)
        self._corridor.reconfigure(corridor, plan.cors, plan.relay)
        self._guard.reconfigure(plan.cors)
        self._directory.replace(plan.keys, plan.tenants)
        if isinstance(self._discovery, StaticDiscovery) and plan.source is None:
            self._discovery.replace(plan.workers)
        set_level(plan.settings.logs.level)
        self._request_log.which = plan.settings.logs.requests
        self.plan = plan
