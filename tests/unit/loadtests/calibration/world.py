"""An engine that answers in no time: the emulator's own, with parameters the fit does not know."""

from dataclasses import replace

from loadtests.calibration.client import Measured
from loadtests.calibration.machine import Usage
from loadtests.calibration.plan import Run
from loadtests.calibration.replay import Question, replay
from service.emulator.profiles import CPU_SMALL, EngineProfile, Frontend, StepCost

QUIET = Usage(1.0, 0.0)

TRUE = replace(
    CPU_SMALL,
    name="true",
    cost=StepCost(
        base_s=0.010,
        per_token_s=0.0002,
        per_mega_kv_s=0.4,
        per_prefill_token_s=4e-6,
        per_prefill_context_s=3e-8,
        long_context_tokens=0,
        noise_cv=0.03,
    ),
    frontend=Frontend(latency_s=0.006, per_request_s=0.002, per_prompt_token_s=6e-6, stall_ratio=0.4),
)
"""About what a small model on a CPU is."""


def ask(run: Run) -> list[Question]:
    """The questions of a run, without a tokenizer: as many tokens as wished for."""
    size = TRUE.block_size
    return [
        Question(
            call.at_s,
            call.prompt_tokens,
            call.output_tokens,
            tuple(
                hash((call.group, block) if (block + 1) * size <= call.shared_tokens else (run.name, index, block))
                for block in range(call.prompt_tokens // size)
            ),
        )
        for index, call in enumerate(run.calls)
    ]


def measure(run: Run, truth: EngineProfile = TRUE, usage: Usage = QUIET) -> Measured:
    """The run on the engine ``truth``; tokens of the first request evenly stamped."""
    questions = ask(run)
    times = replay(truth, questions, run.seed).times
    stamps = [[one.first_s + (one.tpot_s or 0.0) * index for index in range(one.tokens)] for one in times]
    return Measured(run.name, questions, times, stamps, 0.001, usage)
