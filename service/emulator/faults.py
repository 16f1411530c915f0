"""Decides which faults a request or a probe meets: per worker, per path, a number of times, or by header."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from service.emulator.fields import Fields, as_fields, as_list
from service.emulator.steps import Conditions

FAULT_HEADER = b"x-emulator-fault"


class FaultKind(StrEnum):
    """Every fault on offer. ``after`` counts tokens for ``stall``, chunks elsewhere."""

    STALL_FIRST = "stall-first"  # headers, then nothing
    STALL = "stall"  # nothing more after `after` tokens, the socket stays open
    DIE = "die"  # RST after `after` chunks
    CUT = "cut"  # FIN after `after` chunks, without the last chunk of the body
    SLOW = "slow"  # every step takes `factor` times as long
    UNAVAILABLE = "503"
    TOO_MANY = "429"  # with Retry-After: `delay_s`
    BAD_REQUEST = "400"
    BAD_GATEWAY = "502"  # an HTML page
    GARBAGE = "garbage"  # bytes that are not HTTP
    FREEZE_HEALTH = "freeze-health"
    DELAY_HEALTH = "delay-health"  # by `delay_s`
    CLOSE_AT_REUSE = "close-at-reuse"  # an idle kept connection dies as the next request arrives
    ABORT_FINISH = "abort-finish"  # 200, finish_reason abort, no tokens
    FLOOD = "flood"  # chunks as fast as the socket takes them; `after` = how many, 0 = no end
    ERROR_EVENT = "error-event"  # an error event after `after` chunks, then [DONE]
    CONNECTION_TOKENS = "connection-tokens"  # hop-by-hop headers named in Connection
    SSE_CRLF = "sse-crlf"
    SSE_CR = "sse-cr"
    SSE_BYTES = "sse-bytes"  # chunks of one byte
    SSE_COMMENTS = "sse-comments"
    SSE_MULTILINE = "sse-multiline"  # one event over several data lines
    SSE_BOM = "sse-bom"
    ODD_FIELDS = "odd-fields"  # unknown fields and nulls in deltas
    ENGINE_DEAD = "engine-dead"  # 500 for requests, 503 for /health
    FREEZE_ENGINE = "freeze-engine"  # no step runs: accepted, never served, healthy
    ACCEPT = "accept"  # accepted drafts scaled by `factor`
    LOSE_KV = "lose-kv"  # only `factor` of the KV blocks are left


WORKER_ONLY = frozenset({FaultKind.FREEZE_ENGINE, FaultKind.ACCEPT, FaultKind.LOSE_KV})
PROBE_FAULTS = frozenset({FaultKind.FREEZE_HEALTH, FaultKind.DELAY_HEALTH, FaultKind.ENGINE_DEAD})
CONNECTION_FAULTS = frozenset({FaultKind.CLOSE_AT_REUSE})
REQUEST_FAULTS = frozenset(FaultKind) - WORKER_ONLY - CONNECTION_FAULTS - (PROBE_FAULTS - {FaultKind.ENGINE_DEAD})
SSE_VARIANTS = frozenset(kind for kind in FaultKind if kind.startswith("sse-") or kind is FaultKind.ODD_FIELDS)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault with its figures."""

    kind: FaultKind
    after: int = 0
    factor: float = 1.0
    delay_s: float = 1.0
    times: int | None = None
    """How many requests meet it; ``None`` = all."""
    path: str = ""
    """Only requests whose path starts so."""

    def as_fields(self) -> Fields:
        return {
            "kind": str(self.kind),
            "after": self.after,
            "factor": self.factor,
            "delay_s": self.delay_s,
            "times": self.times,
            "path": self.path,
        }


def build_fault(raw: Fields) -> Fault:
    """A fault from loosely typed fields; ``ValueError`` names what is wrong."""
    unknown = raw.keys() - {"kind", "after", "factor", "delay_s", "times", "path"}
    if unknown:
        raise ValueError(f"unknown field {min(unknown)!r}")
    times = raw.get("times")
    return Fault(
        kind=FaultKind(str(raw.get("kind", ""))),
        after=int(str(raw.get("after", 0))),
        factor=float(str(raw.get("factor", 1.0))),
        delay_s=float(str(raw.get("delay_s", 1.0))),
        times=None if times is None else int(str(times)),
        path=str(raw.get("path", "")),
    )


def parse_faults(text: str) -> tuple[Fault, ...]:
    """``stall;after=3,sse-crlf`` as faults."""
    faults = []
    for part in text.split(","):
        if not part.strip():
            continue
        kind, *pairs = (piece.strip() for piece in part.split(";"))
        raw: Fields = {"kind": kind}
        for pair in pairs:
            name, _, value = pair.partition("=")
            raw[name.strip()] = value.strip()
        faults.append(build_fault(raw))
    return tuple(faults)


class FaultBoard:
    """The worker's own faults."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        self._faults: list[Fault] = list(faults)
        self._used: dict[int, int] = {}

    def replace(self, body: Fields) -> None:
        """Take a new list from ``{"faults": [...]}``; an empty one clears."""
        faults = [build_fault(as_fields(raw)) for raw in as_list(body.get("faults"))]
        self._faults = faults
        self._used = {}

    def show(self) -> Fields:
        shown: list[Fields] = []
        for index, fault in enumerate(self._faults):
            shown.append(fault.as_fields() | {"met": self._used.get(index, 0)})
        return {"faults": shown}

    def choose(self, path: str, kinds: frozenset[FaultKind] = REQUEST_FAULTS) -> tuple[Fault, ...]:
        """The faults of these kinds that a request to this path meets; each counts as met."""
        if not self._faults:
            return ()
        chosen = []
        for index, fault in enumerate(self._faults):
            if fault.kind not in kinds or not path.startswith(fault.path):
                continue
            used = self._used.get(index, 0)
            if fault.times is None or used < fault.times:
                self._used[index] = used + 1
                chosen.append(fault)
        return tuple(chosen)

    def holds(self, kind: FaultKind) -> bool:
        return any(fault.kind is kind for fault in self._faults)

    def conditions(self, slow_factor: float, kv_blocks: int) -> Conditions:
        """What the engine runs under, given the slowest request that asks for it."""
        accept, kept = 1.0, None
        for fault in self._faults:
            if fault.kind is FaultKind.SLOW:
                slow_factor = max(slow_factor, fault.factor)
            elif fault.kind is FaultKind.ACCEPT:
                accept = fault.factor
            elif fault.kind is FaultKind.LOSE_KV:
                kept = max(1, round(kv_blocks * fault.factor))
        return Conditions(step_factor=slow_factor, accept_scale=accept, kv_blocks=kept)
