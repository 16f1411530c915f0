"""The constants of each emulated machine, with where every one of them comes from.

Marks: *measured* = run on a real vLLM (worker.md section 1); *reference* = the estimates of worker.md section 7,
which are guesses until measured; *guess* = ours, to be replaced by ``sluice speculation evaluate`` and a batch sweep
on the real machine.
"""

from __future__ import annotations

from dataclasses import dataclass

BatchSchedule = tuple[tuple[int, int, int], ...]
"""Rows of (first batch size, last batch size, draft tokens), as vLLM's ``num_speculative_tokens_per_batch_size``."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Coefficients of the step time.

    t = base_s + per_token_s * d * (1 + K) + per_mega_kv_s * KV / 1e6 + per_prefill_token_s * p
        + per_prefill_context_s * p * ctx   (only for the part of a prompt beyond ``long_context_tokens``)

    d = decoding requests, K = draft tokens, KV = tokens held in the cache, p = prompt tokens computed in the step.
    Multiplied by a lognormal factor of mean 1 and the given coefficient of variation; rarely a stall is added.
    """

    base_s: float
    per_token_s: float
    per_mega_kv_s: float
    per_prefill_token_s: float
    per_prefill_context_s: float = 0.0
    long_context_tokens: int = 65_536
    noise_cv: float = 0.0
    stall_probability: float = 0.0
    stall_mean_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Speculation:
    """Draft tokens by batch size, and the mean accept length (1 + accepted drafts) by batch size."""

    schedule: BatchSchedule = ()
    accept_length: tuple[tuple[int, float], ...] = ((1_000_000, 1.0),)
    """Rows of (last batch size, mean accept length)."""

    @property
    def enabled(self) -> bool:
        return any(drafts for _, _, drafts in self.schedule)

    @property
    def max_drafts(self) -> int:
        return max((drafts for _, _, drafts in self.schedule), default=0)


@dataclass(frozen=True, slots=True)
class OutputModel:
    """How long answers are when the request does not say, and how much of them is reasoning."""

    median_tokens: float
    sigma: float
    reasoning_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class Frontend:
    """The HTTP process before the engine: it reads, renders and tokenizes requests one after another.

    A request occupies it for per_request_s + per_prompt_token_s * (all prompt tokens, cached ones too) and is known to
    the engine latency_s after that; the latency passes for many requests at once. Where the two share processors, a
    running engine loses stall_ratio seconds for each second of that work: its next step takes longer. All zero where
    nothing was measured.
    """

    latency_s: float = 0.0
    per_request_s: float = 0.0
    per_prompt_token_s: float = 0.0
    stall_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """One machine with one model on it."""

    name: str
    cost: StepCost
    output: OutputModel
    max_num_batched_tokens: int
    max_num_seqs: int
    kv_blocks: int
    max_model_len: int
    block_size: int = 128
    speculation: Speculation = Speculation()
    cache_dtype: str = "auto"
    tensor_parallel: int = 1
    frontend: Frontend = Frontend()


M31_FLASH = EngineProfile(
    name="m3.1-flash",
    cost=StepCost(
        base_s=0.0114,  # reference: 12 ms at batch 1
        per_token_s=0.00007,  # reference: 30 ms at batch 256 without drafts
        per_mega_kv_s=0.0006,  # guess: block-sparse attention, the indexer still scans every key
        per_prefill_token_s=0.0000236,  # reference: 40k prompt tokens a second at 8,192 a step
        per_prefill_context_s=2.5e-11,  # guess: half again at a context of 512k
        noise_cv=0.07,  # guess: algorithms.md 7.1 gives 5-10 %
        stall_probability=0.0002,  # guess: about once in two minutes of decoding
        stall_mean_s=0.15,  # guess
    ),
    output=OutputModel(median_tokens=400.0, sigma=1.0, reasoning_ratio=0.4),  # guess: no public trace of this model
    max_num_batched_tokens=8192,  # guess: vLLM's default for large GPUs
    max_num_seqs=256,  # reference: day-0 profile
    kv_blocks=46_875,  # reference: 6M tokens of 128-token blocks
    max_model_len=1_048_576,  # documented context of the model
    block_size=128,  # documented: the indexer's block
    speculation=Speculation(
        schedule=((1, 32, 7), (33, 128, 3), (129, 1024, 0)),  # the production flags, worker.md section 5
        accept_length=((32, 2.8), (128, 2.1), (1_000_000, 1.0)),  # reference at both ends; the middle is a guess
    ),
    cache_dtype="nvfp4",
    tensor_parallel=4,
)

CPU_SMALL = EngineProfile(
    name="cpu-small",
    cost=StepCost(
        base_s=0.00053,  # measured: 2.5 ms per token in a single stream ...
        # measured: ... and about 500 tokens a second with 16 streams. Clients see that on two shared cores, where the
        # HTTP process of vLLM is the bottleneck; without streaming its engine alone made 1,800 to 2,800 here.
        per_token_s=0.00197,
        per_mega_kv_s=0.0,  # guess: invisible at a context of 4,096
        per_prefill_token_s=3.2e-6,  # measured here: TTFT 2.3, 4.3, 8.3, 22 and 56 ms for 16, 512, 1,024, ...
        per_prefill_context_s=3.3e-9,  # measured here: ... 2,048 and 3,500 tokens; attention is not sparse there
        long_context_tokens=0,
        noise_cv=0.10,  # guess: two shared cores
    ),
    output=OutputModel(median_tokens=64.0, sigma=0.8),  # guess: random weights seldom emit an end
    max_num_batched_tokens=2048,  # vLLM's default
    max_num_seqs=16,
    kv_blocks=32_768,  # measured: cache_config_info with VLLM_CPU_KVCACHE_SPACE=1
    max_model_len=4096,
    block_size=128,
)

INSTANT = EngineProfile(
    name="instant",
    cost=StepCost(base_s=0.0002, per_token_s=0.0, per_mega_kv_s=0.0, per_prefill_token_s=0.0),  # for tests
    output=OutputModel(median_tokens=16.0, sigma=0.5),
    max_num_batched_tokens=65_536,
    max_num_seqs=1024,
    kv_blocks=65_536,
    max_model_len=131_072,
    block_size=128,
)

PROFILES: dict[str, EngineProfile] = {profile.name: profile for profile in (M31_FLASH, CPU_SMALL, INSTANT)}
