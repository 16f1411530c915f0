"""Describes the gateway for operators: snapshots in, plain JSON out. Nothing here carries a secret."""

from collections.abc import Sequence
from enum import Enum
from typing import Any, Protocol

from service.domain.load import WorkerLoad
from service.domain.units import WorkerId
from service.flow.stats import FlowStats, WorkerStats

Json = dict[str, Any]


class Place(Protocol):
    """Where a worker listens."""

    @property
    def base_url(self) -> str:
        """URL without a path."""
        ...

    @property
    def pod(self) -> str | None:
        """What people call the worker, where that is not its id."""
        ...


class Judgement(Protocol):
    """What its watch thinks of it."""

    @property
    def healthy(self) -> bool:
        """Whether it may get work."""
        ...

    @property
    def reason(self) -> Enum:
        """Why."""
        ...


class WatchedWorker(Protocol):
    """What is known of one worker by watching it; satisfied by ``workers.monitor.WorkerStatus``."""

    @property
    def worker_id(self) -> WorkerId: ...
    @property
    def address(self) -> Place: ...
    @property
    def health(self) -> Judgement: ...
    @property
    def load(self) -> WorkerLoad | None: ...
    @property
    def load_age_s(self) -> float | None: ...
    @property
    def starved_s(self) -> float: ...
    @property
    def served_models(self) -> frozenset[str] | None: ...
    @property
    def deviations(self) -> Sequence[str] | None: ...
    @property
    def scrape_failures(self) -> int: ...


class SourceStatus(Protocol):
    """How the source of addresses is doing."""

    @property
    def source(self) -> str: ...
    @property
    def listed(self) -> int: ...
    @property
    def failures(self) -> int: ...
    @property
    def last_error(self) -> str | None: ...


class WorkersView(Protocol):
    """Whoever watches the workers."""

    def status(self) -> Sequence[WatchedWorker]:
        """All workers, in the order in which they joined."""
        ...

    def discovery_status(self) -> SourceStatus:
        """How the source of addresses is doing."""
        ...


def describe_queues(stats: FlowStats, queued_requests_max: int, queued_tokens_max: int) -> Json:
    """What waits, and what bounds it."""
    return {
        "queued_requests": stats.queued_requests,
        "queued_tokens": stats.queued_tokens,
        "queued_requests_max": queued_requests_max,
        "queued_tokens_max": queued_tokens_max,
        "in_flight_requests": stats.in_flight,
        "mean_tpot_s": stats.mean_tpot_s,
        "usable_workers": sum(worker.healthy and not worker.draining for worker in stats.workers),
        "tokens_per_worker_minute": stats.tokens_per_worker_minute,
    }


def describe_worker(status: WatchedWorker, core: WorkerStats | None, opaque: str) -> Json:
    """One worker: what it says of itself, and what the core thinks of it. ``opaque``: its name in answers."""
    load = status.load
    return {
        "id": status.worker_id,
        "opaque": opaque,
        "address": status.address.base_url,
        "pod": status.address.pod,
        "healthy": status.health.healthy,
        "reason": status.health.reason.value,
        "draining": core is not None and core.draining,
        "resting": core is not None and core.resting,
        "in_flight_requests": 0 if core is None else core.in_flight,
        "served_models": None if status.served_models is None else sorted(status.served_models),
        "off_profile": None if status.deviations is None else list(status.deviations),
        "load_age_s": status.load_age_s,
        "running_requests": None if load is None else load.running_requests,
        "waiting_requests": None if load is None else load.waiting_requests,
        "kv_cache_ratio": None if load is None else load.kv_cache_ratio,
        "starved_s": status.starved_s,
        "scrape_failures": status.scrape_failures,
    }


def find_reason_not_ready(stats: FlowStats, leaving: bool) -> str | None:
    """Why no traffic should come, or ``None``."""
    if leaving or stats.draining:
        return "draining"
    if not any(worker.healthy and not worker.draining for worker in stats.workers):
        return "no worker is ready"
    return None
