"""Reads EndpointSlices: which pods are workers, where each listens, and which of them are on their way out.

A Service's endpoints are spread over several objects, at most 100 in each, one set per address family, and an endpoint
may stand in two of them while the cluster moves it. So the slices are kept as they came (:class:`Picture`) and read as
a whole each time; a pod that stands twice is one worker, known by its UID: an address may be given to another pod
within seconds of a delete.

``conditions.ready`` decides nothing here. It is false while a model loads, false when a saturated server answers its
readiness probe late, and still true for up to 40 s on a node that is lost; the gateway's own watch of the worker
(:mod:`service.workers.health`) is the better judge in all three. ``conditions.terminating`` is different: it never goes
back, so such a worker gets no new work from that moment
(https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/#conditions).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from service.domain.units import WorkerId
from service.workers.addresses import WorkerAddress, format_authority

Json = Mapping[str, Any]

SERVICE_LABEL = "kubernetes.io/service-name"
_FAMILIES = {"IPv4": 0, "IPv6": 1, "FQDN": 2}
"""Which address is taken where a pod has several: the first of these."""


@dataclass(frozen=True, slots=True)
class PortChoice:
    """Which port of an endpoint is the worker's: ``number`` if given, else the one called ``name``, else the only one.

    ``server_name``: speak TLS to it, and its certificate must be for this name.
    """

    name: str | None = None
    number: int | None = None
    server_name: str | None = None


@dataclass(slots=True)
class Picture:
    """All slices of one Service by name, as last told."""

    slices: dict[str, Json] = field(default_factory=dict)

    def put(self, item: Json) -> None:
        """A slice was added or changed."""
        self.slices[read_name(item)] = item

    def drop(self, item: Json) -> None:
        """A slice was deleted."""
        self.slices.pop(read_name(item), None)


@dataclass(frozen=True, slots=True)
class Reading:
    """The workers of a picture, and what was odd about it, with its cure."""

    workers: tuple[WorkerAddress, ...]
    complaint: str | None = None


def read_name(item: Json) -> str:
    """The name of an object, empty if it has none."""
    metadata = item.get("metadata")
    return str(metadata.get("name", "")) if isinstance(metadata, Mapping) else ""


def read_workers(slices: Iterable[Json], choice: PortChoice) -> Reading:
    """All workers in ``slices``, each once, in the order of their ids; never raises."""
    found: dict[WorkerId, tuple[int, WorkerAddress]] = {}
    complaint = None
    for item in slices:
        family = _FAMILIES.get(str(item.get("addressType")))
        endpoints = _list(item.get("endpoints"))
        if family is None or not endpoints:
            continue
        port = _choose_port(item, choice)
        if isinstance(port, str):
            complaint = port
            continue
        for endpoint in endpoints:
            worker = _read_endpoint(endpoint, port, choice.server_name)
            if worker is not None:
                known = found.get(worker.worker_id)
                found[worker.worker_id] = (family, worker) if known is None else _merge(known, (family, worker))
    workers = tuple(found[worker_id][1] for worker_id in sorted(found))
    return Reading(workers, complaint)


def _read_endpoint(endpoint: object, port: int, server_name: str | None) -> WorkerAddress | None:
    if not isinstance(endpoint, Mapping):
        return None
    addresses = _list(endpoint.get("addresses"))
    if not addresses or not isinstance(addresses[0], str):
        return None
    host = addresses[0]  # the others are of no defined meaning
    target, conditions = endpoint.get("targetRef"), endpoint.get("conditions")
    uid = pod = None
    if isinstance(target, Mapping) and target.get("kind") == "Pod":
        uid, pod = target.get("uid"), target.get("name")
    leaving = isinstance(conditions, Mapping) and conditions.get("terminating") is True
    return WorkerAddress(
        WorkerId(str(uid) if uid else format_authority(host, port)),
        host,
        port,
        server_name is not None,
        server_name,
        pod=str(pod) if pod else None,
        leaving=leaving,
    )


def _merge(known: tuple[int, WorkerAddress], other: tuple[int, WorkerAddress]) -> tuple[int, WorkerAddress]:
    """The same pod twice: the address of the first family, leaving if either says so."""
    family, kept = min(known, other, key=lambda one: (one[0], one[1].host))
    return family, kept.as_leaving(known[1].leaving or other[1].leaving)


def _choose_port(item: Json, choice: PortChoice) -> int | str:
    """The port, or what is wrong."""
    if choice.number is not None:
        return choice.number
    ports = {str(port.get("name") or ""): port.get("port") for port in _list(item.get("ports")) if _is_tcp(port)}
    wanted = choice.name
    if wanted is None and len(ports) == 1:
        (wanted,) = ports
    number = None if wanted is None else ports.get(wanted)
    if type(number) is int and 0 < number < 65536:
        return number
    names = ", ".join(repr(name) for name in ports) or "none"
    if wanted is None:
        return f"pool.port_name is needed: slice {read_name(item)} has the ports {names}"
    return f"pool.port_name: slice {read_name(item)} has no port {wanted!r}, only {names}: name one of these"


def _is_tcp(port: object) -> bool:
    return isinstance(port, Mapping) and port.get("protocol", "TCP") == "TCP"


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
