"""The composition root's record: spool, bookkeeper and clerk of one gateway, built from its plan."""

import asyncio
import datetime
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from service.domain.tenant import Tenant
from service.domain.tier import Tier
from service.domain.units import TenantId
from service.ledger.bookkeeper import COMMIT_S, Bookkeeper
from service.ledger.clerk_link import ClerkLink
from service.ledger.spool import Spool, SpoolTakenError
from service.runtime.beat import Beat
from service.runtime.ports import Clock, Later
from service.settings.build import Plan
from service.settings.terms import STANDARD_LADDER, build_ladder, build_terms
from service.slo.attainment import SLIS, compute_budget_left, compute_ratio

_log = logging.getLogger("sluice.ledger")

_FRESH_S = 5.0
_REMEMBERED = 1000
_ALARM_RATIO = 0.8
"""Of the spool's bound: above it an operator is told, while there is time to act."""


@dataclass(frozen=True, slots=True)
class RecordFigures:
    """The state of the record at one moment. ``waiting`` entries are safe on the disk but not in the database, ``None``
    while nobody knows; ``pending`` are only in memory; ``lost`` found no room."""

    waiting: int | None
    pending: int
    lost: int
    spool_bytes: int
    spool_bytes_max: int
    database_away: bool


FindTenant = Callable[[TenantId], Tenant | None]


def _know_nobody(tenant_id: TenantId) -> Tenant | None:
    """There is no shared store."""


class _Fingerprints(dict[TenantId, str]):
    """Fingerprints of contracts: of the file's tenants by name, of the store's by what they bought. Read in the
    thread that writes the spool."""

    def __init__(self, written: Mapping[TenantId, str], find_tenant: FindTenant) -> None:
        super().__init__(written)
        self._find_tenant = find_tenant

    def get(self, tenant_id: TenantId, default: Any = None) -> Any:  # noqa: ANN401
        """The fingerprint, or ``default``."""
        known = super().get(tenant_id)
        if known is not None or not tenant_id:
            return known
        tenant = self._find_tenant(tenant_id)
        return default if tenant is None or tenant.contract is None else tenant.contract.fingerprint


class Record:
    """Everything that keeps the record of this gateway, on the running loop."""

    def __init__(
        self, plan: Plan, clock: Clock, later: Later, bookkeeper: Bookkeeper, clerk: ClerkLink,
        find_tenant: FindTenant = _know_nobody,
    ) -> None:  # fmt: skip
        self._plan = plan
        self._find_tenant = find_tenant
        self._ladders: Mapping[TenantId, str] = {}
        self._clock = clock
        self._alarmed = False
        self._told: dict[str, tuple[float, asyncio.Future[dict[str, Any]]]] = {}
        self.bookkeeper = bookkeeper
        self._clerk = clerk
        self.beats = (
            Beat(COMMIT_S, bookkeeper.flush, later, clock.now),
            Beat(5.0, self._watch_room, later, clock.now),
        )
        self._note_terms()

    def start(self) -> None:
        """Drain from now on."""
        self._clerk.start()
        for beat in self.beats:
            beat.start()

    def reconfigure(self, plan: Plan) -> None:
        """Other promises are in force from now on; what another start is needed for stays as it is."""
        started = self._plan.settings
        settings = plan.settings.model_copy(update={"model": started.model, "record": started.record})
        self._plan = replace(plan, settings=settings)
        self._note_terms()

    def note_ladders(self, ladders: Mapping[TenantId, str]) -> None:
        """Tenants of the shared store with another ladder of credits than the standard one."""
        self._ladders = ladders
        self._note_terms()

    def _note_terms(self) -> None:
        terms, document = build_terms(self._plan.settings, self._plan.corridor.tiers, self._ladders)
        contracts = _Fingerprints(terms.contracts, self._find_tenant)
        self.bookkeeper.terms = replace(terms, contracts=contracts)
        self._clerk.note_terms(terms.config_hash, document, int(self._clock.wall() * 1_000_000))

    async def close(self) -> None:
        """Write what there is, and let the clerk take it in."""
        for beat in self.beats:
            beat.stop()
        self.bookkeeper.close()
        await self._clerk.stop()

    def read_figures(self) -> RecordFigures:
        """For whoever scrapes."""
        book, seq = self.bookkeeper, self._clerk.seq
        return RecordFigures(
            None if seq is None else max(book.seq - seq, 0), book.pending, book.lost, book.spool_bytes,
            self._plan.settings.record.spool_max_bytes, self._clerk.fault is not None,
        )  # fmt: skip

    def _watch_room(self) -> None:
        used = self.bookkeeper.spool_bytes / self._plan.settings.record.spool_max_bytes
        if used >= _ALARM_RATIO and not self._alarmed:
            _log.error("ledger: the spool is %.0f %% full; the database: %s", 100 * used, self._clerk.fault or "slow")
        self._alarmed = used >= _ALARM_RATIO

    # ---------------------------------------------------------------- GET /v1/sla

    def _ask(self, tenant: str) -> asyncio.Future[dict[str, Any]]:
        """One question a tenant and some seconds, however often it asks."""
        now = self._clock.now()
        known = self._told.get(tenant)
        if known is None or known[0] < now:
            if len(self._told) >= _REMEMBERED:
                self._told.clear()
            known = self._told[tenant] = now + _FRESH_S, asyncio.ensure_future(self._clerk.ask(tenant))
        return known[1]

    async def describe_standing(self, tenant: Tenant) -> dict[str, Any] | None:
        """What ``tenant`` was promised, and what became of it this month; ``None`` while the ledger is away."""
        told = await asyncio.shield(self._ask(tenant.tenant_id))
        if "fault" in told:
            return None
        settings = self._plan.settings
        own = next((one.credits for one in settings.tenants if one.id == tenant.tenant_id), None)
        name = own or self._ladders.get(tenant.tenant_id, STANDARD_LADDER)
        tier = self._plan.corridor.tiers.get(tenant.tier)
        return {
            "object": "sla",
            "tenant": tenant.tenant_id,
            "month": told["month"],
            "as_of": datetime.datetime.fromtimestamp(self._clock.wall(), datetime.UTC).isoformat(timespec="seconds"),
            "contract": {
                "tier": tenant.tier,
                **_describe_promise(tier),
                "credits": [
                    {"below": step.below, "credit": step.credit} for step in build_ladder(settings, name).steps
                ],
            },
            "tiers": {
                served: _describe_attainment(tally, self._plan.corridor.tiers.get(served))
                for served, tally in told["tiers"].items()
            },
        }


def _describe_promise(tier: Tier | None) -> dict[str, Any]:
    if tier is None:
        return {}
    return {
        "best_effort": tier.best_effort,
        "availability": tier.availability,
        "attainment": tier.attainment,
        "ttft_s": {str(edge): target_s for edge, target_s in tier.ttft_targets_s},
        "tpot_s": tier.tpot_target_s,
    }


def _describe_attainment(tally: Mapping[str, Any], tier: Tier | None) -> dict[str, Any]:
    told: dict[str, Any] = {"requests": tally["requests"], "excluded": tally["excluded"]}
    for sli in SLIS:
        good, bad = tally["good"][sli], tally["bad"][sli]
        told[sli] = {"good": good, "bad": bad, "attained": compute_ratio(good, bad)}
        objective = None if tier is None else tier.availability if sli == "availability" else tier.attainment
        if objective is not None and sli != "all":
            told[sli] |= {"objective": objective, "budget_left": compute_budget_left(good, bad, objective)}
    return told


def open_record(plan: Plan, clock: Clock, later: Later, find_tenant: FindTenant) -> Record | None:
    """The record of this start, if one is wanted: its spool is the folder of its port.

    Raises:
        SpoolTakenError: another gateway writes to it.
        OSError: the folder cannot be used.
    """
    settings = plan.settings
    if settings.ledger is None:
        return None
    folder = Path(settings.record.spool) / str(settings.listen.port)
    spool = Spool(folder, settings.record.spool_max_bytes)
    terms, _ = build_terms(settings, plan.corridor.tiers)
    bookkeeper = Bookkeeper(spool, terms, clock.now, clock.wall)
    clerk = ClerkLink(
        {
            "database": settings.ledger,
            "spool": str(folder),
            "retention_months": settings.record.retention_months,
        }
    )
    return Record(plan, clock, later, bookkeeper, clerk, find_tenant)


__all__ = ["Record", "RecordFigures", "SpoolTakenError", "open_record"]
