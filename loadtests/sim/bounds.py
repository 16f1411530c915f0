"""Closed-form bounds beside the runs: what no policy can beat, because the engine's arithmetic forbids it.

With d requests decoding, K(d) drafts and accept length a(d), a step takes t; over time each finished request brings o
output tokens and u uncached prompt tokens, so a step carries p = d * a * u / o prompt tokens on average:

    t(d)  = base + per_token * d * (1 + K) + per_mega_kv * d * ctx / 1e6 + per_prefill_token * p
    mu(d) = d * a / (t * o)                                      requests a second and worker

Only batches with t / a <= the TPOT target count. Symbols as in ``service.emulator.profiles.StepCost``.

*Trade-offs*: means only. Waiting, noise and the grain of steps make the true optimum lower, so this is a ceiling.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from loadtests.sim.lengths import MeanSize
from service.emulator.profiles import EngineProfile


@dataclass(frozen=True, slots=True)
class Peak:
    """The best steady state: batch size, requests and output tokens a second of one worker, time per output token."""

    batch: int
    requests_per_s: float
    tokens_per_s: float
    tpot_s: float


def find_drafts(profile: EngineProfile, batch: int) -> tuple[int, float]:
    """(draft tokens K, mean accept length a) at this batch size."""
    speculation = profile.speculation
    drafts = next((k for first, last, k in speculation.schedule if first <= batch <= last), 0)
    if not drafts:
        return 0, 1.0
    rows = speculation.accept_length
    return drafts, next((length for last, length in rows if batch <= last), rows[-1][1])


def compute_peak(profile: EngineProfile, mean: MeanSize, tpot_target_s: float = math.inf) -> Peak:
    """The fastest steady state in which the mean time per output token keeps the target."""
    cost = profile.cost
    best = Peak(0, 0.0, 0.0, math.inf)
    output, context = max(1.0, mean.output_tokens), mean.prompt_tokens + mean.output_tokens / 2.0
    extra = max(0.0, mean.prompt_tokens - cost.long_context_tokens) / max(1.0, mean.prompt_tokens)
    per_prompt_token = cost.per_prefill_token_s + cost.per_prefill_context_s * extra * mean.prompt_tokens / 2.0
    for batch in range(1, profile.max_num_seqs + 1):
        if batch * context > profile.kv_blocks * profile.block_size:
            break
        drafts, accept = find_drafts(profile, batch)
        prompt = batch * accept * mean.uncached_tokens / output
        if prompt + batch * (1 + drafts) > profile.max_num_batched_tokens:
            continue
        step_s = (
            cost.base_s
            + cost.per_token_s * batch * (1 + drafts)
            + cost.per_mega_kv_s * batch * context * 1e-6
            + per_prompt_token * prompt
        )
        tokens = batch * accept / step_s
        if step_s / accept <= tpot_target_s and tokens > best.tokens_per_s:
            best = Peak(batch, tokens / output, tokens, step_s / accept)
    return best


def compute_token_cost_s(profile: EngineProfile, tpot_target_s: float) -> float:
    """The least worker-seconds per output token at any batch that keeps the target, prompts left out."""
    cost = profile.cost
    best = math.inf
    for batch in range(1, profile.max_num_seqs + 1):
        drafts, accept = find_drafts(profile, batch)
        step_s = cost.base_s + cost.per_token_s * batch * (1 + drafts)
        if step_s / accept <= tpot_target_s:
            best = min(best, step_s / (batch * accept))
    return best


@dataclass(frozen=True, slots=True)
class Work:
    """One offered request: where its tier stands, and the least worker-seconds it can cost."""

    rank: int
    cost_s: float


def count_most_good(works: Iterable[Work], worker_seconds: float) -> int:
    """How many of the offered requests can be good at most: the cheapest first, until the machines are full."""
    spent, count = 0.0, 0
    for work in sorted(works, key=lambda one: one.cost_s):
        spent += work.cost_s
        if spent > worker_seconds:
            break
        count += 1
    return count


def compute_ideal_attainment(works: Sequence[Work], worker_seconds: float) -> dict[int, float]:
    """Attainment by rank under strict priority and perfect knowledge; within a rank the cheapest first."""
    left = worker_seconds
    ideal: dict[int, float] = {}
    for rank in sorted({work.rank for work in works}):
        costs = sorted(work.cost_s for work in works if work.rank == rank)
        count = 0
        for cost_s in costs:
            if cost_s > left:
                break
            left -= cost_s
            count += 1
        ideal[rank] = count / len(costs)
        if count < len(costs):
            left = 0.0
    return ideal
