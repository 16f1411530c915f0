"""Reads states (queue, workers, connections) from one snapshot, taken when somebody scrapes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from service.domain.condition import Condition
from service.domain.units import WorkerId
from service.flow.quota import Passage
from service.flow.stats import DemandStats, FlowStats
from service.telemetry.kinds import Family, Metric
from service.telemetry.labels import STORE_CALL_KINDS, WorkerPhase, phase_of
from service.telemetry.metrics import (
    BODY_BYTES,
    BROWNOUT_LEVEL,
    CEILING,
    CLAIM_PERMITS,
    CONNECTIONS,
    DISCOVERY_AGE,
    DISCOVERY_FAILURES,
    DISCOVERY_MISSED,
    DRAINING,
    GATEWAYS,
    IN_FLIGHT,
    JOURNAL_DROPPED,
    LEDGER_AWAY,
    LEDGER_LOST,
    LEDGER_PENDING,
    LEDGER_SPOOL_BYTES,
    LEDGER_SPOOL_BYTES_MAX,
    LEDGER_WAITING,
    MAINTENANCE,
    OFFERED_WORK,
    PERMITS,
    PERMITS_HELD,
    QUEUED_REQUESTS,
    QUEUED_TOKENS,
    QUEUED_WORK,
    QUOTA_ACCOUNTS,
    QUOTA_DECISIONS,
    REPLICAS,
    REPLICAS_SILENT,
    STORE_AWAY,
    STORE_CALLS,
    WORKER_HEALTHY,
    WORKER_KV,
    WORKER_LOAD_AGE,
    WORKER_PERMITS,
    WORKERS,
)


class RecordFigures(Protocol):
    """The state of the ledger's spool; see ``service.record.RecordFigures``."""

    @property
    def waiting(self) -> int | None: ...
    @property
    def pending(self) -> int: ...
    @property
    def lost(self) -> int: ...
    @property
    def spool_bytes(self) -> int: ...
    @property
    def spool_bytes_max(self) -> int: ...
    @property
    def database_away(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Discovered:
    """How learning of workers goes; ``age_s`` is ``None`` before the first list."""

    age_s: float | None
    failures: int
    missed: int


@dataclass(frozen=True, slots=True)
class QuotaFigures:
    """Decisions about limits; calls of the store by what was asked and the answer, empty without a store."""

    accounts: int
    decisions: Mapping[Passage, int]
    calls: Mapping[tuple[str, Condition], int] = field(default_factory=dict)
    store_away: bool | None = None
    gateways: int | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state at one moment. ``None`` and workers that are not in ``load_ages_s`` mean: nobody knows."""

    flow: FlowStats
    load_ages_s: Mapping[WorkerId, float | None] = field(default_factory=dict)
    body_bytes_in_flight: int | None = None
    connections: int | None = None
    brownout_level: int = 0
    journal_dropped: int | None = None
    maintenance: bool = False
    record: RecordFigures | None = None
    discovery: Discovered | None = None
    ceilings: Mapping[str, float] = field(default_factory=dict)
    demand: DemandStats | None = None
    kv_ratios: Mapping[WorkerId, float | None] = field(default_factory=dict)
    quotas: QuotaFigures | None = None


def read_gauges(snapshot: Snapshot) -> Iterator[Family]:
    """All gauges. Workers are those of the snapshot, so a worker that is gone leaves no series behind."""
    flow = snapshot.flow
    yield _single(QUEUED_REQUESTS, flow.queued_requests)
    yield _single(QUEUED_TOKENS, flow.queued_tokens)
    yield _single(PERMITS_HELD, flow.in_flight)
    yield _single(DRAINING, int(flow.draining))
    yield Family(IN_FLIGHT, [((worker.worker_id,), worker.in_flight) for worker in flow.workers])
    yield Family(WORKER_PERMITS, [((worker.worker_id,), worker.permits) for worker in flow.workers])
    yield _single(REPLICAS, flow.replicas)
    yield _single(REPLICAS_SILENT, None if flow.alone is None else int(flow.alone))
    yield Family(WORKER_HEALTHY, [((worker.worker_id,), int(worker.healthy)) for worker in flow.workers])
    ages = [(worker.worker_id, snapshot.load_ages_s.get(worker.worker_id)) for worker in flow.workers]
    yield Family(WORKER_LOAD_AGE, [((worker_id,), age_s) for worker_id, age_s in ages if age_s is not None])
    kv = [(worker.worker_id, snapshot.kv_ratios.get(worker.worker_id)) for worker in flow.workers]
    yield Family(WORKER_KV, [((worker_id,), ratio) for worker_id, ratio in kv if ratio is not None])
    yield from _read_demand(snapshot.demand)
    phases = dict.fromkeys(WorkerPhase, 0)
    for worker in flow.workers:
        phases[phase_of(worker)] += 1
    yield Family(WORKERS, [((phase.value,), count) for phase, count in phases.items()])
    yield _single(BODY_BYTES, snapshot.body_bytes_in_flight)
    yield _single(CONNECTIONS, snapshot.connections)
    yield _single(BROWNOUT_LEVEL, snapshot.brownout_level)
    yield Family(CEILING, [((band,), ceiling) for band, ceiling in snapshot.ceilings.items()])
    yield _single(MAINTENANCE, int(snapshot.maintenance))
    yield _single(JOURNAL_DROPPED, snapshot.journal_dropped)
    yield from _read_quotas(snapshot.quotas)
    discovery = snapshot.discovery
    yield _single(DISCOVERY_AGE, None if discovery is None else discovery.age_s)
    yield _single(DISCOVERY_FAILURES, None if discovery is None else discovery.failures)
    yield _single(DISCOVERY_MISSED, None if discovery is None else discovery.missed)

    yield from _read_record(snapshot.record)


def _read_record(record: RecordFigures | None) -> Iterator[Family]:
    yield _single(LEDGER_WAITING, None if record is None else record.waiting)
    yield _single(LEDGER_PENDING, None if record is None else record.pending)
    yield _single(LEDGER_LOST, None if record is None else record.lost)
    yield _single(LEDGER_SPOOL_BYTES, None if record is None else record.spool_bytes)
    yield _single(LEDGER_SPOOL_BYTES_MAX, None if record is None else record.spool_bytes_max)
    yield _single(LEDGER_AWAY, None if record is None else int(record.database_away))


def _read_quotas(quotas: QuotaFigures | None) -> Iterator[Family]:
    decisions = {} if quotas is None else quotas.decisions
    yield Family(QUOTA_DECISIONS, [((passage.value,), count) for passage, count in decisions.items()])
    yield _single(QUOTA_ACCOUNTS, None if quotas is None else quotas.accounts)
    away = None if quotas is None else quotas.store_away
    calls = {} if quotas is None or away is None else quotas.calls
    kinds = [(call, condition) for call in STORE_CALL_KINDS for condition in Condition if away is not None]
    yield Family(STORE_CALLS, [((call, condition.value), calls.get((call, condition), 0)) for call, condition in kinds])
    yield _single(STORE_AWAY, None if away is None else int(away))
    yield _single(GATEWAYS, None if quotas is None else quotas.gateways)


def _read_demand(demand: DemandStats | None) -> Iterator[Family]:
    claims = () if demand is None else demand.claims
    yield Family(OFFERED_WORK, [((one.claim.value,), one.offered_work_s) for one in claims])
    yield Family(QUEUED_WORK, [((one.claim.value,), one.queued_work_s) for one in claims])
    yield Family(CLAIM_PERMITS, [((one.claim.value,), one.permits_held) for one in claims])
    yield _single(PERMITS, None if demand is None else demand.permits)


def _single(metric: Metric, value: float | None) -> Family:
    return Family(metric, [] if value is None else [((), value)])
