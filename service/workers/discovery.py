"""Says where workers should be: from the configuration, or by resolving a name again and again.

A source has one method, ``run(publish)``, that goes on until it is cancelled and calls ``publish`` with the *whole*
list each time the list was confirmed. Whole lists need no memory of what was said before, so a lost delete is mended
by the next list; a source that watches (Kubernetes) keeps its own picture, lists again at intervals, and publishes it.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from service.domain.units import WorkerId
from service.workers.addresses import WorkerAddress, format_authority
from service.workers.pacing import Chance, spread, wait_until_set

Publish = Callable[[Sequence[WorkerAddress]], None]
Resolve = Callable[[str, int], Awaitable[Sequence[tuple[Any, ...]]]]
"""``functools.partial(loop.getaddrinfo, type=socket.SOCK_STREAM)`` fits."""


class Discovery(Protocol):
    """A source of worker addresses."""

    async def run(self, publish: Publish) -> None:
        """Publish whole lists until cancelled."""
        ...

    def status(self) -> "DiscoveryStatus":
        """How the source itself is doing."""
        ...


@dataclass(frozen=True, slots=True)
class DiscoveryStatus:
    """For operators and metrics. ``confirmed_at`` is when the list was last known to be true; ``missed`` counts lists
    that held a change of which a watch had not told."""

    source: str
    listed: int
    confirmed_at: float | None
    failures: int = 0
    empty_answers: int = 0
    expired: bool = False
    missed: int = 0
    last_error: str | None = None


def reconcile(
    known: Sequence[WorkerAddress], found: Sequence[WorkerAddress]
) -> tuple[list[WorkerAddress], list[WorkerAddress]]:
    """Who joined and who left. The same identity at another address is both: the connections go elsewhere."""
    known_set, found_set = set(known), set(found)
    joined = [address for address in dict.fromkeys(found) if address not in known_set]
    left = [address for address in dict.fromkeys(known) if address not in found_set]
    return joined, left


class StaticDiscovery:
    """Addresses from the configuration; :meth:`replace` at reload."""

    def __init__(self, addresses: Sequence[WorkerAddress], now: Callable[[], float]) -> None:
        self._addresses = tuple(addresses)
        self._now = now
        self._changed = asyncio.Event()
        self._confirmed_at: float | None = None

    def replace(self, addresses: Sequence[WorkerAddress]) -> None:
        """From now on these."""
        self._addresses = tuple(addresses)
        self._changed.set()

    def status(self) -> DiscoveryStatus:
        """A configuration is always true."""
        return DiscoveryStatus("static", len(self._addresses), self._confirmed_at)

    async def run(self, publish: Publish) -> None:
        """Publish at once and after each change."""
        while True:
            self._changed.clear()
            self._confirmed_at = self._now()
            publish(self._addresses)
            await self._changed.wait()


@dataclass(frozen=True, slots=True)
class DnsConfig:
    """A name whose A and AAAA records are the workers.

    ``interval_s`` is fixed since the system's resolver does not tell the TTL; D18 asks for at most 30.
    ``keep_s``: for how long the last known list is trusted while the name cannot be resolved. Long, since probes eject
    dead addresses anyway, and emptying the list on a resolver outage would be an outage of ours.
    """

    name: str
    port: int
    tls: bool = False
    interval_s: float = 5.0
    lookup_timeout_s: float = 5.0
    keep_s: float = 600.0
    empty_answers_to_believe: int = 2

    def __post_init__(self) -> None:
        if not 0 < self.interval_s <= 30:
            raise ValueError(f"interval_s is {self.interval_s}: must be above 0 and at most 30")


class DnsDiscovery:
    """Resolves a name at intervals.

    A failed lookup (an error, or no answer in time) keeps the list; an empty answer, or "no such name", is believed
    when it came twice in a row, since a restarting cluster DNS gives it for a moment.
    """

    def __init__(self, config: DnsConfig, resolve: Resolve, now: Callable[[], float], chance: Chance) -> None:
        self._config = config
        self._resolve = resolve
        self._now = now
        self._chance = chance
        self._status = DiscoveryStatus(f"dns:{config.name}:{config.port}", 0, None)
        self._list: tuple[WorkerAddress, ...] = ()
        self._empty_in_row = 0
        self._hurry = asyncio.Event()
        self._lookup: asyncio.Task[Sequence[tuple[Any, ...]]] | None = None

    def refresh(self) -> None:
        """Look again at once."""
        self._hurry.set()

    def status(self) -> DiscoveryStatus:
        """How resolving goes."""
        return self._status

    async def run(self, publish: Publish) -> None:
        """Resolve, publish what is believed, wait, again."""
        try:
            while True:
                if await self._turn():
                    publish(self._list)
                await wait_until_set(self._hurry, spread(self._config.interval_s, 0.1, self._chance))
        finally:
            if self._lookup is not None:
                self._lookup.cancel()
                await asyncio.wait({self._lookup})

    async def _turn(self) -> bool:
        """One lookup; whether there is a list to publish."""
        try:
            infos = await self._look_up()
        except socket.gaierror as error:
            if error.errno not in (socket.EAI_NONAME, socket.EAI_NODATA):
                return self._failed(str(error))
            infos = ()
        except (OSError, UnicodeError) as error:  # UnicodeError: a name that IDNA cannot encode
            return self._failed(str(error) or type(error).__name__)
        return self._answered(self._read(infos))

    async def _look_up(self) -> Sequence[tuple[Any, ...]]:
        """Never more than one lookup at a time: one that hangs holds a thread of the loop's executor."""
        if self._lookup is None:
            self._lookup = asyncio.ensure_future(self._begin())
        done, _ = await asyncio.wait({self._lookup}, timeout=self._config.lookup_timeout_s)
        if not done:
            raise TimeoutError(f"no answer within {self._config.lookup_timeout_s} s")
        lookup, self._lookup = self._lookup, None
        return lookup.result()

    async def _begin(self) -> Sequence[tuple[Any, ...]]:
        return await self._resolve(self._config.name, self._config.port)

    def _answered(self, found: tuple[WorkerAddress, ...]) -> bool:
        status = replace(self._status, last_error=None)
        if not found:
            self._empty_in_row += 1
            status = replace(status, empty_answers=status.empty_answers + 1)
            if self._empty_in_row < self._config.empty_answers_to_believe:
                self._status = status
                return False
        else:
            self._empty_in_row = 0
        self._list = found
        self._status = replace(status, listed=len(found), confirmed_at=self._now(), expired=False)
        return True

    def _failed(self, error: str) -> bool:
        self._empty_in_row = 0
        status = replace(self._status, failures=self._status.failures + 1, last_error=error)
        confirmed_at = status.confirmed_at
        if self._list and confirmed_at is not None and self._now() - confirmed_at > self._config.keep_s:
            self._list = ()
            status = replace(status, listed=0, expired=True)
            self._status = status
            return True
        self._status = status
        return False

    def _read(self, infos: Sequence[tuple[Any, ...]]) -> tuple[WorkerAddress, ...]:
        """Distinct addresses in a fixed order; resolvers rotate their answers."""
        hosts = sorted({str(info[4][0]) for info in infos if info[0] in (socket.AF_INET, socket.AF_INET6)})
        port, tls, name = self._config.port, self._config.tls, self._config.name if self._config.tls else None
        return tuple(WorkerAddress(WorkerId(format_authority(host, port)), host, port, tls, name) for host in hosts)
