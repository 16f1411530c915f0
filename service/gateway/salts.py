"""Keeps each tenant's own salt of the workers' prefix cache."""

import hashlib

from service.domain.units import TenantId


class CacheSalts(dict[TenantId, bytes]):
    """Members put in front of every body, by tenant; made from the ``secret`` when first asked for."""

    def __init__(self, secret: bytes) -> None:
        super().__init__()
        self._secret = secret[:64]

    def __missing__(self, tenant_id: TenantId) -> bytes:
        digest = hashlib.blake2b(tenant_id.encode(), key=self._secret, digest_size=16).hexdigest()
        salt = self[tenant_id] = b'"cache_salt":"%b",' % digest.encode()
        return salt
