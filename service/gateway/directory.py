"""Knows whose key it is: keys and tenants of the configuration file, and those that the shared store keeps.

All of them are in memory, so a request never waits for the store, and what is known stays known while it is away. A
tenant of the file is described by the file alone; its keys may stand in either.
"""

import hashlib
import heapq
from collections.abc import Callable, Iterable, Mapping

from service.domain.tenant import Tenant
from service.domain.units import TenantId

StoredKey = tuple[TenantId, float | None]
"""Whose it is, and when it ends (seconds since 1970 UTC)."""
FileKey = tuple[bytes, Tenant, float | None]


class Directory:
    """Keys by their hash, so the time of a look-up tells nothing of how much of a key was right.

    ``wall`` gives seconds since 1970 UTC. :meth:`beat` must be called a few times a second: that is how precisely keys
    end.
    """

    def __init__(self, wall: Callable[[], float], keys: Iterable[FileKey] = ()) -> None:
        self._wall = wall
        self._written: dict[bytes, Tenant] = {}
        self._written_tenants: dict[TenantId, Tenant] = {}
        self._ends: dict[bytes, float] = {}
        self._upcoming: list[float] = []
        self._stored: dict[bytes, TenantId] = {}
        self._tenants: dict[TenantId, Tenant] = {}
        self.generation = 0
        self.replace(keys)

    def find(self, key: bytes) -> Tenant | None:
        """The tenant of ``key``, or ``None``."""
        digest = hashlib.sha256(key).digest()
        tenant = self._written.get(digest)
        if tenant is None:
            tenant_id = self._stored.get(digest)
            if tenant_id is None:
                return None
            tenant = self.find_tenant(tenant_id)
        if self._ends and digest in self._ends and self._wall() >= self._ends[digest]:
            return None
        return tenant

    def replace(self, keys: Iterable[FileKey], tenants: Iterable[Tenant] = ()) -> None:
        """Take another file at once, as at reload. ``tenants`` are those without a key of their own."""
        for digest in self._written:
            self._ends.pop(digest, None)
        written: dict[bytes, Tenant] = {}
        self._written_tenants = {tenant.tenant_id: tenant for tenant in tenants}
        for digest, tenant, ends_at in keys:
            written[digest] = tenant
            self._written_tenants[tenant.tenant_id] = tenant
            self._note_end(digest, ends_at)
        self._written = written
        self.generation += 1

    def follow(
        self, whole: bool, keys: Mapping[bytes, StoredKey | None], tenants: Mapping[TenantId, Tenant | None]
    ) -> None:
        """What has changed in the store, or with ``whole`` all that it holds."""
        if whole:
            for digest in self._stored.keys() - keys.keys():
                self._ends.pop(digest, None)
            self._stored = {}
            self._tenants = {}
        for tenant_id, tenant in tenants.items():
            if tenant is None:
                self._tenants.pop(tenant_id, None)
            else:
                self._tenants[tenant_id] = tenant
        for digest, key in keys.items():
            self._ends.pop(digest, None)
            if key is None:
                self._stored.pop(digest, None)
            else:
                self._stored[digest] = key[0]
                self._note_end(digest, key[1])
        self.generation += 1

    def beat(self) -> None:
        """A key has ended: nobody may take it for known any more."""
        if self._upcoming and self._wall() >= self._upcoming[0]:
            while self._upcoming and self._wall() >= self._upcoming[0]:
                heapq.heappop(self._upcoming)
            self.generation += 1

    def find_tenant(self, tenant_id: TenantId) -> Tenant | None:
        """The tenant of this name, of the file or of the store."""
        return self._written_tenants.get(tenant_id) or self._tenants.get(tenant_id)

    def stored_tenants(self) -> list[Tenant]:
        """Tenants that the store describes."""
        return [tenant for name, tenant in self._tenants.items() if name not in self._written_tenants]

    def __len__(self) -> int:
        """How many tenants are known."""
        return len(self._written_tenants.keys() | self._tenants.keys())

    def _note_end(self, digest: bytes, ends_at: float | None) -> None:
        if ends_at is not None:
            self._ends[digest] = ends_at
            heapq.heappush(self._upcoming, ends_at)
