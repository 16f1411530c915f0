"""Follows the EndpointSlices of one Service: a list, then a watch from there, and a list again before 30 s are over.

A watch tells of a change within milliseconds, but it may fall silent without an error, lose an event in a gap, or end.
The list that follows each watch mends all of that, so whatever a watch does, a worker that is gone is removed within
``relist_s`` (D18). Between two lists:

| what happens | what follows |
|---|---|
| the watch ends in order | it is opened again from the last resource version, bookmarks included |
| it breaks | a list, after a pause that grows with each failure in a row |
| 410 (the version is too old), as a status or as an event | a list at once |
| another error event | a list, after a pause |
| the API server cannot be reached, refuses, or answers nonsense | the last known list stays, however long it takes |

The last, because probes eject who is dead, and to empty the pool would be an outage of ours.

Trade-offs: one list per gateway each ``relist_s`` is more than an informer of a controller asks; it is one page of one
Service. While the API server is away nobody joins, and a pod that goes is noticed by its own silence.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import httpx

from service.workers.addresses import WorkerAddress
from service.workers.api_wire import ApiError, Page, explain_refusal, read_event, read_lines, read_page
from service.workers.cluster import ClusterAccess, open_client
from service.workers.discovery import DiscoveryStatus, Publish
from service.workers.pacing import Chance, compute_backoff_s, spread, wait_until_set
from service.workers.slices import SERVICE_LABEL, Picture, PortChoice, read_workers

_LOG = logging.getLogger("sluice.workers")

_PAGE_LIMIT = 500
_GONE = httpx.codes.GONE


@dataclass(frozen=True, slots=True)
class KubernetesConfig:
    """Which Service, and at which pace.

    ``relist_s``: longest time between two lists. ``request_timeout_s``: bound of one page of a list, and of the wait
    for a watch's head. ``retry_first_s``, ``retry_longest_s``: pauses after failures.
    """

    access: ClusterAccess
    service: str
    port: PortChoice = field(default_factory=PortChoice)
    relist_s: float = 25.0
    request_timeout_s: float = 5.0
    retry_first_s: float = 0.2
    retry_longest_s: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < self.relist_s <= 30:
            raise ValueError(f"relist_s is {self.relist_s}: must be above 0 and at most 30")


class KubernetesDiscovery:
    """The workers of one Service of a cluster."""

    def __init__(
        self,
        config: KubernetesConfig,
        now: Callable[[], float],
        chance: Chance,
        open_api: Callable[[ClusterAccess], httpx.AsyncClient] = open_client,
    ) -> None:
        self._config = config
        self._now = now
        self._chance = chance
        self._open_api = open_api
        self._picture = Picture()
        self._version = ""
        self._list_due_at = now()
        self._failures_in_row = 0
        self._followed = False
        self._heard = False
        self._pause = asyncio.Event()
        self._published: tuple[tuple[WorkerAddress, bool], ...] | None = None
        access = config.access
        self._path = f"/apis/discovery.k8s.io/v1/namespaces/{access.namespace}/endpointslices"
        self._status = DiscoveryStatus(f"kubernetes:{access.namespace}/{config.service}", 0, None)

    def status(self) -> DiscoveryStatus:
        """How the conversation with the API server goes."""
        return self._status

    async def run(self, publish: Publish) -> None:
        """List, watch, and again, until cancelled."""
        while True:
            try:
                async with self._open_api(self._config.access) as client:
                    await self._converse(client, publish)
            except ApiError as error:
                await self._rest(str(error), hurry=error.code == _GONE)
            except (httpx.HTTPError, OSError, TimeoutError) as error:
                await self._rest(f"{self._config.access.api_server}: {str(error) or type(error).__name__}")

    async def _converse(self, client: httpx.AsyncClient, publish: Publish) -> None:
        """Go on with one client until something fails."""
        while True:
            if self._now() >= self._list_due_at:
                await self._list(client, publish)
                self._list_due_at = self._now() + spread(self._config.relist_s * 0.9, 0.1, self._chance)
            await self._watch(client, publish)

    async def _rest(self, error: str, hurry: bool = False) -> None:
        """After a failure: list next, but not before a pause. The first 410 in a row is followed at once."""
        self._list_due_at = self._now()
        self._failures_in_row += 1
        self._followed = False
        if self._status.last_error != error:
            _LOG.warning("discovery: %s", error)
        self._status = replace(self._status, failures=self._status.failures + 1, last_error=error)
        if hurry and self._failures_in_row == 1:
            return
        config = self._config
        pause_s = compute_backoff_s(config.retry_first_s, config.retry_longest_s, self._failures_in_row - 1)
        await wait_until_set(self._pause, spread(pause_s, 0.2, self._chance))

    # ------------------------------------------------------------------ list

    async def _list(self, client: httpx.AsyncClient, publish: Publish) -> None:
        picture, version, more = Picture(), "", ""
        while True:
            page = await self._fetch_page(client, more)
            for item in page.items:
                picture.put(item)
            version, more = page.version, page.more
            if not more:
                break
        if self._followed:
            self._note_missed(picture)
        self._picture, self._version, self._followed = picture, version, True
        self._publish(publish, listed=True)

    async def _fetch_page(self, client: httpx.AsyncClient, more: str) -> Page:
        parameters = {"labelSelector": self._selector, "limit": str(_PAGE_LIMIT)}
        if more:
            parameters["continue"] = more
        async with asyncio.timeout(self._config.request_timeout_s):
            answer = await client.get(self._path, params=parameters)
        if answer.status_code != httpx.codes.OK:
            raise explain_refusal(self._config.access, answer.status_code, answer.content)
        return read_page(answer.content)

    @property
    def _selector(self) -> str:
        return f"{SERVICE_LABEL}={self._config.service}"

    def _note_missed(self, listed: Picture) -> None:
        """The watch should have told what the list tells; if it did not, it is silent or has gaps."""
        before, after = (
            {worker.worker_id for worker in read_workers(one.slices.values(), self._config.port).workers}
            for one in (self._picture, listed)
        )
        if before != after:
            self._status = replace(self._status, missed=self._status.missed + 1)
            _LOG.warning("discovery: the watch did not tell of %d workers that came or went", len(before ^ after))

    def _publish(self, publish: Publish, listed: bool = False) -> None:
        reading = read_workers(self._picture.slices.values(), self._config.port)
        complaint = reading.complaint
        if not reading.workers and complaint is None and listed:
            complaint = (
                f"pool.service: {self._config.service!r} has no endpoints in namespace"
                f" {self._config.access.namespace!r}; name the Service that selects the workers' pods"
            )
        if complaint is not None and complaint != self._status.last_error:
            _LOG.warning("discovery: %s", complaint)
        self._status = replace(
            self._status, listed=len(reading.workers), confirmed_at=self._now(), last_error=complaint
        )
        said = tuple((worker, worker.leaving) for worker in reading.workers)
        if listed or said != self._published:
            self._published = said
            publish(reading.workers)

    # ------------------------------------------------------------------ watch

    async def _watch(self, client: httpx.AsyncClient, publish: Publish) -> None:
        """Follow one watch to its end, which is at the latest when a list is due."""
        left_s = self._list_due_at - self._now()
        if left_s <= 0:
            return
        parameters = {
            "labelSelector": self._selector,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(int(left_s) + 1),
        }
        timeout = httpx.Timeout(self._config.request_timeout_s, read=None)
        began_at, self._heard = self._now(), False
        try:
            async with (
                asyncio.timeout(left_s),
                client.stream("GET", self._path, params=parameters, timeout=timeout) as answer,
            ):
                if answer.status_code != httpx.codes.OK:
                    raise explain_refusal(self._config.access, answer.status_code, await answer.aread())
                async for line in read_lines(answer):
                    self._take(line, publish)
        except TimeoutError:
            self._failures_in_row = 0
            return  # a list is due
        if not self._heard and self._now() - began_at < self._config.retry_longest_s:
            raise ApiError("the watch ended as soon as it had begun")
        self._failures_in_row = 0

    def _take(self, line: bytes, publish: Publish) -> None:
        event = read_event(line)
        self._version = event.version or self._version
        self._heard, self._failures_in_row = True, 0
        if event.kind == "BOOKMARK":
            self._status = replace(self._status, confirmed_at=self._now())
            return
        if event.kind == "DELETED":
            self._picture.drop(event.item)
        else:
            self._picture.put(event.item)
        self._publish(publish)
