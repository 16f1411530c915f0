"""Remembers which worker and tenant made which stored response."""

from collections import OrderedDict

from service.domain.tenant import Tenant
from service.domain.units import WorkerId
from service.runtime.account import Settlement

_KEPT = 65536


class StoredResponses:
    """The last responses by their id; the oldest are forgotten. A response is its tenant's own and nobody else's."""

    def __init__(self) -> None:
        self._made: OrderedDict[str, Settlement] = OrderedDict()

    def remember(self, response_id: str, settlement: Settlement) -> None:
        """Note who makes it; the settlement knows its worker once it is dispatched."""
        self._made[response_id] = settlement
        if len(self._made) > _KEPT:
            self._made.popitem(last=False)

    def worker_of(self, response_id: str, tenant: Tenant) -> WorkerId | None:
        """The worker that holds it, if it is the tenant's own."""
        settlement = self._made.get(response_id)
        return settlement.worker_id if settlement is not None and settlement.tenant_id == tenant.tenant_id else None


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
