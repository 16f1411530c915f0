"""Asks one worker one thing over HTTP and reports how that went, within bounds of time and size.

httpx costs 0.6 ms of CPU per call in a tight loop and about twice that when the process is otherwise idle; reading a
metrics page is 0.2 ms more. So the page is asked for every second and everything else more slowly (see
:mod:`service.workers.watch`): eight workers with real pages cost 1.7 % (uvloop) to 2.0 % (asyncio) of a core, all told
(measured here, one run of 20 s each on a shared machine).
"""

import asyncio
import errno
import json
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from service.workers.evidence import Answer
from service.workers.lane import build_worker_tls

ClientFactory = Callable[[], httpx.AsyncClient]

_OUR_FAULTS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""A connection that failed for want of something on our side says nothing about the worker."""

_LONGEST_REPLY_BYTES = 8 << 20
"""A page of 64 engines is about 3 MB (72 KB measured for one, mostly histograms per engine)."""


@dataclass(frozen=True, slots=True)
class ProbeConfig:
    """Bounds of one call: to connect, between two reads, and as a whole."""

    connect_timeout_s: float = 1.0
    read_timeout_s: float = 2.0
    total_timeout_s: float = 3.0
    token_timeout_s: float = 5.0
    api_key: str | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """How a call went; ``status`` and ``body`` if there was a complete answer."""

    answer: Answer
    status: int | None = None
    body: bytes = b""


def build_client_factory(config: ProbeConfig) -> ClientFactory:
    """Builds a client for each worker, all with one TLS context (its certificates take longest to load).

    Not one client for all: httpx' pool looks at every connection for every connection on each request, which is
    quadratic (measured here: half of the CPU at 8 workers), and a pool of its own keeps one worker's trouble its own.
    Four connections suffice, since a watch has at most four calls under way. Idle ones are closed after 4 s, before
    uvicorn's default of 5 s closes them under our hands. Compression is declined: it would cost the worker's event
    loop milliseconds per page. Proxies of the environment are ignored.
    """
    headers = {"accept-encoding": "identity", "accept": "*/*", "user-agent": "sluice-monitor"}
    if config.api_key is not None:
        headers["authorization"] = f"Bearer {config.api_key}"
    timeout = httpx.Timeout(config.read_timeout_s, connect=config.connect_timeout_s)
    limits = httpx.Limits(max_connections=4, max_keepalive_connections=4, keepalive_expiry=4.0)
    context = build_worker_tls()

    def build() -> httpx.AsyncClient:
        return httpx.AsyncClient(
            headers=headers, timeout=timeout, limits=limits, trust_env=False, follow_redirects=False, verify=context
        )

    return build


class Probe:
    """Calls to the worker at one base URL; owns ``client``. ``server_name``: whose certificate it must show, if that
    is not the host of the URL."""

    def __init__(
        self, client: httpx.AsyncClient, base_url: str, config: ProbeConfig, server_name: str | None = None
    ) -> None:
        self._client = client
        self._base_url = base_url
        self._config = config
        self._extensions = {} if server_name is None else {"sni_hostname": server_name}

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def fetch_metrics(self) -> Reply:
        """``/metrics``."""
        return await self._fetch("GET", "/metrics")

    async def fetch_health(self) -> Reply:
        """``/health``; 503 is :attr:`Answer.DEAD`."""
        reply = await self._fetch("GET", "/health")
        return Reply(Answer.DEAD, reply.status) if reply.status == httpx.codes.SERVICE_UNAVAILABLE else reply

    async def fetch_models(self) -> frozenset[str] | None:
        """Names from ``/v1/models``, ``None`` if they could not be read."""
        reply = await self._fetch("GET", "/v1/models")
        return read_models(reply.body) if reply.answer is Answer.OK else None

    async def fetch_token(self, model: str) -> Reply:
        """One token for a prompt of one letter: the whole way through the engine."""
        body = json.dumps({"model": model, "prompt": "a", "max_tokens": 1, "temperature": 0}).encode()
        return await self._fetch("POST", "/v1/completions", body, self._config.token_timeout_s)

    async def _fetch(self, method: str, path: str, body: bytes | None = None, total_s: float | None = None) -> Reply:
        total_s = self._config.total_timeout_s if total_s is None else total_s
        timeout = httpx.Timeout(
            max(self._config.read_timeout_s, total_s if body else 0.0), connect=self._config.connect_timeout_s
        )
        headers = {"content-type": "application/json"} if body is not None else None
        pieces: list[bytes] = []
        size = 0
        try:
            async with (
                asyncio.timeout(total_s),
                self._client.stream(
                    method,
                    self._base_url + path,
                    content=body,
                    headers=headers,
                    timeout=timeout,
                    extensions=self._extensions,
                ) as response,
            ):
                async for piece in response.aiter_raw():
                    pieces.append(piece)
                    size += len(piece)
                    if size > _LONGEST_REPLY_BYTES:
                        return Reply(Answer.BROKEN)
        except (TimeoutError, httpx.TimeoutException):
            return Reply(Answer.TIMEOUT)
        except httpx.ConnectError as error:
            return Reply(Answer.BROKEN if _is_our_fault(error) else Answer.REFUSED)
        except (httpx.HTTPError, httpx.InvalidURL):
            return Reply(Answer.BROKEN)
        answer = Answer.OK if response.status_code == httpx.codes.OK else Answer.BROKEN
        return Reply(answer, response.status_code, b"".join(pieces))


def read_models(body: bytes) -> frozenset[str] | None:
    """Ids in an OpenAI model list; ``None`` for anything else."""
    try:
        data = json.loads(body)["data"]
        return frozenset(str(card["id"]) for card in data)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _is_our_fault(error: BaseException) -> bool:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _OUR_FAULTS:
            return True
        cause = cause.__cause__ or cause.__context__
    return False
