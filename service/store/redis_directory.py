"""Records of tenants and keys in Redis: written whole by one script, followed by version."""

import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from service.domain.condition import Condition, StoreError
from service.domain.record import Changes
from service.store.connect import CALL_LIMIT_S
from service.store.failure import bounded

_TTL_MS = 400 * 86_400_000
"""Renewed with each change and by each gateway that starts: what nobody has used for over a year may go."""
_LOAD_LIMIT_S = 10.0
_PAGE = 2000
_PAGE_MAX = 500
"""Changes that are asked for one by one; when more have piled up everything is read again."""

RECORDS, CHANGES, HEAD = "sluice:{directory}:records", "sluice:{directory}:changes", "sluice:{directory}:head"


class RedisDirectory:
    """Reads are bounded like any call, except for reading everything."""

    def __init__(self, client: Redis, limit_s: float = CALL_LIMIT_S) -> None:
        self._client = client
        self._limit_s = limit_s

    async def fetch(self, epoch: str, version: int) -> Changes | None:
        """What has changed since ``version`` of ``epoch``; ``None`` if nothing has.

        Raises:
            StoreError: there is no answer, or the store has lost what it had (``EMPTY``).
        """
        pipe = self._client.pipeline(transaction=False)
        pipe.hmget(HEAD, "epoch", "version")
        pipe.zrangebyscore(CHANGES, f"({version}", "+inf", start=0, num=_PAGE_MAX + 1)
        head, names = await bounded(pipe.execute(), self._limit_s)
        if head[0] is None:
            if epoch:
                raise StoreError(Condition.EMPTY, "the store has no tenants and keys any more")
            return None
        present, latest = head[0].decode(), int(head[1])
        if present != epoch or len(names) > _PAGE_MAX:
            return await self._load(present, latest)
        if not names:
            return None
        texts = await bounded(self._read(names), self._limit_s)
        return Changes(
            present, latest, False, [(read_name(name), text) for name, text in zip(names, texts, strict=True)]
        )

    async def write(self, records: Mapping[str, str | None]) -> int:
        """Put or, with ``None``, remove records; the answer is the version from which they are in force.

        Raises:
            StoreError: nothing was written, or nobody knows.
        """
        script = Path(__file__).with_name("directory.lua").read_text()
        flat = [part for name, text in records.items() for part in (name, text or "")]
        return await bounded(self._eval(script, [secrets.token_hex(8), _TTL_MS, *flat]), _LOAD_LIMIT_S)

    async def _eval(self, script: str, arguments: list[Any]) -> int:
        found: Any = await self._client.eval(script, 3, RECORDS, CHANGES, HEAD, *arguments)
        return int(found)

    async def _read(self, names: list[bytes]) -> list[bytes | None]:
        texts: list[Any] = await self._client.hmget(RECORDS, names)
        return texts

    async def _load(self, epoch: str, version: int) -> Changes:
        """Everything, page by page. What changes meanwhile has a later version and is fetched by the next call."""
        script = Path(__file__).with_name("directory_page.lua").read_text()
        pages: list[bytes] = []
        cursor = b"0"
        while True:
            cursor, page = await bounded(self._scan(script, cursor), _LOAD_LIMIT_S)
            if page:
                pages.append(page)
            if cursor == b"0":
                return Changes(epoch, version, True, _Pages(pages))

    async def _scan(self, script: str, cursor: bytes) -> tuple[bytes, bytes]:
        page: Any = await self._client.eval(script, 1, RECORDS, cursor, _PAGE)
        return page[0], page[1]


class _Pages:
    """Names with their texts, taken apart page by page: memory for all of them at once would stay with the process.
    A name may come twice, as the scan of a hash that grows may say it."""

    def __init__(self, pages: list[bytes]) -> None:
        self._pages = pages

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        for page in self._pages:
            parts = page.split(b"\0")  # JSON has no zero bytes
            yield from zip([read_name(name) for name in parts[::2]], parts[1::2], strict=True)


def read_name(name: bytes) -> str:
    """The name of a record; one that is no UTF-8 is nobody's, and must not keep the others from being read."""
    return name.decode("utf-8", "backslashreplace")
