"""Opens connections to Redis whose every call is bounded."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

CALL_LIMIT_S = 0.04
"""The longest a call may take. Who waits for one waits 45 ms at most, so that 50 are never reached."""
_SOCKET_LIMIT_S = 2.0
"""The driver's own bound, which comes into play only if a call of ours was not bounded."""


@dataclass(frozen=True, slots=True)
class RedisConfig:
    """``url`` is ``redis://`` or, for TLS, ``rediss://``; the password comes from the environment."""

    url: str
    password: str | None = None
    ca_file: str | None = None


def open_redis(config: RedisConfig) -> Redis:
    """A client without retries of its own: when to try again is ours to say."""
    options: dict[str, Any] = {}
    if config.ca_file is not None and urlsplit(config.url).scheme == "rediss":
        options["ssl_ca_certs"] = config.ca_file
    client: Redis = Redis.from_url(
        config.url,
        password=config.password,
        socket_timeout=_SOCKET_LIMIT_S,
        socket_connect_timeout=_SOCKET_LIMIT_S,
        retry=Retry(NoBackoff(), 0),
        max_connections=16,
        client_name="sluice",
        **options,
    )
    return client
