"""What-if questions about capacity."""

import json
from pathlib import Path

import pytest

from service.slo.planning import (
    CELL_S,
    MISS_CURVE,
    Asked,
    Rates,
    Usage,
    answer,
    build_usage,
    compute_attainment,
    count_following_hours,
    find_miss,
    find_workers,
    find_worst_hour,
    total_attainment,
)

RATES = Rates(1000.0, 100.0)
CURVES = Path(__file__).parents[3] / "loadtests" / "reports" / "scaling.curves.json"


def ask(minutes: int, per_minute: int, rank: int = 0, begin: int = 0, output: float = 100.0) -> list[Asked]:
    """Requests of one worker-second each, evenly."""
    return [
        Asked((begin + minute) * 60.0 + 60.0 * place / per_minute, rank, 0.0, output)
        for minute in range(minutes)
        for place in range(per_minute)
    ]


def test_work_is_reading_and_writing() -> None:
    assert RATES.work_s(500.0, 50.0) == 1.0


def test_the_curve_is_what_the_detailed_simulator_measured() -> None:
    points = json.loads(CURVES.read_text())["points"]
    measured = {round(point["load"] * 0.6, 2): round(point["miss"], 5) for point in points}
    assert {fill: miss for fill, miss in MISS_CURVE if fill}.items() <= measured.items()
    assert [miss for _, miss in MISS_CURVE] == sorted(miss for _, miss in MISS_CURVE)


def test_misses_grow_with_fill_and_what_is_too_much_misses_all() -> None:
    assert find_miss(0.1) == 0.0
    known = dict(MISS_CURVE)
    assert find_miss(0.78) == known[0.78] > find_miss(0.72)
    assert find_miss(0.75) == pytest.approx((known[0.72] + known[0.78]) / 2.0)
    assert find_miss(18.0) == pytest.approx(1.0 - (1.0 - known[1.8]) / 10.0)


def test_cells_without_requests_are_cells_too() -> None:
    usage = build_usage([*ask(1, 60), *ask(1, 60, begin=3)], RATES)
    assert [usage.demand(cell) for cell in range(4)] == [1.0, 0.0, 0.0, 1.0]
    assert usage.hours == 4 * CELL_S / 3600.0
    with pytest.raises(ValueError, match="nothing was asked"):
        build_usage([], RATES)


def test_the_fewest_workers_that_do_it() -> None:
    usage = build_usage(ask(30, 600), RATES)  # ten workers' worth
    workers = find_workers(usage, 0.99)
    assert total_attainment(usage, workers) >= 0.99 > total_attainment(usage, workers - 1)
    assert find_workers(usage, 0.999) > workers
    with pytest.raises(ValueError, match="not met even by"):
        find_workers(build_usage(ask(1, 600), Rates(1.0, 1e-6)), 0.9999)


def test_dearer_tiers_are_served_first() -> None:
    usage = build_usage(sorted([*ask(10, 300), *ask(10, 300, rank=1)], key=lambda one: one.at_s), RATES)
    met = compute_attainment(usage, 8)
    assert met[0] > 0.99 > met[1]
    assert compute_attainment(usage, 0) == {0: 0.0, 1: 0.0}


def test_a_request_that_costs_nothing_misses_nothing() -> None:
    usage = Usage([{0: 5, 1: 1}], [{0: 0.0, 1: 60.0}])
    assert compute_attainment(usage, 10)[0] == 1.0


def test_a_pool_that_follows_needs_fewer_hours_than_one_that_stands() -> None:
    usage = build_usage([*ask(60, 60), *ask(60, 600, begin=60)], RATES)
    fixed = find_workers(usage, 0.99) * usage.hours
    following = count_following_hours(usage, 0.99, 600.0)
    assert following < fixed
    assert count_following_hours(usage, 0.99, 0.0) <= following
    assert count_following_hours(usage, 1.0, 0.0) > count_following_hours(usage, 0.999, 0.0)
    assert count_following_hours(usage, 0.3, 0.0) < count_following_hours(usage, 0.9, 0.0)


def test_the_worst_hour_is_the_fullest() -> None:
    usage = build_usage([*ask(60, 60), *ask(30, 600, begin=60), *ask(60, 60, begin=90)], RATES)
    worst = find_worst_hour(usage)
    assert len(worst.requests) == 60
    assert sum(worst.demand(cell) for cell in range(60)) == pytest.approx(330.0)


def test_everything_is_answered_at_once() -> None:
    usage = build_usage(sorted([*ask(90, 300), *ask(90, 300, rank=1)], key=lambda one: one.at_s), RATES)
    found = answer(usage, 0.98, 3, 600.0, (2.0, 1, 120))
    assert found.mean_demand == pytest.approx(10.0)
    assert [one.attainment for one in found.capacities] == [0.98, 0.99, 0.995, 0.999]
    assert [one.workers for one in found.capacities] == sorted(one.workers for one in found.capacities)
    nobody, worker, zone = found.losses
    assert (nobody.lost, worker.lost, zone.lost) == (0, 1, -(-found.wanted.workers // 3))
    assert nobody.overall[1] >= worker.overall[1] > zone.overall[1]
    assert found.contract is not None
    assert 1 <= found.contract.workers - found.wanted.workers <= 4
    assert found.curve[0][1] < found.curve[-1][1]
    assert answer(usage, 0.99, 3, 600.0, None).contract is None
