"""Tells the cluster which worker pods are the cheapest to lose, so that a scale-down takes an idle and cold one.

A ReplicaSet that shrinks ends the pods with the lowest ``controller.kubernetes.io/pod-deletion-cost`` first, among
those that are equally ready (https://kubernetes.io/docs/concepts/workloads/controllers/replicaset/#pod-deletion-cost).
The same page asks that it is not rewritten with every change of a metric, since each write is an update of the pod. So
the cost is coarse, and written only when it has been another one for two looks in a row:

    cost = 10 x bits(requests on the worker) + min(9, bits(kilotokens per second that its prefix cache saved))

bits(n) is the binary length of n: it changes when n doubles or halves. Both are the worker's own figures, of all
gateways together, so each gateway comes to the same cost. Tokens that the cache saved stand for sessions that come back
to this worker and would start cold elsewhere.

Trade-offs: a worker whose figures cannot be read keeps the cost it had. Several gateways each write what they see; a
level on the edge may be written by both, at most once per gateway and two looks. StatefulSets and LeaderWorkerSets do
not read the annotation.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import httpx

from service.domain.load import WorkerLoad
from service.domain.units import WorkerId
from service.workers.addresses import WorkerAddress
from service.workers.cluster import ClusterAccess, open_client
from service.workers.guard import run_guarded
from service.workers.pacing import Chance, spread, wait_until_set

_LOG = logging.getLogger("sluice.workers")

ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
_LOAD_STEP = 10
_WARMTH_MAX = 9


@dataclass(frozen=True, slots=True)
class DeletionCostConfig:
    """``interval_s``: between two looks. ``writes_max``: pods written after one look; the others wait for the next."""

    access: ClusterAccess
    interval_s: float = 30.0
    writes_max: int = 16
    timeout_s: float = 5.0


class Watched(Protocol):
    """What is read of a worker; ``workers.monitor.WorkerStatus`` has it."""

    @property
    def address(self) -> WorkerAddress: ...
    @property
    def load(self) -> WorkerLoad | None: ...


@dataclass(slots=True)
class _Pod:
    """What is known of one pod's cost."""

    load: WorkerLoad | None = None
    wanted: int | None = None
    written: int | None = None


def compute_cost(before: WorkerLoad, load: WorkerLoad) -> int | None:
    """The cost by the formula above; ``None`` if the worker does not tell enough."""
    length_s = load.observed_at - before.observed_at
    if load.running_requests is None or length_s <= 0:
        return None
    saved = 0
    if load.prefix_hit_tokens is not None and before.prefix_hit_tokens is not None:
        saved = max(load.prefix_hit_tokens - before.prefix_hit_tokens, 0)
    warmth = int(saved / 1000 / length_s).bit_length()
    requests = load.running_requests + (load.waiting_requests or 0)
    return _LOAD_STEP * requests.bit_length() + min(warmth, _WARMTH_MAX)


@dataclass(slots=True)
class CostLedger:
    """Which costs are due to be written. Pure: looks in, pods out."""

    pods: dict[WorkerId, _Pod] = field(default_factory=dict)

    def observe(self, workers: Iterable[Watched]) -> list[tuple[WorkerAddress, int]]:
        """Take in one look; whose cost is to be written, the largest change first."""
        due: list[tuple[int, WorkerAddress, int]] = []
        seen: dict[WorkerId, _Pod] = {}
        for worker in workers:
            address, load = worker.address, worker.load
            if address.pod is None or address.leaving:
                continue
            pod = seen[address.worker_id] = self.pods.get(address.worker_id) or _Pod()
            before, pod.load = pod.load, load
            cost = None if load is None or before is None else compute_cost(before, load)
            if cost is not None and cost == pod.wanted and cost != pod.written:
                due.append((-abs(cost - (pod.written or 0)), address, cost))
            pod.wanted = cost
        self.pods = seen
        return [(address, cost) for _, address, cost in sorted(due, key=lambda one: (one[0], one[1].worker_id))]

    def note_written(self, worker_id: WorkerId, cost: int) -> None:
        """The cluster has it."""
        pod = self.pods.get(worker_id)
        if pod is not None:
            pod.written = cost


class DeletionCosts:
    """Keeps the annotation up to date. ``workers`` gives all watched workers."""

    def __init__(
        self,
        config: DeletionCostConfig,
        workers: Callable[[], Sequence[Watched]],
        chance: Chance,
        open_api: Callable[[ClusterAccess], httpx.AsyncClient] = open_client,
    ) -> None:
        self._config = config
        self._workers = workers
        self._chance = chance
        self._open_api = open_api
        self._ledger = CostLedger()
        self._pause = asyncio.Event()
        self._complaint: str | None = None
        self.writes = 0

    async def run(self) -> None:
        """Look and write until cancelled."""
        while True:
            await wait_until_set(self._pause, spread(self._config.interval_s, 0.2, self._chance))
            await run_guarded("writing deletion costs", self._turn)

    async def _turn(self) -> None:
        due = self._ledger.observe(self._workers())[: self._config.writes_max]
        if not due:
            return
        try:
            async with self._open_api(self._config.access) as client:
                for address, cost in due:
                    async with asyncio.timeout(self._config.timeout_s):
                        await self._write(client, address, cost)
        except (httpx.HTTPError, OSError, TimeoutError) as error:
            self._complain(f"{self._config.access.api_server}: {str(error) or type(error).__name__}")

    async def _write(self, client: httpx.AsyncClient, address: WorkerAddress, cost: int) -> None:
        """``metadata.uid`` makes the cluster refuse the patch if another pod has this name by then."""
        access = self._config.access
        path = f"/api/v1/namespaces/{access.namespace}/pods/{address.pod}"
        body = {"metadata": {"uid": address.worker_id, "annotations": {ANNOTATION: str(cost)}}}
        headers = {"content-type": "application/merge-patch+json"}
        answer = await client.patch(path, content=json.dumps(body), headers=headers)
        if answer.is_success:
            self._ledger.note_written(address.worker_id, cost)
            self.writes += 1
            self._complaint = None
        elif answer.status_code == httpx.codes.FORBIDDEN:
            self._complain(f"pool.kubernetes.deletion_cost: grant patch on pods in namespace {access.namespace!r}")
        elif answer.status_code not in (httpx.codes.NOT_FOUND, httpx.codes.CONFLICT):  # else it is gone
            self._complain(f"{access.api_server} answered {answer.status_code} to a patch of pod {address.pod}")

    def _complain(self, what: str) -> None:
        if what != self._complaint:
            _LOG.warning("deletion cost: %s", what)
        self._complaint = what
