"""Holds what arrived at the worker lately, so that a test can check what crossed the gateway."""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass

import msgspec

from service.emulator.fields import Fields

SMALL_BODY_BYTES = 4096


@dataclass(slots=True)
class Record:
    """One request and its fate. Moments are of the event loop's clock."""

    serial: int
    at: float
    peer: str
    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    state: str = "running"
    """running, done, client_closed or cut."""
    status: int | None = None
    answer_id: str | None = None
    chunks: int = 0
    tokens: int = 0
    ended_at: float | None = None
    closed_at: float | None = None
    """When the socket it came by was closed."""

    def as_fields(self) -> Fields:
        fields: Fields = {
            "serial": self.serial,
            "at": self.at,
            "peer": self.peer,
            "method": self.method,
            "target": self.target,
            "headers": self.headers,
            "body_bytes": len(self.body),
            "body_sha256": hashlib.sha256(self.body).hexdigest(),
            "body": None,
            "state": self.state,
            "status": self.status,
            "answer_id": self.answer_id,
            "chunks": self.chunks,
            "tokens": self.tokens,
            "ended_at": self.ended_at,
            "closed_at": self.closed_at,
        }
        if 0 < len(self.body) <= SMALL_BODY_BYTES:
            try:
                fields["body"] = msgspec.json.decode(self.body)
            except (msgspec.DecodeError, UnicodeDecodeError):
                fields["body"] = self.body.decode("utf-8", "replace")
        return fields


class RequestLog:
    """The last requests, oldest first."""

    def __init__(self, limit: int) -> None:
        self._records: deque[Record] = deque(maxlen=max(0, limit))

    def add(self, record: Record) -> None:
        self._records.append(record)

    def show(self, since: int = -1) -> Fields:
        return {"requests": [record.as_fields() for record in self._records if record.serial > since]}

    def clear(self) -> None:
        self._records.clear()
