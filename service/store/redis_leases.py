"""Leases of quota in Redis: one script call per tenant, many in one pipeline."""

from collections.abc import Awaitable, Sequence
from functools import partial
from hashlib import sha1
from pathlib import Path
from typing import Any, TypeVar

from redis import exceptions
from redis.asyncio import Redis

from service.domain.condition import StoreError
from service.domain.units import TenantId
from service.flow.lease import LEASE_S, Ask, Grant, Report, Share
from service.flow.window import GRAIN_S
from service.store.book import COARSE, KEPT_SLOTS
from service.store.connect import CALL_LIMIT_S
from service.store.failure import bounded, classify

T = TypeVar("T")

PREFIX = "sluice:"


class RedisLeases:
    """``gateway`` is this process's own name, different from every other's and from its own in a former life."""

    def __init__(self, client: Redis, gateway: str, limit_s: float = CALL_LIMIT_S) -> None:
        self._client = client
        self._gateway = gateway
        self._limit_s = limit_s
        self._script = Path(__file__).with_name("lease.lua").read_text()
        self._sha = sha1(self._script.encode(), usedforsecurity=False).hexdigest()

    async def exchange(self, reports: Sequence[tuple[TenantId, Report]], now_ms: int = 0) -> list[Grant]:
        """Take reports in, answer them in their order. ``now_ms`` 0 is the server's own clock.

        Raises:
            StoreError: some were not answered; what was heard is not counted again when it is said again.
        """
        calls = [(_keys(tenant_id, report.month), self._render(report, now_ms)) for tenant_id, report in reports]
        answers = await self._run(calls)
        if any(isinstance(answer, exceptions.NoScriptError) for answer in answers):
            await bounded(_plain(self._client.script_load(self._script)), self._limit_s)
            answers = await self._run(calls)
        for answer in answers:
            if isinstance(answer, exceptions.RedisError):
                raise StoreError(classify(answer), str(answer))
        return [_read(answer, report) for answer, (_, report) in zip(answers, reports, strict=True)]

    async def count_gateways(self, alive_s: float) -> int:
        """Say that this gateway lives; how many have said so within ``alive_s``. At least one: itself.

        Raises:
            StoreError: there is no answer.
        """
        seconds, _ = await bounded(_plain(self._client.time()), self._limit_s)
        key = f"{PREFIX}{{fleet}}:gateways"
        pipe = self._client.pipeline(transaction=False)
        pipe.zadd(key, {self._gateway: seconds})
        pipe.zremrangebyscore(key, "-inf", seconds - alive_s)
        pipe.expire(key, 3600)
        pipe.zcard(key)
        answers = await bounded(pipe.execute(), self._limit_s)
        return max(int(answers[3]), 1)

    async def leave(self) -> None:
        """Say that this gateway is gone, so that the others count without it.

        Raises:
            StoreError: there is no answer.
        """
        await bounded(_plain(self._client.zrem(f"{PREFIX}{{fleet}}:gateways", self._gateway)), self._limit_s)

    async def _run(self, calls: Sequence[tuple[tuple[str, str], list[Any]]]) -> list[Any]:
        pipe = self._client.pipeline(transaction=False)
        for keys, arguments in calls:
            pipe.evalsha(self._sha, 2, *keys, *arguments)
        found: list[Any] = await bounded(partial(pipe.execute, raise_on_error=False)(), self._limit_s)
        return found

    def _render(self, report: Report, now_ms: int) -> list[Any]:
        limit_running = -1 if report.limit_running is None else report.limit_running
        return [
            self._gateway, now_ms, int(GRAIN_S * 1000), KEPT_SLOTS, COARSE, int(LEASE_S * 1000),
            report.number, int(report.fresh), report.month_spent, report.running, report.want_running, limit_running,
            *_render_ask(report.requests), *_render_ask(report.tokens),
        ]  # fmt: skip


def _keys(tenant_id: TenantId, month: int) -> tuple[str, str]:
    """Both lie in the tenant's own hash slot."""
    return f"{PREFIX}{{{tenant_id}}}:quota", f"{PREFIX}{{{tenant_id}}}:month:{month}"


def _render_ask(ask: Ask | None) -> list[int]:
    if ask is None:
        return [-1, 0, 0, 0]
    flat = [ask.limit, ask.want]
    for pairs in (ask.spent, ask.recall):
        flat.append(len(pairs))
        flat += [number for pair in pairs for number in pair]
    return flat


def _read(answer: list[int], report: Report) -> Grant:
    if answer[0] == 1:
        return Grant(lost=True)
    requests, position = _read_share(answer, 3)
    tokens, _ = _read_share(answer, position)
    return Grant(
        False,
        None if report.requests is None else requests,
        None if report.tokens is None else tokens,
        answer[1],
        answer[2],
    )


def _read_share(answer: list[int], position: int) -> tuple[Share, int]:
    held, spare, count = answer[position : position + 3]
    begin, end = position + 3, position + 3 + 2 * count
    return Share(held, spare, list(zip(answer[begin:end:2], answer[begin + 1 : end : 2], strict=True))), end


async def _plain(call: Awaitable[T]) -> T:
    """The driver says that some calls are awaitable and no more."""
    return await call
