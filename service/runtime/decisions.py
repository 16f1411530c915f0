"""Remembers the latest decisions of the core and the latest endings of requests, to answer "why?" later."""

import json
import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from service.domain.command import Command
from service.domain.event import Event, RequestArrived, Woken, WorkerLoadSeen
from service.domain.units import RequestId
from service.flow.config import FlowConfig, Reconfigured
from service.runtime.account import Settlement
from service.runtime.journal import Record, encode_record, hash_config

Json = dict[str, Any]

_CONFIGS_MAX = 64
_SILENT = frozenset((WorkerLoadSeen, Woken))


def names_request(record: Record, request_id: RequestId) -> bool:
    """Whether the event of ``record`` is one of this request, or one of the commands concerns it."""
    _, event, commands = record
    if isinstance(event, RequestArrived):
        if event.request.request_id == request_id:
            return True
    elif getattr(event, "request_id", None) == request_id:
        return True
    return any(command.request_id == request_id for command in commands)


class DecisionLog:
    """Observer and accountant with a memory of ``length`` events, as many endings, and as many ids of clients' own.

    Events that name no request and order nothing (figures of workers, alarms) are not kept.

    Trade-offs: a look goes through the whole memory on the loop: some milliseconds with 4096 events.
    """

    def __init__(self, length: int, config: FlowConfig, wall_offset_s: float) -> None:
        self._records: deque[Record] = deque(maxlen=length)
        self._endings: deque[Settlement] = deque(maxlen=length)
        self._aliases: OrderedDict[str, RequestId] = OrderedDict()
        self._length = length
        self._wall_offset_s = wall_offset_s
        self._configs: deque[tuple[float, str]] = deque([(-math.inf, hash_config(config))], _CONFIGS_MAX)
        self._config = config
        self.settle = self._endings.append
        self._keep = self._records.append

    def observe(self, now: float, event: Event | Reconfigured, commands: Sequence[Command]) -> None:
        """Keep it; the oldest makes room."""
        if commands or type(event) not in _SILENT:
            self._keep((now, event, commands))

    def note_config(self, config: FlowConfig, now: float) -> None:
        """From ``now`` on, decisions follow another config."""
        self._config = config
        self._configs.append((now, hash_config(config)))

    def note_alias(self, theirs: bytes, request_id: RequestId) -> None:
        """The client was shown its own id ``theirs`` for this request; the latest use of an id counts."""
        name = theirs.decode("latin-1")
        self._aliases.pop(name, None)
        self._aliases[name] = request_id
        if len(self._aliases) > self._length:
            self._aliases.popitem(last=False)

    def describe(self, asked: str | None, limit: int) -> Json:
        """The latest ``limit`` decisions, newest first; for one request all of its own, in their order."""
        about: Json = {
            "config_hash": self._configs[-1][1],
            "wall_offset_s": self._wall_offset_s,
            "tiers": {tier.name: tier.rank for tier in self._config.tiers.values()},
        }
        if asked is None:
            records = list(islice(reversed(self._records), limit))
            return {**about, "decisions": [self._describe(record) for record in records]}
        request_id = RequestId(asked)
        found = self._find(request_id)
        if not any(found) and asked in self._aliases:
            request_id = self._aliases[asked]
            found = self._find(request_id)
            about["client_request_id"] = asked
        records, ending = found
        return {
            **about,
            "request_id": request_id,
            "decisions": [self._describe(record) for record in records],
            "ending": None if ending is None else describe_ending(ending),
        }

    def _find(self, request_id: RequestId) -> tuple[list[Record], Settlement | None]:
        records = [record for record in self._records if names_request(record, request_id)]
        ending = next((one for one in reversed(self._endings) if one.request_id == request_id), None)
        return records, ending

    def _describe(self, record: Record) -> Json:
        at = record[0]
        followed = next((name for since, name in reversed(self._configs) if since <= at), self._configs[0][1])
        written = json.loads(encode_record(record))
        wall = datetime.fromtimestamp(at + self._wall_offset_s, UTC).isoformat(timespec="milliseconds")
        described: Json = _finite({"wall": wall, "config_hash": followed, **written})
        return described


def describe_ending(ending: Settlement) -> Json:
    """How a request ended, as its settlement says."""
    outcome, settled_at = ending.outcome, ending.settled_at
    return {
        "outcome": None if outcome is None else outcome.label,
        "fault": None if outcome is None else outcome.fault.value,
        "status": ending.status,
        "kind": ending.kind,
        "tier": ending.tier,
        "tenant": ending.tenant_id,
        "arrived_at": ending.arrived_at,
        "settled_at": settled_at,
        "worker": ending.worker_id,
        "attempts": ending.attempts,
        "ttft_s": ending.ttft_s,
        "tpot_s": ending.tpot_s,
        "output_tokens": ending.output_tokens,
        "client_request_id": ending.client_request_id,
    }


def _finite(value: Any) -> Any:  # noqa: ANN401 - a tree of JSON
    """The same with ``None`` for what strict JSON cannot write."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value
