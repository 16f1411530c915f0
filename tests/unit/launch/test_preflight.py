"""The preflight: every trap has a plain message, and a good machine passes."""

from dataclasses import replace
from pathlib import Path

import pytest

from service.launch.facts import EngineFacts, Gpu, MachineFacts
from service.launch.preflight import ENGINE_MODULES, M3_DSPARK_MODULE, Verdict, check_machine, is_ready
from service.launch.profile import KvDtype, WorkerProfile
from service.launch.profiles import Overrides, apply_overrides, build_cpu_small_profile, build_m31_flash_profile

M31 = build_m31_flash_profile()
CPU = build_cpu_small_profile(Path("/models/small"))
B200 = Gpu("NVIDIA B200", (10, 0), 183_359 * 2**20)
ENGINE = EngineFacts(
    python="/opt/engine/bin/python",
    vllm_version="0.34.0",
    torch_version="2.13.0",
    torch_cuda="13.0",
    modules=frozenset(ENGINE_MODULES),
)
GOOD = MachineFacts(
    gpus=(B200,) * 4,
    driver_version="580.10",
    driver_cuda="13.0",
    engine=ENGINE,
    memory_available_bytes=64e9,
    machine="x86_64",
    system="Linux",
)


def failures(profile: WorkerProfile, facts: MachineFacts) -> dict[str, str]:
    checks = check_machine(profile, facts)
    failed = {check.name: check.message for check in checks if check.verdict is Verdict.FAILED}
    assert is_ready(checks) is (not failed)
    assert all(check.cure for check in checks if check.verdict is not Verdict.PASSED)
    return failed


def warnings(profile: WorkerProfile, facts: MachineFacts) -> set[str]:
    return {check.name for check in check_machine(profile, facts) if check.verdict is Verdict.WARNING}


def test_four_b200_with_everything_are_ready() -> None:
    assert failures(M31, GOOD) == {}
    assert warnings(M31, GOOD) == {"dspark with nvfp4"}


def test_each_node_needs_its_share_of_the_gpus() -> None:
    wide = apply_overrides(M31, Overrides(tensor_parallel=8))
    assert set(failures(wide, GOOD)) == {"gpu"}
    assert failures(apply_overrides(wide, Overrides(nodes=2)), GOOD) == {}


def test_a_machine_without_gpu_or_engine_says_both() -> None:
    told = failures(M31, MachineFacts())
    assert set(told) == {"gpu", "vllm"}
    assert "nvidia-smi is not on this machine" in told["gpu"]


def test_a_profile_with_faults_is_not_ready() -> None:
    assert set(failures(apply_overrides(M31, Overrides(shutdown_grace_s=0)), GOOD)) == {"limits.shutdown_grace_s"}


@pytest.mark.parametrize(
    ("facts", "check", "words"),
    [
        (replace(GOOD, gpus=()), "gpu", "lists no GPU"),
        (replace(GOOD, gpus=(B200,) * 2), "gpu", "2 GPU(s) (NVIDIA B200); the profile needs 4"),
        (replace(GOOD, gpus=(replace(B200, compute_capability=(9, 0)),) * 4), "compute capability", "9.0, but"),
        (replace(GOOD, gpus=(replace(B200, compute_capability=(12, 1)),) * 4), "compute capability", "DeepGEMM"),
        (replace(GOOD, gpus=(replace(B200, compute_capability=None),) * 4), "compute capability", "does not tell"),
        (replace(GOOD, gpus=(replace(B200, memory_bytes=80e9),) * 4), "gpu memory", "1,048,576 asked"),
        (replace(GOOD, gpus=(replace(B200, memory_bytes=40e9),) * 4), "gpu memory", "= 0 tokens"),
        (replace(GOOD, gpus=(replace(B200, memory_bytes=None),) * 4), "gpu memory", "does not tell"),
        (replace(GOOD, driver_cuda="12.8"), "driver", "carries CUDA 12.8; the engine's torch was built for 13.0"),
        (replace(GOOD, driver_cuda=None), "driver", "does not tell"),
        (replace(GOOD, engine=None, engine_problem="/x does not exist"), "vllm", "/x does not exist"),
        (replace(GOOD, engine=replace(ENGINE, vllm_version=None)), "vllm", "not installed for /opt"),
        (replace(GOOD, engine=replace(ENGINE, torch_cuda=None)), "torch", "CPU build"),
    ],
)
def test_each_trap(facts: MachineFacts, check: str, words: str) -> None:
    told = failures(M31, facts)
    assert set(told) == {check}
    assert words in told[check]


@pytest.mark.parametrize(
    ("missing", "check"),
    [("vllm.models.minimax_m3", "m3 architecture"), ("vllm.third_party.fmha_sm100", "msa kernels")],
)
def test_modules_are_looked_for(missing: str, check: str) -> None:
    facts = replace(GOOD, engine=replace(ENGINE, modules=ENGINE.modules - {missing}))
    assert set(failures(M31, facts)) == {check}


def test_the_dspark_draft_is_looked_for_not_inferred() -> None:
    facts = replace(GOOD, engine=replace(ENGINE, modules=ENGINE.modules - {M3_DSPARK_MODULE}))
    assert failures(M31, facts) == {
        "dspark draft": f"{M3_DSPARK_MODULE} is not in the installed vLLM 0.34.0",
    }
    assert failures(apply_overrides(M31, Overrides(speculation="none")), facts) == {}


def test_hopper_may_run_fp8_if_the_operator_says_so() -> None:
    hopper = replace(GOOD, gpus=(replace(B200, compute_capability=(9, 0)),) * 4)
    assert failures(apply_overrides(M31, Overrides(kv_dtype=KvDtype.FP8)), hopper) == {}
    ampere = replace(GOOD, gpus=(replace(B200, compute_capability=(8, 0)),) * 4)
    assert set(failures(apply_overrides(M31, Overrides(kv_dtype=KvDtype.FP8)), ampere)) == {"compute capability"}


def test_warnings_do_not_stop() -> None:
    assert "dspark schedule" in warnings(apply_overrides(M31, Overrides(schedule="off")), GOOD)
    assert "gpu memory" in warnings(replace(M31, footprint=None), GOOD)


def test_other_models_are_not_asked_for_m3() -> None:
    bare = replace(GOOD, engine=replace(ENGINE, modules=frozenset()))
    other = replace(apply_overrides(M31, Overrides(speculation="none")), is_m3=False)
    assert failures(other, bare) == {}


def test_cpu_machine_is_ready_built_or_not() -> None:
    assert failures(CPU, GOOD) == {}
    assert warnings(CPU, replace(GOOD, engine=None)) == {"cpu engine"}


@pytest.mark.parametrize(
    ("facts", "check"),
    [
        (replace(GOOD, machine="aarch64"), "platform"),
        (replace(GOOD, system="Darwin"), "platform"),
        (replace(GOOD, memory_available_bytes=3e9), "memory"),
        (replace(GOOD, memory_available_bytes=None), "memory"),
    ],
)
def test_cpu_machine_traps(facts: MachineFacts, check: str) -> None:
    assert set(failures(CPU, facts)) == {check}
