"""How a worker guesses tokens ahead, as typed values.

Speculation trades compute for fewer decode steps: cheap while a batch is small, a loss once the machine is saturated
(DSpark at about half the throughput of no speculation: vllm issue 49369). So the number of guessed tokens K follows a
schedule over the batch size, and the schedule is to be derived from a measurement on the operator's own traffic.

vLLM is lenient where an operator would want to know: a gap in the schedule silently continues the K before it, and a K
above the ceiling is silently clamped (``vllm/v1/spec_decode/dynamic/utils.py``). Both are faults here.

*Trade-offs*: a schedule over batch size alone ignores that acceptance differs per request. Adaptive verification would
see that, and cannot be used: M3's attention builders have no bound for variable lengths and vLLM stops at start.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

from service.launch.fault import Fault

# The DSpark draft of M3.1 Flash proposes blocks of up to seven tokens (dspark/ folder of the model repository).
DSPARK_BLOCK_TOKENS = 7

_STEP = re.compile(r"(\d+)-(\d+):(\d+)")


@dataclass(frozen=True, slots=True)
class ScheduleStep:
    """Guess ``guessed_tokens`` ahead while the batch holds ``first`` to ``last`` requests, both included."""

    first: int
    last: int
    guessed_tokens: int


@dataclass(frozen=True, slots=True)
class NoSpeculation:
    """One token per decode step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramSpeculation:
    """Guess by looking the last tokens up in the prompt; needs no draft model and runs on a CPU.

    For trying speculation out, not for serving: on the CPU build of vLLM 0.32.0 a request with ``top_k`` kills the
    engine as soon as a step has nothing guessed (seen here: ``max()`` of an empty tensor in the rejection sampler).
    """

    guessed_tokens: int = 3
    lookup_tokens: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DsparkSpeculation:
    """Guess with the DSpark draft model that ships beside the weights."""

    guessed_tokens: int = DSPARK_BLOCK_TOKENS
    schedule: tuple[ScheduleStep, ...] = ()
    adaptive_verification: bool = False


Speculation = NoSpeculation | NgramSpeculation | DsparkSpeculation


def parse_schedule(text: str) -> tuple[ScheduleStep, ...]:
    """Read ``1-32:7,33-128:3`` (batch sizes, then K); raise ``ValueError`` with the part that does not read."""
    steps = []
    for part in text.split(","):
        match = _STEP.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{part.strip()!r} is not FIRST-LAST:TOKENS, as in 1-32:7")
        steps.append(ScheduleStep(*(int(number) for number in match.groups())))
    return tuple(steps)


def build_speculative_config(speculation: Speculation) -> str | None:
    """Return the JSON of ``--speculative-config``, or ``None`` where the flag is to be left out."""
    config: dict[str, object]
    match speculation:
        case NoSpeculation():
            return None
        case NgramSpeculation():
            config = {
                "method": "ngram",
                "num_speculative_tokens": speculation.guessed_tokens,
                "prompt_lookup_max": speculation.lookup_tokens,
            }
        case DsparkSpeculation():
            config = {"method": "dspark", "num_speculative_tokens": speculation.guessed_tokens}
            if speculation.schedule:
                config["num_speculative_tokens_per_batch_size"] = [
                    [step.first, step.last, step.guessed_tokens] for step in speculation.schedule
                ]
            if speculation.adaptive_verification:
                config["enable_adaptive_verification"] = True
        case _ as unreachable:
            assert_never(unreachable)
    return json.dumps(config, separators=(",", ":"))


def find_speculation_faults(
    speculation: Speculation, *, on_cpu: bool, data_parallel: int, running_requests: int
) -> Iterator[Fault]:
    """Yield what would make vLLM stop at start or, worse, quietly speculate otherwise than written."""
    match speculation:
        case NoSpeculation():
            return
        case NgramSpeculation():
            yield from _find_number_faults(speculation.guessed_tokens, "speculation.guessed_tokens")
            yield from _find_number_faults(speculation.lookup_tokens, "speculation.lookup_tokens")
        case DsparkSpeculation():
            yield from _find_dspark_faults(speculation, on_cpu=on_cpu, data_parallel=data_parallel)
            yield from _find_schedule_faults(speculation, running_requests)
        case _ as unreachable:
            assert_never(unreachable)


def _find_number_faults(number: int, field: str) -> Iterator[Fault]:
    if number < 1:
        yield Fault(field, f"{number} tokens cannot be guessed", "use 1 or more, or no speculation")


def _find_dspark_faults(speculation: DsparkSpeculation, *, on_cpu: bool, data_parallel: int) -> Iterator[Fault]:
    yield from _find_number_faults(speculation.guessed_tokens, "speculation.guessed_tokens")
    if speculation.guessed_tokens > DSPARK_BLOCK_TOKENS:
        yield Fault(
            "speculation.guessed_tokens",
            f"the DSpark draft proposes blocks of {DSPARK_BLOCK_TOKENS} tokens, not {speculation.guessed_tokens}",
            f"use at most {DSPARK_BLOCK_TOKENS}",
        )
    if on_cpu:
        yield Fault("speculation", "DSpark needs Triton, which the CPU build lacks", "use ngram or none on a CPU")
    if speculation.adaptive_verification:
        yield Fault(
            "speculation.adaptive_verification",
            "vLLM stops at start: M3's attention has no bound for variable draft lengths",
            "use a fixed number of tokens or a batch-size schedule",
        )
    if speculation.schedule and data_parallel > 1:
        yield Fault(
            "speculation.schedule",
            f"vLLM ignores the schedule when data parallel is {data_parallel}",
            "use a fixed number of tokens, or one worker per replica (data parallel 1)",
        )


def _find_schedule_faults(speculation: DsparkSpeculation, running_requests: int) -> Iterator[Fault]:
    if not speculation.schedule:
        return
    field = "speculation.schedule"
    expected = 1
    for step in speculation.schedule:
        if step.first != expected:
            yield Fault(
                field,
                f"a step starts at batch size {step.first} where {expected} is due; vLLM would carry on silently",
                f"let it start at {expected}",
            )
        if step.last < step.first:
            yield Fault(field, f"the step {step.first}-{step.last} is empty", "write the smaller batch size first")
        if not 0 <= step.guessed_tokens <= speculation.guessed_tokens:
            yield Fault(
                field,
                f"{step.guessed_tokens} tokens at batch size {step.first} are outside 0 to "
                f"{speculation.guessed_tokens} (guessed_tokens)",
                "raise guessed_tokens or lower the step",
            )
        expected = step.last + 1
    if expected <= running_requests:
        yield Fault(
            field,
            f"batch sizes {expected} to {running_requests} (limits.running_requests) have no step",
            f"let the last step reach {running_requests}",
        )
