"""Every command line the profiles can produce, judged by vLLM's own argument parser and configuration classes."""

import json
import random
import subprocess
from pathlib import Path

import pytest

from service.launch.command import Seat, build_worker_command
from service.launch.cpu_engine import CpuEngine
from service.launch.profile import KvDtype, WorkerProfile, find_profile_faults
from service.launch.profiles import Overrides, apply_overrides, build_cpu_small_profile, build_m31_flash_profile

PARSE_LINES = Path(__file__).parents[1] / "support" / "parse_vllm_lines.py"

Verdict = dict[str, object]


def draw_schedule(chance: random.Random, running_requests: int, guessed_tokens: int) -> str:
    """Draw an increasing chain of batch-size ranges that covers what may run."""
    edges = sorted(chance.sample(range(1, 2048), chance.randint(0, 5)))
    edges = [edge for edge in edges if edge < running_requests] + [running_requests + chance.randint(0, 500)]
    first, steps = 1, []
    for edge in edges:
        steps.append(f"{first}-{edge}:{chance.randint(0, guessed_tokens)}")
        first = edge + 1
    return ",".join(steps)


def draw_m31_overrides(chance: random.Random) -> Overrides:
    guessed_tokens = chance.randint(1, 7)
    running_requests = chance.choice([1, 8, 64, 256, 1024])
    data_parallel = chance.choice([1, 1, 2, 4])
    speculation = chance.choice(["dspark", "dspark", "none", "ngram"])
    schedule = None
    if speculation == "dspark":
        schedule = "off" if data_parallel > 1 else draw_schedule(chance, running_requests, guessed_tokens)
    return Overrides(
        model=chance.choice([None, "/models/with space/M3.1", "./weights"]),
        tensor_parallel=chance.choice([1, 2, 4, 8]),
        data_parallel=data_parallel,
        kv_dtype=chance.choice([None, KvDtype.NVFP4, KvDtype.FP8, KvDtype.BFLOAT16]),
        context_tokens=chance.choice([None, 4096, 131_072, 1_048_576]),
        running_requests=running_requests,
        prefill_backlog_tokens=chance.choice([None, 2_000_000]),
        shutdown_grace_s=chance.choice([None, 1, 600]),
        speculation=speculation,
        guessed_tokens=None if speculation == "none" else guessed_tokens,
        schedule=schedule,
    )


def build_profiles() -> list[WorkerProfile]:
    """Both shipped profiles, and a fixed draw of what an operator may make of them."""
    chance = random.Random(7)
    m31 = build_m31_flash_profile()
    cpu = build_cpu_small_profile(Path("/models/small"))
    profiles = [m31, cpu]
    profiles += [apply_overrides(m31, draw_m31_overrides(chance)) for _ in range(120)]
    profiles += [apply_overrides(m31, Overrides(nodes=nodes, tensor_parallel=8)) for nodes in (2, 4)]
    profiles += [
        apply_overrides(cpu, Overrides(speculation="ngram", guessed_tokens=guessed_tokens, running_requests=running))
        for guessed_tokens in (1, 3, 8)
        for running in (1, 16, 64)
    ]
    return profiles


def tail_of(profile: WorkerProfile) -> list[str]:
    """The words after ``vllm serve``."""
    nodes = profile.layout.nodes
    return list(
        build_worker_command(profile, port=8000, seat=Seat(nodes - 1, "10.0.0.1") if nodes > 1 else None).argv[2:]
    )


@pytest.fixture(scope="module")
def wrong_lines() -> dict[str, list[str]]:
    good = tail_of(build_m31_flash_profile())

    def with_value(flag: str, value: str) -> list[str]:
        changed = list(good)
        changed[changed.index(flag) + 1] = value
        return changed

    return {
        "unknown flag": [*good, "--no-such-flag"],
        "unknown kv dtype": with_value("--kv-cache-dtype", "nvfp5"),
        "text for a number": with_value("--max-num-seqs", "many"),
        "broken json": with_value("--speculative-config", "{"),
        "unknown speculative key": with_value("--speculative-config", '{"method":"dspark","tokens":3}'),
        "overlapping schedule": with_value(
            "--speculative-config",
            '{"method":"dspark","num_speculative_tokens":7,"num_speculative_tokens_per_batch_size":[[1,9,7],[5,99,1]]}',
        ),
        "unknown histogram family": with_value("--custom-histogram-buckets", '{"time_per_output_token":[1]}'),
        "unknown tool parser": with_value("--tool-call-parser", "minimax_m99"),
        "unknown reasoning parser": with_value("--reasoning-parser", "minimax_m99"),
    }


@pytest.fixture(scope="module")
def verdicts(cpu_engine: CpuEngine, wrong_lines: dict[str, list[str]]) -> list[Verdict]:
    """One run of the parser over all lines, wrong ones last."""
    lines = [*(tail_of(profile) for profile in build_profiles()), *wrong_lines.values()]
    done = subprocess.run(
        [str(cpu_engine.python), str(PARSE_LINES)],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        timeout=110,
        check=True,
    )
    answer: list[Verdict] = json.loads(done.stdout.strip().splitlines()[-1])
    assert len(answer) == len(lines)
    return answer


def test_drawn_profiles_are_valid() -> None:
    assert [faults for profile in build_profiles() if (faults := find_profile_faults(profile))] == []


def test_every_line_is_accepted(verdicts: list[Verdict]) -> None:
    refused = [
        (tail_of(profile), verdict)
        for profile, verdict in zip(build_profiles(), verdicts, strict=False)
        if verdict["code"] != 0
    ]
    assert refused == []


def test_wrong_lines_are_refused(verdicts: list[Verdict], wrong_lines: dict[str, list[str]]) -> None:
    judged = dict(zip(wrong_lines, verdicts[-len(wrong_lines) :], strict=True))
    assert [name for name, verdict in judged.items() if verdict["code"] == 0] == []
    assert judged["unknown flag"]["code"] == 2
    assert "--no-such-flag" in str(judged["unknown flag"]["error"])
