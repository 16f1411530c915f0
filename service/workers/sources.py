"""Chooses the source of the list of workers that a configuration asks for."""

import asyncio
import functools
import socket
from collections.abc import Callable, Sequence

from service.workers.addresses import WorkerAddress
from service.workers.discovery import Discovery, DnsConfig, DnsDiscovery, StaticDiscovery
from service.workers.kubernetes import KubernetesConfig, KubernetesDiscovery
from service.workers.pacing import Chance


def build_discovery(
    source: DnsConfig | KubernetesConfig | None,
    workers: Sequence[WorkerAddress],
    loop: asyncio.AbstractEventLoop,
    now: Callable[[], float],
    chance: Chance,
) -> Discovery:
    """The named source if there is one, else the list."""
    match source:
        case None:
            return StaticDiscovery(workers, now)
        case DnsConfig():
            return DnsDiscovery(source, functools.partial(loop.getaddrinfo, type=socket.SOCK_STREAM), now, chance)
        case KubernetesConfig():
            return KubernetesDiscovery(source, now, chance)
