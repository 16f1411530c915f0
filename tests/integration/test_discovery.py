"""Where workers should be: scripted resolvers, and D18 for static and DNS sources."""

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Sequence

import pytest

from service.workers.addresses import WorkerAddress, parse_address
from service.workers.discovery import DnsConfig, DnsDiscovery, StaticDiscovery, reconcile
from tests.support.until import holds, until

pytestmark = pytest.mark.integration

NO_NAME = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
AGAIN = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


class ScriptedResolver:
    """Gives ``answer`` each time it is asked: hosts, an error to raise, or ``None`` to stay silent."""

    def __init__(self, *hosts: str) -> None:
        self.answer: Sequence[str] | Exception | None = hosts
        self.asked = 0
        self.pending = 0

    async def __call__(self, name: str, port: int) -> list[tuple[object, ...]]:
        self.asked += 1
        answer = self.answer
        if answer is None:
            self.pending += 1
            try:
                await asyncio.Event().wait()
            finally:
                self.pending -= 1
        if isinstance(answer, Exception):
            raise answer
        infos: list[tuple[object, ...]] = [(socket.AF_UNIX, 1, 0, "", ("/not/ip",))]
        for host in answer or ():
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            infos += [(family, kind, 0, "", (host, port)) for kind in (1, 2)]  # stream and datagram: twice
        return infos


class Lists(list[list[str]]):
    """The published lists, as authorities."""

    def publish(self, found: Sequence[WorkerAddress]) -> None:
        self.append([address.authority for address in found])

    @property
    def last(self) -> list[str] | None:
        return self[-1] if self else None


def now() -> float:
    return asyncio.get_running_loop().time()


@contextlib.asynccontextmanager
async def resolving(resolver: ScriptedResolver, **changes: float) -> AsyncIterator[tuple[DnsDiscovery, Lists]]:
    config = DnsConfig("pool", 8000, **{"interval_s": 0.02, "lookup_timeout_s": 0.05, **changes})
    discovery, lists = DnsDiscovery(config, resolver, now, random.Random(1)), Lists()
    task = asyncio.create_task(discovery.run(lists.publish))
    try:
        yield discovery, lists
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert resolver.pending == 0  # nothing hangs on


async def test_names_become_distinct_addresses_in_a_fixed_order() -> None:
    async with resolving(ScriptedResolver("10.0.0.2", "fd00::1", "10.0.0.1")) as (discovery, lists):
        await until(lambda: len(lists) > 1)
        assert lists[0] == ["10.0.0.1:8000", "10.0.0.2:8000", "[fd00::1]:8000"]
        assert discovery.status().listed == 3
        assert discovery.status().source == "dns:pool:8000"


async def test_a_changed_answer_is_followed() -> None:
    resolver = ScriptedResolver("10.0.0.1")
    async with resolving(resolver) as (_, lists):
        await until(lambda: lists.last == ["10.0.0.1:8000"])
        resolver.answer = ("10.0.0.2",)
        await until(lambda: lists.last == ["10.0.0.2:8000"])


@pytest.mark.parametrize("empty", [(), NO_NAME])
async def test_an_empty_answer_is_believed_when_it_came_twice(empty: Sequence[str] | Exception) -> None:
    resolver = ScriptedResolver("10.0.0.1")
    async with resolving(resolver, interval_s=30.0) as (discovery, lists):
        await until(lambda: len(lists) == 1)
        resolver.answer = empty
        discovery.refresh()
        await until(lambda: discovery.status().empty_answers == 1)
        assert len(lists) == 1
        discovery.refresh()
        await until(lambda: lists.last == [])
        assert discovery.status().listed == 0


async def test_one_empty_answer_between_full_ones_changes_nothing() -> None:
    resolver = ScriptedResolver("10.0.0.1")
    async with resolving(resolver, interval_s=30.0) as (discovery, lists):
        await until(lambda: len(lists) == 1)
        for round_ in (1, 2):
            resolver.answer = ()
            discovery.refresh()
            await until(lambda round_=round_: discovery.status().empty_answers == round_)
            resolver.answer = ("10.0.0.1",)
            discovery.refresh()
            await until(lambda round_=round_: len(lists) == 1 + round_)
        assert lists == [["10.0.0.1:8000"]] * 3


@pytest.mark.parametrize("error", [AGAIN, OSError("no descriptor"), UnicodeError("label too long")])
async def test_a_failing_resolver_keeps_the_list_and_is_seen(error: Exception) -> None:
    resolver = ScriptedResolver("10.0.0.1")
    async with resolving(resolver) as (discovery, lists):
        await until(lambda: len(lists) >= 1)
        resolver.answer = error
        await until(lambda: discovery.status().failures >= 3)
        assert lists.last == ["10.0.0.1:8000"]
        assert discovery.status().last_error
        resolver.answer = ("10.0.0.3",)
        await until(lambda: lists.last == ["10.0.0.3:8000"])
        assert discovery.status().last_error is None


async def test_a_silent_resolver_keeps_the_list_and_holds_one_lookup_only() -> None:
    resolver = ScriptedResolver("10.0.0.1")
    async with resolving(resolver) as (discovery, lists):
        await until(lambda: len(lists) >= 1)
        resolver.answer = None
        await until(lambda: discovery.status().failures >= 3)
        assert resolver.pending == 1
        assert lists.last == ["10.0.0.1:8000"]
        assert "no answer" in (discovery.status().last_error or "")


async def test_the_last_known_list_is_trusted_for_a_bounded_time() -> None:
    resolver = ScriptedResolver("10.0.0.1")
    async with resolving(resolver, keep_s=0.1) as (discovery, lists):
        await until(lambda: len(lists) >= 1)
        resolver.answer = AGAIN
        await until(lambda: lists.last == [])
        assert discovery.status().expired
        count = len(lists)
        await until(lambda: discovery.status().failures >= 12)
        assert len(lists) == count  # said once
        resolver.answer = ("10.0.0.1",)
        await until(lambda: lists.last == ["10.0.0.1:8000"])
        assert not discovery.status().expired


@pytest.mark.parametrize("interval_s", [0.0, 31.0])
def test_an_interval_that_breaks_the_promise_is_refused(interval_s: float) -> None:
    with pytest.raises(ValueError, match="at most 30"):
        DnsConfig("pool", 8000, interval_s=interval_s)


async def test_the_real_resolver_fits() -> None:
    loop = asyncio.get_running_loop()

    async def resolve(name: str, port: int) -> list[tuple[object, ...]]:
        return list(await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM))

    discovery, lists = DnsDiscovery(DnsConfig("127.0.0.1", 8000), resolve, now, random.Random(1)), Lists()
    task = asyncio.create_task(discovery.run(lists.publish))
    await until(lambda: lists.last == ["127.0.0.1:8000"])
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


# ------------------------------------------------------------------ D18


def remember_by_events(known: set[str], found: Sequence[str]) -> set[str]:
    """The naive way: only ever add what is seen, and wait for a delete to be told."""
    return known | set(found)


async def test_d18_dns_a_lost_delete_is_mended_by_the_next_list() -> None:
    resolver = ScriptedResolver("10.0.0.1", "10.0.0.2")
    async with resolving(resolver) as (discovery, lists):
        await until(lambda: len(lists) >= 1)
        naive = remember_by_events(set(), lists.last or [])
        resolver.answer = None  # the source falls silent, and meanwhile a worker goes
        await until(lambda: discovery.status().failures >= 2)
    resolver.answer = ("10.0.0.2",)
    async with resolving(resolver) as (_, lists):
        await until(lambda: lists.last == ["10.0.0.2:8000"])
        assert "10.0.0.1:8000" in remember_by_events(naive, lists.last or [])  # the mutant keeps the dead one


async def test_d18_static_a_removed_address_is_gone_with_the_reload() -> None:
    first, second = parse_address("http://w1:1"), parse_address("http://w2:2")
    discovery, lists = StaticDiscovery([first, second], now), Lists()
    assert discovery.status().confirmed_at is None
    task = asyncio.create_task(discovery.run(lists.publish))
    await until(lambda: lists.last == ["w1:1", "w2:2"])
    discovery.replace([second])
    await until(lambda: lists.last == ["w2:2"])
    await holds(lambda: len(lists) == 2, 0.03)
    assert discovery.status().listed == 1
    assert discovery.status().confirmed_at is not None
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def test_d18_reconcile_goes_by_identity() -> None:
    a, b = parse_address("http://w1:1"), parse_address("http://w2:2")
    moved = WorkerAddress(a.worker_id, "w9", 9)
    assert reconcile([a], [a, b]) == ([b], [])
    assert reconcile([a, b], [b]) == ([], [a])
    assert reconcile([a], [moved]) == ([moved], [a])  # the same pod at another address: connections go elsewhere
    assert reconcile([], [a, a]) == ([a], [])
    assert reconcile([a], []) == ([], [a])
