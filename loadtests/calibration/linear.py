"""Finds a first set of parameters: weighted least squares on measured times, none below zero.

Two systems, each linear in what it looks for.

Decoding, one row per request of n tokens (symbols of ``profiles.StepCost``):

    (last - first) / (n - 1) = base_s + per_token_s * d + per_mega_kv_s * KV / 1e6

d and KV are the requests decoding beside it and what they hold, averaged over its own life by what clients saw.

First token of a request that met an idle engine, with the decode parameters known (symbols of ``profiles.Frontend``):

    TTFT - base_s = latency_s + per_request_s + per_prompt_token_s * prompt + per_prefill_token_s * p
                  + per_prefill_context_s * sum(p * ctx)

p is what the prefix cache did not have. Only the sum of the first two can be seen there; how much of it occupies the
frontend is seen where requests come together, which is ``fit``'s part.

*Trade-offs*: averages stand for steps, and prompts computed between the tokens of others are ignored. ``fit`` starts
from here and ignores nothing that the emulator does not.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadtests.calibration.replay import Question, Times

MIN_TOKENS = 8
_RIDGE = 1e-9


def solve(rows: Sequence[Sequence[float]], targets: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The x >= 0 that minimises sum(w * (row . x - target)^2): least squares, columns with a negative x taken out."""
    columns = list(range(len(rows[0]))) if rows else []
    while columns:
        x = _solve_free(rows, targets, weights, columns)
        worst = min(range(len(x)), key=lambda index: x[index] * _norm(rows, columns[index]))
        if x[worst] >= 0.0:
            solved = dict(zip(columns, x, strict=True))
            return [solved.get(column, 0.0) for column in range(len(rows[0]))]
        del columns[worst]
    return [0.0] * (len(rows[0]) if rows else 0)


def _norm(rows: Sequence[Sequence[float]], column: int) -> float:
    return max(abs(row[column]) for row in rows)


def _solve_free(
    rows: Sequence[Sequence[float]], targets: Sequence[float], weights: Sequence[float], columns: Sequence[int]
) -> list[float]:
    """Normal equations, columns scaled to about one, by elimination with the largest pivot."""
    scales = [_norm(rows, column) or 1.0 for column in columns]
    size = len(columns)
    table = [[0.0] * (size + 1) for _ in range(size)]
    for row, target, weight in zip(rows, targets, weights, strict=True):
        scaled = [row[column] / scale for column, scale in zip(columns, scales, strict=True)]
        for i in range(size):
            for j in range(size):
                table[i][j] += weight * scaled[i] * scaled[j]
            table[i][size] += weight * scaled[i] * target
    ridge = _RIDGE * (max(table[i][i] for i in range(size)) or 1.0)
    for i in range(size):
        table[i][i] += ridge
    for i in range(size):
        pivot = max(range(i, size), key=lambda k: abs(table[k][i]))
        table[i], table[pivot] = table[pivot], table[i]
        for k in range(size):
            if k != i:
                factor = table[k][i] / table[i][i]
                for j in range(i, size + 1):
                    table[k][j] -= factor * table[i][j]
    return [table[i][size] / table[i][i] / scales[i] for i in range(size)]


def count_cached(questions: Sequence[Question], block_size: int) -> list[int]:
    """Prompt tokens each request finds cached, if all before it have left their whole blocks there."""
    seen: set[int] = set()
    found: list[int] = []
    for one in questions:
        limit = (one.prompt_tokens - 1) // block_size  # the last token is always computed: it yields the first answer
        hits = 0
        while hits < min(limit, len(one.block_hashes)) and one.block_hashes[hits] in seen:
            hits += 1
        found.append(hits * block_size)
        seen.update(one.block_hashes)
    return found


def build_decode_rows(questions: Sequence[Question], times: Sequence[Times]) -> list[tuple[list[float], float]]:
    """(features, seconds per token) of every request with enough tokens."""
    rows: list[tuple[list[float], float]] = []
    for mine in times:
        tpot_s = mine.tpot_s
        if tpot_s is None or mine.tokens < MIN_TOKENS:
            continue
        length_s = mine.last_s - mine.first_s
        if length_s <= 0.0:
            continue
        beside = held = 0.0
        for other, asked in zip(times, questions, strict=True):
            overlap_s = min(mine.last_s, other.last_s) - max(mine.first_s, other.first_s)
            if overlap_s > 0.0:
                share = overlap_s / length_s
                beside += share
                held += share * (asked.prompt_tokens + other.tokens / 2)
        rows.append(([1.0, beside, held * 1e-6], tpot_s))
    return rows


def build_first_rows(
    questions: Sequence[Question], times: Sequence[Times], block_size: int, budget: int
) -> list[tuple[list[float], float]]:
    """(features, TTFT) of every request that came when no other was there."""
    rows: list[tuple[list[float], float]] = []
    cached = count_cached(questions, block_size)
    busy_until = float("-inf")
    for index in sorted(range(len(times)), key=lambda one: times[one].at_s):
        mine, asked = times[index], questions[index]
        after = min((other.at_s for other in times if other.at_s > mine.at_s), default=float("inf"))
        if mine.at_s > busy_until and after > mine.first_s:
            computed, products, chunks = cached[index], 0.0, 0
            while computed < asked.prompt_tokens:
                chunk = min(budget, asked.prompt_tokens - computed)
                computed += chunk
                products += chunk * computed
                chunks += 1
            fresh = asked.prompt_tokens - cached[index]
            rows.append(([1.0, asked.prompt_tokens, fresh, products, chunks], mine.ttft_s))
        busy_until = max(busy_until, mine.last_s)
    return rows
