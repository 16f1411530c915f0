"""Reads what a Kubernetes API server answers: pages of a list, lines of a watch, refusals."""

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from service.workers.cluster import ClusterAccess
from service.workers.slices import Json

_LONGEST_LINE_BYTES = 4 << 20
"""A slice of 100 endpoints is some 60 KB; an object of etcd is at most 1.5 MB."""


class ApiError(Exception):
    """The API server did not give what was asked. ``code`` is its status, if it said one."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list, true at ``version``; ``more`` asks for the next, empty on the last."""

    items: tuple[Json, ...]
    version: str
    more: str


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """``ADDED``, ``MODIFIED``, ``DELETED`` or ``BOOKMARK``; ``version`` is empty if it tells none."""

    kind: str
    item: Json
    version: str


def read_page(body: bytes) -> Page:
    """Raises ``ApiError`` for anything that is no page of a list."""
    try:
        raw = json.loads(body)
        metadata, items = raw["metadata"], raw["items"] or []
        version, more = metadata["resourceVersion"], metadata.get("continue") or ""
    except (ValueError, KeyError, TypeError, AttributeError):
        version = more = items = None
    if not isinstance(version, str) or not isinstance(more, str) or not isinstance(items, list):
        raise ApiError("the API server answered a list with something else")
    return Page(tuple(item for item in items if isinstance(item, Mapping)), version, more)


def read_event(line: bytes) -> WatchEvent:
    """Raises ``ApiError`` for what is no event, and for the events that end a watch (``ERROR``)."""
    try:
        event = json.loads(line)
        kind, item = event["type"], event["object"]
    except (ValueError, KeyError, TypeError) as error:
        raise ApiError("the watch sent something that is no event") from error
    if kind in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
        metadata = item.get("metadata") if isinstance(item, Mapping) else None
        if not isinstance(metadata, Mapping):
            raise ApiError("the watch sent something that is no event")
        version = metadata.get("resourceVersion")
        return WatchEvent(kind, item, version if isinstance(version, str) else "")
    status: Mapping[str, Any] = item if isinstance(item, Mapping) else {"message": item}
    code = status.get("code")
    raise ApiError(f"the watch ended with {kind}: {status.get('message')}", code if isinstance(code, int) else None)


async def read_lines(answer: httpx.Response) -> AsyncIterator[bytes]:
    """Lines as bytes: text would be split at characters that stand inside of strings too."""
    rest = b""
    async for piece in answer.aiter_raw():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.strip():
                yield line
        if len(rest) > _LONGEST_LINE_BYTES:
            raise ApiError(f"the watch sent a line of more than {_LONGEST_LINE_BYTES} bytes")


def explain_refusal(access: ClusterAccess, status: int, body: bytes) -> ApiError:
    """What a refusal means, and what to do about it."""
    match status:
        case httpx.codes.UNAUTHORIZED:
            cure = f"its token is not accepted: see {access.token_file or 'pool.kubernetes.token_file'}"
        case httpx.codes.FORBIDDEN:
            cure = (
                f"grant the gateway's service account get, list and watch on endpointslices (discovery.k8s.io)"
                f" in namespace {access.namespace!r}"
            )
        case httpx.codes.NOT_FOUND:
            cure = "it does not know discovery.k8s.io/v1: is pool.kubernetes.api_server a Kubernetes API server?"
        case _:
            cure = _read_message(body)
    return ApiError(f"{access.api_server} answered {status}: {cure}", status)


def _read_message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])[:300]
    except (ValueError, KeyError, TypeError):
        return "no reason was given"
