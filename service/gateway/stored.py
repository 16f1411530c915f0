"""Remembers which worker and tenant made which stored response."""

from collections import OrderedDict

from service.domain.tenant import Tenant
from service.domain.units import TenantId, WorkerId

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
