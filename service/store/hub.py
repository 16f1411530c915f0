"""Everything one gateway has in Redis, over one client."""

import contextlib
import secrets

from redis import exceptions

from service.domain.condition import StoreError
from service.store.connect import RedisConfig, open_redis
from service.store.redis_leases import RedisLeases


class Store:
    """Opened without a connection: the first call makes it."""

    def __init__(self, config: RedisConfig) -> None:
        self._client = open_redis(config)
        self.gateway = secrets.token_hex(8)
        self.leases = RedisLeases(self._client, self.gateway)

    async def close(self) -> None:
        """Say goodbye and close; a store that does not hear it forgets this gateway by itself."""
        with contextlib.suppress(StoreError):
            await self.leases.leave()
        with contextlib.suppress(exceptions.RedisError, OSError):
            await self._client.aclose()
