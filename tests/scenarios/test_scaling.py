"""Days of scaling, shortened: the law keeps its bounds beside the best that others do."""

from dataclasses import replace

import pytest

from loadtests.sim.curves import read_curves
from loadtests.sim.day import Curve, Day, DayFigures, simulate_day
from loadtests.sim.scalers import build_law, list_baselines
from loadtests.sim.scaling import choose_best, run_arm

SEED = 7
DAY = Day()


@pytest.fixture(scope="module")
def curve() -> Curve:
    return Curve(read_curves())


def run_law(day: Day, curve: Curve, **changes: object) -> DayFigures:
    return simulate_day(day, build_law(day, SEED, **changes), curve, SEED)


def test_contracts_are_kept_for_less_than_the_best_of_each_baseline(curve: Curve) -> None:
    law = run_law(DAY, curve)
    assert law.attainment >= 0.995
    assert law.direction_changes_most <= 4
    settings = ("queued within contracts 3", "num_requests_waiting 5", "factors 2 and 1", "150 %", "16 workers")
    arms = [arm for arm in list_baselines() if arm.setting.startswith(settings)]
    for name in {arm.name for arm in arms}:
        found = [run_arm((arm.name, arm.setting, DAY, (SEED,))) for arm in arms if arm.name == name]
        best = choose_best(found).figures
        assert law.worker_hours < best.worker_hours, name
        assert law.attainment > best.attainment, name


@pytest.mark.parametrize("cold_start_s", [300.0, 960.0])
def test_contracts_are_kept_with_other_cold_starts(curve: Curve, cold_start_s: float) -> None:
    law = run_law(replace(DAY, cold_start_s=cold_start_s), curve)
    assert law.attainment >= 0.995
    assert law.direction_changes_most <= 4


def test_the_target_never_falls_while_nothing_is_known_at_the_peak(curve: Curve) -> None:
    dark = replace(DAY, dark_h=(14.1, 14.1 + 1.0 / 6.0), begin_h=8.0, hours=8.0)
    figures = run_law(dark, curve)
    assert figures.falls_in_the_dark == 0
    assert figures.attainment >= 0.99


def test_without_forecast_it_still_beats_a_queue(curve: Curve) -> None:
    law = run_law(DAY, curve, use_forecast=False)
    arms = [arm for arm in list_baselines() if arm.name == "hpa-queue" and "within contracts" in arm.setting]
    arms = [arm for arm in arms if " 3 each" in arm.setting or " 2 each" in arm.setting]
    queue = choose_best([run_arm((arm.name, arm.setting, DAY, (SEED,))) for arm in arms]).figures
    assert law.worker_hours < queue.worker_hours
    assert law.attainment >= queue.attainment or queue.attainment >= 0.99
