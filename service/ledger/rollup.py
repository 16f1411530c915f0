"""Rollups: a tally for each hour, tenant, tier and size class, as it is stored."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from service.slo.attainment import Tally
from service.slo.sketch import Sketch

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True)
class Key:
    """What a rollup is about. ``hour`` counts hours since 1970; ``size_class`` is 0 where there is none."""

    chain: str
    hour: int
    tenant: str
    tier: str
    size_class: int


def key_of(chain: str, fields: Mapping[str, Any]) -> Key:
    """The rollup that an entry belongs to."""
    return Key(
        chain,
        fields["arrived_us"] // 3_600_000_000,
        fields["tenant"] or "",
        fields["tier"] or "",
        fields["size_class"] or 0,
    )


def encode_tally(key: Key, tally: Tally) -> dict[str, Any]:
    """The columns of a rollup."""
    standings = tally.standings
    sums = {
        "good": tally.good,
        "bad": tally.bad,
        "reasons": [[standing, reason, count] for (standing, reason), count in sorted(tally.reasons.items())],
        "marks": tally.marks,
        "intervals": [[interval, *pair] for interval, pair in sorted(tally.intervals.items())],
        "ttft": _pack(tally.ttft),
        "tpot": _pack(tally.tpot),
        "tokens": [tally.prompt_tokens, tally.cached_tokens, tally.output_tokens],
        "lost": [tally.gaps, tally.lost],
    }
    return {
        "chain": key.chain, "hour": key.hour, "tenant": key.tenant, "tier": key.tier, "size_class": key.size_class,
        "entries": tally.requests + tally.gaps, "requests": tally.requests, "met": standings["met"],
        "missed": standings["missed"], "excluded": standings["excluded"], "sums": _encode(sums).decode(),
    }  # fmt: skip


def decode_tally(row: Mapping[str, Any]) -> Tally:
    """The tally of a stored rollup."""
    sums = _decode(row["sums"])
    standings = Counter({name: row[name] for name in ("met", "missed", "excluded") if row[name]})
    prompt_tokens, cached_tokens, output_tokens = sums["tokens"]
    return Tally(
        row["requests"], sums["good"], sums["bad"], standings,
        Counter({(standing, reason): count for standing, reason, count in sums["reasons"]}), Counter(sums["marks"]),
        {interval: [good, bad] for interval, good, bad in sums["intervals"]},
        _unpack(sums["ttft"]), _unpack(sums["tpot"]), prompt_tokens, cached_tokens, output_tokens, *sums["lost"],
    )  # fmt: skip


def _pack(sketch: Sketch) -> list[list[int]]:
    """Two lists: the steps from bucket to bucket, and their counts."""
    steps, before = [], 0
    indices = sorted(sketch.buckets)
    for index in indices:
        steps.append(index - before)
        before = index
    return [steps, [sketch.buckets[index] for index in indices]]


def _unpack(packed: list[list[int]]) -> Sketch:
    buckets, index = {}, 0
    for step, count in zip(*packed, strict=True):
        index += step
        buckets[index] = count
    return Sketch(buckets)
