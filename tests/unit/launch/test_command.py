"""The command lines, word for word."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from service.launch.command import Seat, build_worker_command, format_shell
from service.launch.cpu_engine import CpuEngine, build_cpu_worker_command
from service.launch.fault import LaunchRefusedError
from service.launch.profile import KvDtype
from service.launch.profiles import Overrides, apply_overrides, build_cpu_small_profile, build_m31_flash_profile

PRODUCTION = """\
VLLM_HTTP_TIMEOUT_KEEP_ALIVE=120 \\
  vllm serve MiniMaxAI/MiniMax-M3.1-Flash \\
  --host 0.0.0.0 \\
  --port 8000 \\
  --served-model-name MiniMax-M3.1-Flash \\
  --tensor-parallel-size 4 \\
  --enable-expert-parallel \\
  --block-size 128 \\
  --kv-cache-dtype nvfp4 \\
  --attention-config '{"minimax_m3_msa_decode_backend":"cutlass"}' \\
  --speculative-config '{"method":"dspark","num_speculative_tokens":7,\
"num_speculative_tokens_per_batch_size":[[1,32,7],[33,128,3],[129,1024,0]]}' \\
  --tool-call-parser minimax_m3 \\
  --enable-auto-tool-choice \\
  --reasoning-parser minimax_m3 \\
  --max-model-len 1048576 \\
  --max-num-seqs 256 \\
  --scheduling-policy priority \\
  --max-num-queued-reqs 307 \\
  --shutdown-timeout 300 \\
  --enable-per-request-metrics \\
  --enable-prompt-tokens-details \\
  --enable-request-id-headers \\
  --per-request-spec-decode-metrics summary \\
  --custom-histogram-buckets '{"time_to_first_token":[0.01,0.025,0.05,0.1,0.25,0.5,0.75,1,1.5,2.5,3,4,6,12,25,60,120],\
"inter_token_latency":[0.0025,0.005,0.01,0.015,0.02,0.025,0.03,0.04,0.05,0.075,0.1,0.25,1],\
"request_latency":[0.1,0.5,1,2.5,5,10,20,40,60,120,300,600]}' \\
  --disable-uvicorn-access-log"""

ENGINE = CpuEngine(Path("/cache/engine/bin/python"), Path("/cache/model"))


def test_production_line_is_golden() -> None:
    assert format_shell(build_worker_command(build_m31_flash_profile(), port=8000, host="0.0.0.0")) == PRODUCTION


def test_shell_text_reads_back_as_the_argument_vector() -> None:
    profile = apply_overrides(build_m31_flash_profile(), Overrides(model="/models/it's here"))
    command = build_worker_command(profile, port=8000)
    words = shlex.split(format_shell(command).replace("\\\n", " "))
    assert words == [f"{name}={value}" for name, value in command.environment] + list(command.argv)


def test_quantization_is_left_to_detection() -> None:
    assert "--quantization" not in build_worker_command(build_m31_flash_profile(), port=8000).argv


@pytest.mark.parametrize("dtype", [KvDtype.FP8, KvDtype.BFLOAT16])
def test_cutlass_decode_goes_with_an_nvfp4_cache_only(dtype: KvDtype) -> None:
    argv = build_worker_command(apply_overrides(build_m31_flash_profile(), Overrides(kv_dtype=dtype)), port=1).argv
    assert "--attention-config" not in argv
    assert argv[argv.index("--kv-cache-dtype") + 1] == dtype


def test_without_speculation_nothing_is_said_of_it() -> None:
    profile = apply_overrides(build_m31_flash_profile(), Overrides(speculation="none"))
    argv = build_worker_command(profile, port=1).argv
    assert not {"--speculative-config", "--per-request-spec-decode-metrics"} & set(argv)


def test_optional_valves_appear_when_set() -> None:
    overrides = Overrides(data_parallel=2, schedule="off", prefill_backlog_tokens=2_000_000)
    argv = build_worker_command(apply_overrides(build_m31_flash_profile(), overrides), port=1).argv
    assert argv[argv.index("--data-parallel-size") + 1] == "2"
    assert argv[argv.index("--max-num-queued-tokens") + 1] == "2000000"


@pytest.mark.parametrize(("rank", "headless"), [(0, False), (1, True)])
def test_a_worker_over_two_nodes(rank: int, headless: bool) -> None:
    profile = apply_overrides(build_m31_flash_profile(), Overrides(nodes=2, tensor_parallel=8))
    argv = build_worker_command(profile, port=8000, seat=Seat(rank, "leader.pods")).argv
    start = argv.index("--nnodes")
    assert argv[start : start + 6] == ("--nnodes", "2", "--node-rank", str(rank), "--master-addr", "leader.pods")
    assert ("--headless" in argv) is headless


@pytest.mark.parametrize("seat", [None, Seat(2, "leader.pods"), Seat(-1, "leader.pods"), Seat(1, "")])
def test_a_seat_must_fit_the_nodes(seat: Seat | None) -> None:
    profile = apply_overrides(build_m31_flash_profile(), Overrides(nodes=2))
    with pytest.raises(LaunchRefusedError, match=r"--nodes, --node-rank \(from 0\) and --leader together"):
        build_worker_command(profile, port=8000, seat=seat)


def test_cpu_worker_runs_through_the_wrapper() -> None:
    command = build_cpu_worker_command(ENGINE, 9001)
    assert command.argv[0] == "/cache/engine/bin/python"
    assert command.argv[1].endswith("engine_side/run_vllm.py")
    assert command.argv[2:8] == ("serve", "/cache/model", "--host", "127.0.0.1", "--port", "9001")
    assert "--enforce-eager" in command.argv
    assert "--tensor-parallel-size" not in command.argv
    assert dict(command.environment) == {
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "120",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
    }


def test_cpu_worker_takes_a_profile() -> None:
    profile = apply_overrides(build_cpu_small_profile(ENGINE.model_dir), Overrides(speculation="ngram"))
    argv = build_cpu_worker_command(ENGINE, 9001, profile=profile).argv
    wanted = '{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":3}'
    assert argv[argv.index("--speculative-config") + 1] == wanted


def test_parsers_are_optional() -> None:
    bare = replace(build_cpu_small_profile(ENGINE.model_dir), tool_call_parser=None)
    assert "--enable-auto-tool-choice" not in build_cpu_worker_command(ENGINE, 9001, profile=bare).argv


def test_a_faulty_profile_has_no_command() -> None:
    profile = apply_overrides(build_m31_flash_profile(), Overrides(in_flight_requests=10))
    with pytest.raises(LaunchRefusedError, match=r"limits\.in_flight_requests"):
        build_worker_command(profile, port=8000)
