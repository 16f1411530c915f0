"""Closed forms: the machine's best steady state, and what of an offer fits into it."""

import math

import pytest

from loadtests.sim.bounds import (
    Work,
    compute_ideal_attainment,
    compute_peak,
    compute_token_cost_s,
    count_most_good,
    find_drafts,
)
from loadtests.sim.lengths import MIXED, UNIFORM, MeanSize, compute_mean
from loadtests.sim.scenario import ANCHOR, SCENARIOS
from service.emulator.profiles import M31_FLASH


def test_the_anchor_machine_peaks_where_the_real_one_did():
    peak = compute_peak(ANCHOR, compute_mean(UNIFORM), 0.05)
    assert peak.batch == 16
    assert peak.requests_per_s == pytest.approx(51.0, rel=0.02)


def test_drafts_follow_the_schedule():
    assert find_drafts(M31_FLASH, 1) == (7, 2.8)
    assert find_drafts(M31_FLASH, 100) == (3, 2.1)
    assert find_drafts(M31_FLASH, 200) == (0, 1.0)


def test_a_tighter_target_never_raises_the_peak():
    mean = compute_mean(MIXED)
    peaks = [compute_peak(M31_FLASH, mean, target_s).requests_per_s for target_s in (0.015, 0.025, 0.05, math.inf)]
    assert peaks == sorted(peaks)
    assert compute_peak(M31_FLASH, mean, 0.001).requests_per_s == 0.0


def test_a_peak_respects_the_kv_cache():
    long = MeanSize(200_000.0, 1_000.0, 100.0)
    assert compute_peak(M31_FLASH, long).batch * 200_000 <= M31_FLASH.kv_blocks * M31_FLASH.block_size


def test_the_token_cost_is_below_that_of_the_peak():
    peak = compute_peak(ANCHOR, compute_mean(UNIFORM))
    assert compute_token_cost_s(ANCHOR, math.inf) <= 1.0 / peak.tokens_per_s
    assert compute_token_cost_s(ANCHOR, 1e-6) == math.inf


def test_the_cheapest_come_first():
    works = [Work(0, 3.0), Work(1, 1.0), Work(1, 1.0), Work(0, 5.0)]
    assert count_most_good(works, 2.5) == 2
    assert count_most_good(works, 100.0) == 4
    assert count_most_good([], 1.0) == 0


def test_strict_priority_fills_the_dearest_tier_first():
    works = [Work(0, 1.0)] * 4 + [Work(1, 1.0)] * 8 + [Work(2, 0.1)]
    assert compute_ideal_attainment(works, 8.0) == {0: 1.0, 1: 0.5, 2: 0.0}
    assert compute_ideal_attainment(works, 2.0) == {0: 0.5, 1: 0.0, 2: 0.0}
    assert compute_ideal_attainment([], 1.0) == {}


def test_load_one_is_what_the_machines_can_do():
    assert SCENARIOS["uniform"].compute_capacity_rps() == 8 * 39.0
    mixed = SCENARIOS["mixed"]
    assert mixed.compute_tightest_tpot_s() == 0.025
    assert mixed.compute_capacity_rps() == pytest.approx(
        8 * compute_peak(M31_FLASH, compute_mean(MIXED), 0.025).requests_per_s
    )
