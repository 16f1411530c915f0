"""Profiles: what is consistent, what is refused, and what an operator may change."""

from dataclasses import replace
from pathlib import Path

import pytest

from service.launch.fault import LaunchRefusedError
from service.launch.profile import KvCache, KvDtype, Layout, WorkerProfile, find_profile_faults, require_valid
from service.launch.profiles import Overrides, apply_overrides, build_cpu_small_profile, build_m31_flash_profile
from service.launch.speculation import DsparkSpeculation, NgramSpeculation, NoSpeculation, ScheduleStep

M31 = build_m31_flash_profile()
CPU = build_cpu_small_profile(Path("/models/small"))


def fields_of(profile: WorkerProfile) -> list[str]:
    return [fault.field for fault in find_profile_faults(profile)]


@pytest.mark.parametrize("profile", [M31, CPU])
def test_shipped_profiles_are_valid(profile: WorkerProfile) -> None:
    require_valid(profile)


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        (Overrides(context_tokens=0), "limits.context_tokens"),
        (Overrides(context_tokens=2_000_000), "limits.context_tokens"),
        (Overrides(running_requests=0), "limits.running_requests"),
        (Overrides(in_flight_requests=255), "limits.in_flight_requests"),
        (Overrides(prefill_backlog_tokens=1000), "limits.prefill_backlog_tokens"),
        (Overrides(shutdown_grace_s=0), "limits.shutdown_grace_s"),
        (Overrides(tensor_parallel=3), "layout.tensor_parallel"),
        (Overrides(data_parallel=0), "layout.data_parallel"),
        (Overrides(data_parallel=2), "speculation.schedule"),
        (Overrides(nodes=0), "layout.nodes"),
        (Overrides(nodes=3), "layout.nodes"),
        (Overrides(nodes=2, data_parallel=2, schedule="off"), "layout.nodes"),
    ],
)
def test_each_rule_names_its_field(overrides: Overrides, field: str) -> None:
    assert fields_of(apply_overrides(M31, overrides)) == [field]


def test_rules_without_an_override() -> None:
    assert fields_of(replace(M31, limits=replace(M31.limits, keep_alive_s=5))) == ["limits.keep_alive_s"]
    assert fields_of(replace(M31, kv_cache=KvCache(dtype=KvDtype.NVFP4, block_tokens=64))) == ["kv_cache.block_tokens"]
    wrong = replace(CPU, kv_cache=KvCache(dtype=KvDtype.NVFP4))
    assert fields_of(wrong) == ["kv_cache.dtype", "kv_cache.cpu_space_gib"]


def test_all_faults_are_told_at_once() -> None:
    wrong = apply_overrides(M31, Overrides(tensor_parallel=5, shutdown_grace_s=0, context_tokens=-1))
    with pytest.raises(LaunchRefusedError) as refused:
        require_valid(wrong)
    assert len(refused.value.faults) == 3
    assert str(refused.value).count("Cure:") == 3


def test_no_override_changes_nothing() -> None:
    assert apply_overrides(M31, Overrides()) == M31
    assert apply_overrides(CPU, Overrides()) == CPU


def test_running_requests_carry_the_valve_with_them() -> None:
    limits = apply_overrides(M31, Overrides(running_requests=100)).limits
    assert (limits.running_requests, limits.in_flight_requests) == (100, 121)


def test_a_layout_counts_its_devices() -> None:
    assert Layout(tensor_parallel=4, data_parallel=2).devices == 8


def test_speculation_can_be_chosen() -> None:
    assert apply_overrides(M31, Overrides(speculation="none")).speculation == NoSpeculation()
    assert apply_overrides(M31, Overrides(speculation="dspark")).speculation == M31.speculation
    assert apply_overrides(CPU, Overrides(speculation="dspark")).speculation == DsparkSpeculation()
    ngram = apply_overrides(CPU, Overrides(speculation="ngram", guessed_tokens=5))
    assert ngram.speculation == NgramSpeculation(guessed_tokens=5)
    assert apply_overrides(ngram, Overrides(speculation="ngram")).speculation == ngram.speculation


def test_fewer_guessed_tokens_lower_the_schedule() -> None:
    chosen = apply_overrides(M31, Overrides(guessed_tokens=2)).speculation
    assert chosen == DsparkSpeculation(
        guessed_tokens=2, schedule=(ScheduleStep(1, 32, 2), ScheduleStep(33, 128, 2), ScheduleStep(129, 1024, 0))
    )


def test_schedule_can_be_written_or_switched_off() -> None:
    assert apply_overrides(M31, Overrides(schedule="off")).speculation == DsparkSpeculation()
    chosen = apply_overrides(M31, Overrides(schedule="1-8:5, 9-512:1")).speculation
    assert chosen == DsparkSpeculation(schedule=(ScheduleStep(1, 8, 5), ScheduleStep(9, 512, 1)))


@pytest.mark.parametrize(
    ("profile", "overrides", "field"),
    [
        (M31, Overrides(speculation="magic"), "speculation"),
        (CPU, Overrides(guessed_tokens=3), "speculation.guessed_tokens"),
        (CPU, Overrides(speculation="ngram", schedule="1-9:3"), "speculation.schedule"),
        (M31, Overrides(schedule="1-x:3"), "speculation.schedule"),
    ],
)
def test_overrides_that_make_no_sense_are_refused(profile: WorkerProfile, overrides: Overrides, field: str) -> None:
    with pytest.raises(LaunchRefusedError) as refused:
        apply_overrides(profile, overrides)
    assert [fault.field for fault in refused.value.faults] == [field]
