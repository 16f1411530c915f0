"""Speculation: its JSON, its rules, its schedule."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.launch.speculation import (
    DsparkSpeculation,
    NgramSpeculation,
    NoSpeculation,
    ScheduleStep,
    Speculation,
    build_speculative_config,
    find_speculation_faults,
    parse_schedule,
)


def messages_of(
    speculation: Speculation, *, on_cpu: bool = False, data_parallel: int = 1, running_requests: int = 256
) -> list[str]:
    faults = find_speculation_faults(
        speculation, on_cpu=on_cpu, data_parallel=data_parallel, running_requests=running_requests
    )
    return [f"{fault.field}: {fault.message}" for fault in faults]


def test_config_of_each_kind() -> None:
    assert build_speculative_config(NoSpeculation()) is None
    assert build_speculative_config(DsparkSpeculation()) == '{"method":"dspark","num_speculative_tokens":7}'
    assert json.loads(build_speculative_config(NgramSpeculation(guessed_tokens=4, lookup_tokens=2)) or "") == {
        "method": "ngram",
        "num_speculative_tokens": 4,
        "prompt_lookup_max": 2,
    }
    adaptive = DsparkSpeculation(guessed_tokens=3, adaptive_verification=True)
    assert json.loads(build_speculative_config(adaptive) or "")["enable_adaptive_verification"] is True


def test_no_speculation_has_no_faults() -> None:
    assert messages_of(NoSpeculation(), on_cpu=True, data_parallel=8) == []


@pytest.mark.parametrize(
    ("speculation", "words"),
    [
        (NgramSpeculation(guessed_tokens=0), "0 tokens cannot be guessed"),
        (NgramSpeculation(lookup_tokens=0), "speculation.lookup_tokens"),
        (DsparkSpeculation(guessed_tokens=0), "0 tokens cannot be guessed"),
        (DsparkSpeculation(guessed_tokens=8), "blocks of 7 tokens"),
        (DsparkSpeculation(adaptive_verification=True), "vLLM stops at start"),
        (DsparkSpeculation(schedule=(ScheduleStep(2, 512, 1),)), "starts at batch size 2 where 1 is due"),
        (DsparkSpeculation(schedule=(ScheduleStep(1, 8, 1), ScheduleStep(10, 512, 1))), "10 where 9 is due"),
        (DsparkSpeculation(schedule=(ScheduleStep(1, 8, 1), ScheduleStep(8, 512, 1))), "8 where 9 is due"),
        (DsparkSpeculation(schedule=(ScheduleStep(1, 512, 8),)), "outside 0 to 7"),
        (DsparkSpeculation(schedule=(ScheduleStep(1, 255, 3),)), "batch sizes 256 to 256"),
    ],
)
def test_each_rule(speculation: Speculation, words: str) -> None:
    (message,) = messages_of(speculation)
    assert words in message


def test_dspark_needs_a_gpu() -> None:
    (message,) = messages_of(DsparkSpeculation(), on_cpu=True)
    assert "Triton" in message


def test_data_parallel_switches_the_schedule_off() -> None:
    schedule = (ScheduleStep(1, 512, 3),)
    (message,) = messages_of(DsparkSpeculation(schedule=schedule), data_parallel=2)
    assert "ignores the schedule" in message
    assert messages_of(DsparkSpeculation(), data_parallel=2) == []


def test_an_empty_step_is_told() -> None:
    told = messages_of(DsparkSpeculation(schedule=(ScheduleStep(1, 0, 3), ScheduleStep(1, 512, 1))))
    assert told == ["speculation.schedule: the step 1-0 is empty"]


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 7)), min_size=1, max_size=6))
def test_any_gapless_schedule_is_valid_and_reads_back(widths: list[tuple[int, int]]) -> None:
    steps, first = [], 1
    for width, tokens in widths:
        steps.append(ScheduleStep(first, first + width - 1, tokens))
        first += width
    text = ",".join(f"{step.first}-{step.last}:{step.guessed_tokens}" for step in steps)
    assert parse_schedule(text) == tuple(steps)
    assert messages_of(DsparkSpeculation(schedule=tuple(steps)), running_requests=first - 1) == []
    config = json.loads(build_speculative_config(DsparkSpeculation(schedule=tuple(steps))) or "")
    assert config["num_speculative_tokens_per_batch_size"][-1][1] == first - 1
