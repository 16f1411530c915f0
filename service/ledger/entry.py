"""Writes one settled request as an entry: fixed fields in a fixed order, whole numbers and text only.

The bytes that are hashed are the fields as a JSON array, so whoever reads them from the database again comes to the
same bytes. Moments are microseconds: the arrival since 1970 UTC, all others since the arrival.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from service.domain.kind import GENERATING_KINDS
from service.domain.outcome import Outcome
from service.domain.tier import Tier
from service.slo.attainment import INTERVAL_S, Weighed
from service.slo.verdict import Judged, Verdict, choose_ttft, count_prompt, judge

FIELDS = (
    "request_id", "client_request_id", "tenant", "contract", "tier_asked", "tier", "model", "kind", "worker", "stream",
    "status", "outcome", "standing", "reason", "fault", "slis", "marks", "size_class", "prompt_tokens",
    "prompt_estimated", "cached_tokens", "output_tokens", "output_estimated", "prompt_bytes", "attempts", "arrived_us",
    "admitted_us", "dispatched_us", "first_token_us", "last_token_us", "settled_us", "config_hash", "stands_for",
)  # fmt: skip
"""In the order in which they are hashed, after the number of the entry in its chain."""

FIRST_HASH = bytes(32)
"""What stands before the first entry of a chain."""

LOST = "lost"
"""The outcome of an entry that stands for requests whose own entries found no room."""

Row = tuple[Any, ...]
_encode = msgspec.json.Encoder().encode
_MILLION = 1_000_000.0
_MOST = 1 << 53


class Settled(Judged, Protocol):
    """What an entry is made of; see ``runtime.account.Settlement``."""

    request_id: Any
    client_request_id: str | None
    tenant_id: Any
    tier: Any
    tier_asked: Any
    status: int | None
    worker_id: Any
    attempts: int
    cached_tokens: int | None
    admitted_at: float | None
    dispatched_at: float | None
    settled_at: float | None
    verdict: Verdict | None


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for all entries of a while: the promises and what names them. ``contracts`` are the fingerprints of
    the tenants' contracts."""

    model: str
    config_hash: str
    tiers: Mapping[Any, Tier]
    contracts: Mapping[Any, str]


def build_row(settled: Settled, terms: Terms, offset_s: float) -> Row:
    """The fields of ``settled``; ``offset_s`` added to its moments gives seconds since 1970."""
    tier = terms.tiers.get(settled.tier)
    verdict = settled.verdict or judge(settled, tier)
    arrived_at = settled.arrived_at
    prompt_tokens = count_prompt(settled)
    promise = choose_ttft(tier, prompt_tokens)
    outcome = settled.outcome or Outcome.GATEWAY_FAULT
    marks = settled.marks
    return (
        settled.request_id, settled.client_request_id, settled.tenant_id, terms.contracts.get(settled.tenant_id),
        settled.tier_asked or settled.tier, settled.tier, terms.model, settled.kind, settled.worker_id,
        int(settled.stream), settled.status, outcome.label, verdict.standing.label, verdict.reason,
        verdict.fault.label,
        verdict.availability.letter + verdict.ttft.letter + verdict.tpot.letter + verdict.met_all.letter,
        ",".join(sorted([mark.value for mark in marks])) if marks else "", None if promise is None else promise[0],
        min(prompt_tokens, _MOST), int(settled.prompt_tokens != prompt_tokens), _bound(settled.cached_tokens),
        _bound(settled.output_tokens),
        int(settled.output_estimated), settled.prompt_bytes, settled.attempts, int((arrived_at + offset_s) * _MILLION),
        _since(arrived_at, settled.admitted_at), _since(arrived_at, settled.dispatched_at),
        _since(arrived_at, settled.first_token_at), _since(arrived_at, settled.last_token_at),
        _since(arrived_at, settled.settled_at), terms.config_hash, 1,
    )  # fmt: skip


def build_gap(count: int, terms: Terms, wall_s: float) -> Row:
    """An entry that says that ``count`` entries before it were lost."""
    blank: dict[str, Any] = dict.fromkeys(FIELDS)
    blank.update(
        request_id="", model=terms.model, kind=LOST, stream=0, outcome=LOST, standing=LOST, reason=LOST, fault="us",
        slis="----", marks="", prompt_tokens=0, prompt_estimated=0, output_estimated=0, prompt_bytes=0, attempts=0,
        arrived_us=int(wall_s * _MILLION), config_hash=terms.config_hash, stands_for=count,
    )  # fmt: skip
    return tuple(blank.values())


def encode_payload(seq: int, row: Sequence[Any]) -> bytes:
    """The bytes that are hashed."""
    return _encode((seq, *row))


def chain_hash(before: bytes, payload: bytes) -> bytes:
    """The hash of an entry: SHA-256 over the hash of the entry before it and its own payload."""
    return hashlib.sha256(before + payload).digest()


def weigh(fields: Mapping[str, Any]) -> Weighed:
    """What a rollup adds of an entry."""
    first_us, last_us, tokens = fields["first_token_us"], fields["last_token_us"], fields["output_tokens"]
    shows = bool(fields["stream"]) and first_us is not None and fields["kind"] in GENERATING_KINDS
    tpot_s: float | None = None
    if shows and last_us is not None and tokens is not None and tokens > 1 and not fields["output_estimated"]:
        tpot_s = (last_us - first_us) / _MILLION / (tokens - 1)
    marks = fields["marks"]
    return Weighed(
        fields["standing"], fields["reason"], fields["slis"], fields["arrived_us"] // (INTERVAL_S * 1_000_000),
        first_us / _MILLION if shows else None, tpot_s,
        0 if fields["prompt_estimated"] else max(fields["prompt_tokens"], 0), max(fields["cached_tokens"] or 0, 0),
        max(tokens or 0, 0), tuple(marks.split(",")) if marks else (),
        fields["stands_for"] if fields["outcome"] == LOST else 0,
    )  # fmt: skip


def _bound(tokens: int | None) -> int | None:
    """A worker may report anything; databases hold 64 bits."""
    return None if tokens is None else min(max(tokens, 0), _MOST)


def _since(arrived_at: float, moment: float | None) -> int | None:
    return None if moment is None else int((moment - arrived_at) * _MILLION + 0.5)
