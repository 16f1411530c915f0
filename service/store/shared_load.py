"""Carries the reports of gateways that serve the same workers: through Redis, or within one process.

What was written is seen by whoever reads later: a report goes in and the others' come back in one script, which Redis
runs whole. Reports are written with the names of their fields, and unknown ones are left out when they are read, so
that gateways of different versions understand each other.
"""

from collections.abc import Awaitable, Sequence
from hashlib import sha1, sha256
from pathlib import Path
from typing import TypeVar

import msgspec
from redis import exceptions
from redis.asyncio import Redis

from service.domain.condition import Condition, StoreError
from service.domain.replica import ReplicaReport
from service.domain.units import ReplicaId
from service.store.connect import CALL_LIMIT_S
from service.store.failure import bounded

T = TypeVar("T")

_PREFIX = "sluice:"
_KEPT_MS = 10_000
"""Far longer than a lease, after which the gateways themselves count a report no longer; so the store's clock decides
nothing."""


class RedisLoad:
    """``pool`` names the workers that are shared: all gateways of one pool write to one key."""

    def __init__(self, client: Redis, pool: str, limit_s: float = CALL_LIMIT_S) -> None:
        self._client = client
        self._limit_s = limit_s
        self._key = f"{_PREFIX}{{load:{sha256(pool.encode()).hexdigest()[:16]}}}:reports"
        self._script = Path(__file__).with_suffix(".lua").read_text()
        self._sha = sha1(self._script.encode(), usedforsecurity=False).hexdigest()

    async def exchange(self, report: ReplicaReport) -> Sequence[ReplicaReport]:
        """Publish ``report``; the latest of all others.

        Raises:
            StoreError: nobody knows whether it was published.
        """
        arguments = (self._key, report.replica_id, report.number, msgspec.msgpack.encode(report), _KEPT_MS)
        try:
            found = await bounded(_plain(self._client.evalsha(self._sha, 1, *arguments)), self._limit_s)
        except StoreError as error:
            if not isinstance(error.__cause__, exceptions.NoScriptError):
                raise
            found = await bounded(_plain(self._client.eval(self._script, 1, *arguments)), self._limit_s)
        return decode_reports(found)


async def _plain(call: Awaitable[T]) -> T:
    """The driver says that some calls are awaitable and no more."""
    return await call


def decode_reports(written: Sequence[bytes]) -> list[ReplicaReport]:
    """The reports that can be read.

    Raises:
        StoreError: one cannot. Nobody knows what that gateway holds, so nobody may take more than before.
    """
    try:
        return [msgspec.msgpack.decode(text, type=ReplicaReport) for text in written]
    except msgspec.MsgspecError as error:
        raise StoreError(Condition.FAILED, f"a report cannot be read: {error}") from error


class MemoryLoad:
    """The twin, for gateways that live in one process: ``reports`` is what they share."""

    def __init__(self, reports: dict[ReplicaId, ReplicaReport]) -> None:
        self._reports = reports

    async def exchange(self, report: ReplicaReport) -> Sequence[ReplicaReport]:
        """See :class:`RedisLoad`."""
        mine = self._reports.get(report.replica_id)
        if mine is None or mine.number < report.number:
            self._reports[report.replica_id] = report
        return [other for other in self._reports.values() if other.replica_id != report.replica_id]
