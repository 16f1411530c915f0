"""Asks Prometheus over its HTTP API."""

import math
from collections.abc import Mapping
from typing import Any, Protocol

import httpx

Labels = tuple[tuple[str, str], ...]
Series = Mapping[Labels, Mapping[int, float]]
"""By labels: values by place on the grid, counted from its begin; what is not there is not known."""


class SourceError(Exception):
    """Prometheus could not be asked, or said nothing that can be understood."""


class Source(Protocol):
    """Where the scaler's knowledge comes from."""

    async def fetch(self, query: str, begin: float, end: float, step_s: float) -> Series:
        """Values of ``query`` from ``begin`` to ``end``; raises ``SourceError``."""
        ...


class Prometheus:
    """One Prometheus. ``NaN`` and infinities are left out: a ratio of nothing to nothing is not known."""

    def __init__(self, url: str, client: httpx.AsyncClient) -> None:
        self._url = url.rstrip("/") + "/api/v1/query_range"
        self._client = client

    async def fetch(self, query: str, begin: float, end: float, step_s: float) -> Series:
        """See :class:`Source`."""
        form = {"query": query, "start": f"{begin:.3f}", "end": f"{end:.3f}", "step": f"{step_s:.3f}"}
        try:
            answer = await self._client.post(self._url, data=form)
            body = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise SourceError(f"{self._url}: {error!r}") from error
        if not isinstance(body, dict) or body.get("status") != "success":
            told = body.get("error") if isinstance(body, dict) else None
            raise SourceError(f"{self._url} answered {answer.status_code}: {told or 'nothing that is understood'}")
        try:
            return {_read_labels(one): _read_values(one, begin, step_s) for one in body["data"]["result"]}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SourceError(f"{self._url}: the answer is not understood ({error!r})") from error


def _read_labels(one: Any) -> Labels:  # noqa: ANN401 - JSON
    return tuple(sorted((str(name), str(value)) for name, value in one["metric"].items()))


def _read_values(one: Any, begin: float, step_s: float) -> dict[int, float]:  # noqa: ANN401 - JSON
    found: dict[int, float] = {}
    for at, text in one["values"]:
        value = float(text)
        if math.isfinite(value):
            found[round((float(at) - begin) / step_s)] = value
    return found
