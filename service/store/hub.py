"""Everything one process has in Redis, over one client."""

import contextlib
import secrets

from redis import exceptions

from service.domain.condition import StoreError
from service.store.connect import CALL_LIMIT_S, RedisConfig, open_redis
from service.store.redis_directory import RedisDirectory
from service.store.redis_leases import RedisLeases
from service.store.shared_load import RedisLoad

_PATIENT_S = 5.0


class Store:
    """Opened without a connection: the first call makes it. ``patient`` is for commands, behind which nobody waits.
    ``pool`` names the workers that this process serves."""

    def __init__(self, config: RedisConfig, patient: bool = False, pool: str = "") -> None:
        limit_s = _PATIENT_S if patient else CALL_LIMIT_S
        self._client = open_redis(config)
        self.gateway = secrets.token_hex(8)
        self.leases = RedisLeases(self._client, self.gateway, limit_s)
        self.directory = RedisDirectory(self._client, limit_s)
        self.load = RedisLoad(self._client, pool, limit_s)

    async def close(self) -> None:
        """Say goodbye and close; a store that does not hear it forgets this gateway by itself."""
        with contextlib.suppress(StoreError):
            await self.leases.leave()
        await self.hang_up()

    async def hang_up(self) -> None:
        """Close the connections."""
        with contextlib.suppress(exceptions.RedisError, OSError):
            await self._client.aclose()
