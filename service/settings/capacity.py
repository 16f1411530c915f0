"""Holds contracts against capacity: as configured, or else as a running gateway has measured it."""

import logging
from collections.abc import Iterable

from service.domain.tenant import Tenant
from service.flow.proof import Capacity, Proof, prove
from service.flow.stats import FlowStats
from service.settings.build import Plan

_log = logging.getLogger("sluice.contracts")


def build_capacity(plan: Plan, tokens_per_minute: float | None = None, workers: int = 0) -> Capacity:
    """What there is. ``tokens_per_minute`` of one worker and ``workers`` as measured count where nothing is written."""
    written = plan.settings.capacity
    return Capacity(
        workers=written.workers or len(plan.workers) or workers,
        tokens_per_minute=written.tokens_per_minute or tokens_per_minute,
        requests_per_minute=written.requests_per_minute,
        concurrency=plan.flow.requests_per_worker,
        usable_ratio=written.usable_ratio,
        lost=written.spare_workers,
    )


def prove_plan(plan: Plan, stored: Iterable[Tenant], capacity: Capacity) -> Proof:
    """Everything that is sold, in the file and in the store."""
    return prove((*plan.tenants, *stored), plan.corridor.tiers, capacity)


def find_oversold(plan: Plan, stored: Iterable[Tenant], stats: FlowStats) -> list[str]:
    """Why a gateway that sees ``stats`` must refuse ``plan``; if it is only to be warned, the log has that. Where
    nobody has a contract nothing was promised that could be held against capacity."""
    if not plan.sells:
        return []
    capacity = build_capacity(plan, stats.tokens_per_worker_minute, len(stats.workers))
    told = tell_proof(prove_plan(plan, stored, capacity))
    if plan.settings.capacity.oversold == "refuse":
        return [f"capacity: {fault} (sell less, or add workers)" for fault in told]
    for fault in told:
        _log.warning("contracts: %s", fault)
    return []


def tell_proof(proof: Proof) -> list[str]:
    """What is wrong, in sentences; none if everything is kept."""
    told = []
    if proof.oversold > 0.0 and not proof.kept:
        tiers = ", ".join(f"{one.tier} lacks {one.missing:.2f}" for one in proof.tiers if one.missing > 0.0)
        told.append(
            f"oversold by {proof.oversold:.2f} workers: {proof.sold:.2f} are sold, {proof.backed:.2f} can be relied on "
            f"with one worker lost ({tiers})"
        )
    if proof.unbounded:
        names = ", ".join(proof.unbounded[:5]) + (", ..." if len(proof.unbounded) > 5 else "")
        told.append(
            f"nothing that is known bounds what {len(proof.unbounded)} tenants were promised ({names}): "
            "give them contracts, and set capacity.tokens_per_minute if these are in tokens"
        )
    return told
