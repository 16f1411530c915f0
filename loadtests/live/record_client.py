"""A client that keeps its own log: what it sent, what it saw, and what that must count for in the ledger.

It knows nothing of the gateway's code but the table of statuses that is published, so it can testify against it.
"""

import asyncio
import json
import random
import re
import time
from dataclasses import dataclass
from enum import StrEnum

MODEL = "MiniMax-M3.1-Flash"
TOO_SLOW = "umbra"
"""The tenant whose tier promises what no worker can keep: every stream of two tokens is too slow."""
TTFT_S = 0.2
"""What the first tenant's tier promises for the first token."""
_SLACK_S = 2.0
"""The client's clock starts before its connection is made and stops after the bytes have come, so what it saw in time
was in time; how much later it may see a token, on a busy machine, is a guess."""
_LIMIT_S = 60.0
_ENDLESS = 400
"""Tokens of a stream that its client leaves after the first one."""
_TOKEN = re.compile(rb'"(?:content|reasoning\w*)":\s*"[^"]')
_CODE = re.compile(rb'"code":\s*"(\w+)"')


class Kind(StrEnum):
    """What a request is sent to provoke."""

    STREAM = "stream"
    WHOLE = "whole"
    ABORT = "abort"
    MALFORMED = "malformed"
    BAD_KEY = "bad_key"
    SUSPENDED = "suspended"
    UNKNOWN_MODEL = "unknown_model"
    TOO_LARGE = "too_large"
    DEADLINE = "deadline"


WEIGHTS = {
    Kind.STREAM: 60, Kind.WHOLE: 14, Kind.ABORT: 8, Kind.MALFORMED: 4, Kind.BAD_KEY: 3, Kind.SUSPENDED: 2,
    Kind.UNKNOWN_MODEL: 3, Kind.TOO_LARGE: 2, Kind.DEADLINE: 4,
}  # fmt: skip


@dataclass(frozen=True)
class Caller:
    """Whose key is used; ``best_effort``: its tier promises no capacity."""

    tenant: str
    key: str
    best_effort: bool = False


@dataclass
class Sighting:
    """One request as its client saw it. ``reached``: a connection was there and all of it was sent."""

    client_id: str
    tenant: str | None
    kind: Kind
    best_effort: bool
    sent_at: float
    reached: bool = False
    status: int | None = None
    code: str | None = None
    tokens: int = 0
    first_at: float | None = None
    complete: bool = False
    failed: bool = False
    aborted: bool = False
    ended_at: float | None = None

    @property
    def live(self) -> bool:
        """Its answer had begun, or could have, and it never came to an end."""
        return self.reached and not self.aborted and self.ended_at is None

    def expect(self) -> set[str]:
        """Standings that the ledger may have for it; empty if the client cannot know."""
        if self.aborted:
            return {"excluded"}
        if self.status is None:
            return set()
        if self.status == 200 and not self.failed:
            return self._expect_whole() if self.complete else set()
        if 400 <= self.status < 500:
            return {"excluded"}
        if self.status == 504 and self.kind is Kind.DEADLINE:
            return {"excluded"}
        if self.code == "overloaded_excess" or (self.best_effort and self.code == "server_overloaded"):
            return {"excluded"}
        return {"missed"}

    def _expect_whole(self) -> set[str]:
        """Of an answer that came to its end: the promises of the rig, by the client's own clock."""
        if self.best_effort or self.kind is Kind.WHOLE:
            return {"met"}
        if self.tenant == TOO_SLOW:
            return {"missed"} if self.tokens > 1 else {"met"}
        ttft_s = (self.first_at or self.sent_at) - self.sent_at
        if ttft_s <= TTFT_S:
            return {"met"}
        return {"missed"} if ttft_s > TTFT_S + _SLACK_S else {"met", "missed"}


def _render(kind: Kind, caller: Caller, client_id: str, tokens: int, large_bytes: int) -> bytes:
    key = "sk-sluice-nobody" if kind is Kind.BAD_KEY else caller.key
    body: dict[str, object] = {
        "model": "other" if kind is Kind.UNKNOWN_MODEL else MODEL,
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": kind is not Kind.WHOLE,
    }
    data = json.dumps(body).encode()
    if kind is Kind.MALFORMED:
        data = b'{"model": '
    elif kind is Kind.TOO_LARGE:
        data = b"x" * large_bytes
    more = "x-sluice-deadline-ms: 1\r\n" if kind is Kind.DEADLINE else ""
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\nconnection: close\r\n"
        f"authorization: Bearer {key}\r\nx-request-id: {client_id}\r\n{more}content-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


class LoggingClient:
    """Sends requests to ``port``, so many at a time, and remembers every one."""

    def __init__(
        self,
        port: int,
        callers: list[Caller],
        seed: int,
        tokens: tuple[int, ...] = (1, 4, 8, 16),
        large_bytes: int = 70_000,
    ) -> None:
        self.port = port
        self._callers = callers
        self._chance = random.Random(seed)  # noqa: S311 - a plan of requests, guards nothing
        self._tokens = tokens
        self._large_bytes = large_bytes
        self._name = f"c{seed}"
        self.sightings: list[Sighting] = []
        self.stopped = False

    async def run(self, count: int | None, concurrency: int, weights: dict[Kind, int] | None = None) -> None:
        """Send ``count`` requests, or until :attr:`stopped`."""
        left = [count if count is not None else 1 << 60]
        chosen = weights or WEIGHTS

        async def work() -> None:
            while left[0] > 0 and not self.stopped:
                left[0] -= 1
                await self._send_one(self._chance.choices(list(chosen), list(chosen.values()))[0])

        await asyncio.gather(*(work() for _ in range(concurrency)))

    async def _send_one(self, kind: Kind) -> None:
        caller = self._chance.choice(self._callers)
        if kind is Kind.SUSPENDED:
            caller = Caller("gone", SUSPENDED_KEY)
        client_id = f"{self._name}-{len(self.sightings)}"
        tenant = None if kind is Kind.BAD_KEY else caller.tenant
        seen = Sighting(client_id, tenant, kind, caller.best_effort, time.monotonic())
        self.sightings.append(seen)
        seen.tokens = _ENDLESS if kind is Kind.ABORT else self._chance.choice(self._tokens)
        data = _render(kind, caller, client_id, seen.tokens, self._large_bytes)
        try:
            async with asyncio.timeout(_LIMIT_S):
                await self._exchange(seen, data)
        except (OSError, asyncio.IncompleteReadError, TimeoutError, ValueError):
            pass  # what was seen until then is what there is to say
        if seen.status is None and not seen.aborted and not self.stopped:
            await asyncio.sleep(0.05)

    async def _exchange(self, seen: Sighting, data: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        try:
            writer.write(data)
            await writer.drain()
            seen.reached = True
            head = await reader.readuntil(b"\r\n\r\n")
            seen.status = int(head[9:12])
            if b"transfer-encoding: chunked" in head.lower():
                await self._read_stream(seen, reader)
            else:
                body = await reader.read(-1)
                self._read_whole(seen, head, body)
        finally:
            if seen.aborted:
                writer.transport.abort()
            else:
                writer.close()

    async def _read_stream(self, seen: Sighting, reader: asyncio.StreamReader) -> None:
        tail, failed = b"", False
        while True:
            size = int(await reader.readline(), 16)
            piece = await reader.readexactly(size + 2)
            if size == 0:
                seen.complete, seen.failed = tail.endswith(b"data: [DONE]\n\n") and not failed, failed
                seen.ended_at = time.monotonic()
                return
            piece = piece[:-2]
            tail = (tail + piece)[-256:]
            if b'"error"' in piece:
                failed, code = True, _CODE.search(piece)
                seen.code = None if code is None else code[1].decode()
            if seen.first_at is None and _TOKEN.search(piece):
                seen.first_at = time.monotonic()
            if seen.kind is Kind.ABORT and seen.first_at is not None and not failed:
                seen.aborted = True
                seen.ended_at = time.monotonic()
                return

    def _read_whole(self, seen: Sighting, head: bytes, body: bytes) -> None:
        length = next(
            (int(line[16:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length: ")), -1
        )
        if length != len(body):
            return
        seen.ended_at = time.monotonic()
        told = json.loads(body)
        error = told.get("error")
        seen.code = error.get("code") if isinstance(error, dict) else None
        seen.complete = seen.status == 200 and error is None


SUSPENDED_KEY = "sk-sluice-suspended-suspended-suspended"
CALLERS = [
    Caller("acme", "sk-sluice-acme-acme-acme-acme-acme-acme"),
    Caller(TOO_SLOW, "sk-sluice-umbra-umbra-umbra-umbra-umbra"),
    Caller("flexi", "sk-sluice-flexi-flexi-flexi-flexi-flexi", best_effort=True),
]
