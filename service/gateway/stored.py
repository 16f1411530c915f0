"""Remembers which worker and tenant made which stored response, and asks that worker for it."""

from collections import OrderedDict
from dataclasses import replace

from service.domain.request import Request
from service.domain.tenant import Tenant
from service.domain.units import TenantId, WorkerId
from service.gateway.exchange import Exchange
from service.gateway.headers import render_outbound
from service.gateway.routes import STORED
from service.runtime.account import Settlement
from service.runtime.bypass import Bypass
from service.runtime.journey import Journey, Outbound, Road

_KEPT = 65536
_KEPT_PER_TENANT = 4096
"""Guesses: some hundred bytes each, so about 20 MB in all, and no tenant can make the others' be forgotten alone."""


class StoredResponses:
    """The last responses by their id, of each tenant and of all; the oldest are forgotten. A response is its tenant's
    own and nobody else's."""

    def __init__(self) -> None:
        self._made: OrderedDict[str, tuple[TenantId, WorkerId]] = OrderedDict()
        self._of: dict[TenantId, OrderedDict[str, None]] = {}

    def remember(self, response_id: str, tenant_id: TenantId, worker_id: WorkerId) -> None:
        """Note who made it, once its answer has begun: no client knows its id before."""
        self._made[response_id] = tenant_id, worker_id
        own = self._of.setdefault(tenant_id, OrderedDict())
        own[response_id] = None
        if len(own) > _KEPT_PER_TENANT:
            self._forget(next(iter(own)))
        elif len(self._made) > _KEPT:
            self._forget(next(iter(self._made)))

    def _forget(self, response_id: str) -> None:
        tenant_id, _ = self._made.pop(response_id)
        own = self._of[tenant_id]
        del own[response_id]
        if not own:
            del self._of[tenant_id]

    def worker_of(self, response_id: str, tenant: Tenant) -> WorkerId | None:
        """The worker that holds it, if it is the tenant's own."""
        tenant_id, worker_id = self._made.get(response_id, (None, None))
        return worker_id if tenant_id == tenant.tenant_id else None


def read_response_path(method: bytes, path: bytes) -> tuple[str, bytes] | None:
    """Id and tail of ``GET /v1/responses/{id}`` and ``POST /v1/responses/{id}/cancel``; ``None`` for other paths."""
    response_id, slash, tail = path.removeprefix(b"/v1/responses/").partition(b"/")
    name = response_id.decode("ascii", "replace")
    if not name.replace("_", "").replace("-", "").isalnum():
        return None
    if method == b"GET" and not slash:
        return name, b""
    if method == b"POST" and tail == b"cancel":
        return name, b"/cancel"
    return None


def start_stored(
    road: Road,
    exchange: Exchange,
    settlement: Settlement,
    tenant: Tenant,
    found: tuple[str, bytes],
    worker_id: WorkerId,
    head: bytes,
    worker_key: bytes,
) -> None:
    """Ask ``worker_id`` for the response ``found`` in the path, past queue, permits and limits."""
    query = b"?" + exchange.query if exchange.query else b""
    target = b"%b /v1/responses/%b%b%b" % (exchange.method, found[0].encode(), found[1], query)
    settlement.stream = b"stream=true" in exchange.query
    request = Request(
        settlement.request_id, tenant.tenant_id, tenant.tier, 0, 0, None, settlement.stream,
        settlement.arrived_at, settlement.arrived_at, None, worker_id,
    )  # fmt: skip
    past = replace(road, driver=Bypass(worker_id, road.driver))
    lines = render_outbound(exchange.named, exchange.headers, request.request_id, len(exchange.body), 0, worker_key)
    out = Outbound(target, lines, (bytes(exchange.body),))
    exchange.listener = journey = Journey(past, request, out, exchange, STORED.dialect, head, settlement)
    journey.start()
