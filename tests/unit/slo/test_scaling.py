"""The law of scaling: what it asks for, what it refuses to lower, and why."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.slo.reading import Burn, Demand, Reading
from service.slo.scaling import Decision, Scaling, ScalingConfig, compute_full_ratio

QUIET = Burn(0.0, 0.0, 0.0, 0.0, 0.5, 0.0)
"""Three days' burn at which workers are planned as full as the config says."""

CONFIG = ScalingConfig(workers_most=40)


def read(guaranteed: float, ready: float = 10.0, **changes: object) -> Reading:
    """A complete reading."""
    whole = Reading(Demand(guaranteed, 0.0, 0.0), 0.0, 0.2, 0.2, ready, 0.0, 0.0, QUIET)
    return replace(whole, **changes)  # type: ignore[arg-type]


def run(scaling: Scaling, reading: Reading, begin: float, minutes: float) -> Decision:
    """The same reading twice a minute; the last decision."""
    decision = scaling.decide(reading, begin)
    for step in range(1, int(minutes * 2)):
        decision = scaling.decide(reading, begin + step * 30.0)
    return decision


def tell(decision: Decision) -> str:
    return "; ".join(decision.reasons)


def test_demand_asks_for_workers_that_are_not_quite_full_and_one_to_spare() -> None:
    decision = run(Scaling(CONFIG), read(8.5), 0.0, 10.0)
    assert decision.parts.forecast == 10
    assert decision.parts.reactive == 10  # 8.5 / 0.9
    assert decision.parts.burn is None
    assert decision.target == 11
    assert "forecast asks for 10" in tell(decision)
    assert "11 wanted" in tell(decision)


def test_a_rise_is_followed_at_once_and_the_most_is_kept() -> None:
    scaling = Scaling(CONFIG)
    run(scaling, read(8.5), 0.0, 10.0)
    assert scaling.decide(read(20.0), 600.0).target == math.ceil(20.0 / 0.9) + 1
    decision = scaling.decide(read(200.0), 630.0)
    assert decision.target == 40
    assert "no more than 40 are allowed" in tell(decision)


def test_queue_slots_and_kv_ask_too() -> None:
    config = replace(CONFIG, use_forecast=False)
    queue = Scaling(config).decide(read(1.0, queued_work_s=480.0), 0.0)
    assert queue.parts.reactive == 10
    assert "to drain the queue" in tell(queue)
    assert Scaling(config).decide(read(1.0, kv_ratio=0.95), 0.0).parts.reactive == 12
    assert "KV" in tell(Scaling(config).decide(read(1.0, kv_ratio=0.95), 0.0))
    assert Scaling(config).decide(read(1.0, slots_ratio=0.99), 0.0).parts.reactive == 11
    assert "permits" in tell(Scaling(config).decide(read(1.0, slots_ratio=0.99), 0.0))


def test_excess_counts_in_part_and_best_effort_only_if_it_is_paid_for() -> None:
    config = replace(CONFIG, use_forecast=False)
    beyond = read(2.0, demand=Demand(2.0, 4.0, 50.0))
    assert Scaling(config).decide(beyond, 0.0).parts.reactive == math.ceil(3.0 / 0.9)
    paid = Scaling(replace(CONFIG, best_effort_weight=0.1))
    assert run(paid, beyond, 0.0, 5.0).parts.forecast == math.ceil((2.0 + 1.0 + 5.0) / 0.85)


def test_fast_burn_adds_half_again_once_per_lead_time() -> None:
    scaling = Scaling(CONFIG)
    burn = replace(QUIET, capacity_5m=20.0, capacity_1h=15.0, any_1h=15.0)
    first = scaling.decide(read(4.0, burn=burn), 0.0)
    assert first.parts.burn == 15
    assert "the budget asks for 15" in tell(first)
    again = scaling.decide(read(4.0, ready=10.0, starting=6.0, burn=burn), 300.0)
    assert again.parts.burn == 15  # those that start had no time to help
    assert scaling.decide(read(4.0, ready=16.0, burn=burn), 700.0).parts.burn == 24


def test_slow_burn_adds_one_and_needs_to_know_how_many_there_are() -> None:
    burn = replace(QUIET, capacity_30m=7.0, capacity_6h=6.5, any_1h=7.0)
    assert Scaling(CONFIG).decide(read(4.0, burn=burn), 0.0).parts.burn == 11
    assert Scaling(CONFIG).decide(read(4.0, ready=None, burn=burn), 0.0).parts.burn is None  # type: ignore[arg-type]


def test_misses_that_are_not_for_want_of_capacity_buy_nothing() -> None:
    scaling = Scaling(CONFIG)
    decision = scaling.decide(read(4.0, burn=replace(QUIET, any_1h=50.0)), 0.0)
    assert decision.parts.burn is None
    assert decision.target == 10


def test_a_fall_is_slow_and_only_after_half_an_hour() -> None:
    scaling = Scaling(CONFIG)
    run(scaling, read(15.0, ready=19.0), 0.0, 10.0)
    early = run(scaling, read(5.0, ready=19.0), 600.0, 25.0)
    assert early.target == 19
    assert "within the last half hour" in tell(early)
    targets = [scaling.decide(read(5.0, ready=19.0), 2100.0 + step * 30.0).target or 0 for step in range(120)]
    falls = [index for index in range(1, 120) if targets[index] < targets[index - 1]]
    assert min(falls) * 30.0 + 2100.0 >= 600.0 + 1800.0
    slots = [int((2100.0 + step * 30.0) // 300.0) for step in falls]
    assert len(set(slots)) == len(slots)
    assert targets[-1] == 19 - len(falls)
    assert len(falls) >= 4


@pytest.mark.parametrize(
    ("changes", "obstacle"),
    [
        ({"burn": replace(QUIET, any_1h=1.5)}, "the budget burns"),
        ({"demand": Demand(15.2, 0.0, 0.0)}, "too full"),
    ],
)
def test_what_keeps_a_worker(changes: dict[str, object], obstacle: str) -> None:
    scaling = Scaling(replace(CONFIG, use_forecast=False, fall_margin_ratio=0.3))
    run(scaling, read(16.0, ready=19.0), 0.0, 5.0)
    decision = run(scaling, read(15.2 if "demand" in changes else 5.0, ready=19.0, **changes), 300.0, 45.0)
    assert decision.target == 19
    assert obstacle in tell(decision)


def test_nobody_goes_while_one_is_on_its_way_but_one_that_never_comes_is_not_waited_for() -> None:
    scaling = Scaling(replace(CONFIG, use_forecast=False, lead_s=1200.0))
    run(scaling, read(5.0, ready=6.0), 0.0, 5.0)
    raised = scaling.decide(read(15.0, ready=6.0), 300.0)
    assert raised.target == 18
    waiting = run(scaling, read(5.0, ready=6.0, starting=12.0), 330.0, 31.0)
    assert "on its way" in tell(waiting)
    assert run(scaling, read(5.0, ready=6.0, starting=12.0), 2600.0, 15.0).target == 17 - 2


def test_one_slot_lets_one_go() -> None:
    scaling = Scaling(replace(CONFIG, use_forecast=False))
    decision = run(scaling, read(5.0, ready=19.0), 0.0, 31.0)
    assert decision.target == 18
    assert "one may go" in tell(scaling.decide(read(5.0, ready=18.0), 2100.0))


@pytest.mark.parametrize(
    "blind",
    [
        Reading(),
        read(5.0, age_s=1000.0),
        read(5.0, age_s=math.nan),
        read(5.0, demand=None),
        read(5.0, ready=None),  # type: ignore[arg-type]
        read(5.0, ready=math.nan),
        read(0.0, demand=Demand(math.nan, 0.0, 0.0)),
        read(0.0, demand=Demand(0.0, -1.0, 0.0)),
        read(0.0, burn=Burn()),
        read(0.0, burn=replace(QUIET, any_1h=math.inf)),
    ],
)
def test_what_is_not_known_lowers_nothing(blind: Reading) -> None:
    scaling = Scaling(CONFIG)
    before = run(scaling, read(15.0, ready=19.0), 0.0, 60.0).target or 0
    for step in range(240):
        decision = scaling.decide(blind, 3600.0 + 30.0 * step)
        assert decision.target == before
        assert not decision.complete
        assert "nothing is taken away" in tell(decision)
    after = 3600.0 + 7200.0
    assert run(scaling, read(2.0, ready=19.0), after, 25.0).target == before  # and held like a peak
    assert (run(scaling, read(2.0, ready=19.0), after + 1500.0, 20.0).target or 0) < before


def test_parts_that_are_known_still_raise() -> None:
    scaling = Scaling(CONFIG)
    run(scaling, read(5.0, ready=7.0), 0.0, 5.0)
    assert scaling.decide(read(15.0, burn=Burn()), 300.0).target == 18


def test_nothing_is_said_before_anything_is_known() -> None:
    scaling = Scaling(CONFIG)
    decision = scaling.decide(Reading(), 0.0)
    assert (decision.target, decision.wanted) == (None, None)
    assert scaling.decide(read(0.0, ready=7.0, demand=None), 30.0).target == 7
    assert Scaling(CONFIG).decide(read(5.0, ready=None), 0.0).target == 7  # type: ignore[arg-type]


def test_an_earlier_week_is_a_pattern() -> None:
    scaling = Scaling(CONFIG)
    week = 7.0 * 86_400.0
    for minute in range(180):
        scaling.remember(minute * 60.0, Demand(4.0 if minute < 60 else 12.0, 0.0, 0.0))
    decision = run(scaling, read(4.0), week, 58.0)
    assert "earlier day" in tell(decision)
    assert decision.foreseen == pytest.approx(12.0)
    assert (decision.target or 0) >= math.ceil(12.0 / 0.85) + 1
    assert scaling.forecast.foresee() is not None


def test_the_slow_budget_moves_how_full_workers_are_planned() -> None:
    def ratio(burn_3d: float | None) -> float:
        return compute_full_ratio(CONFIG, replace(QUIET, capacity_3d=burn_3d))

    assert ratio(None) == ratio(0.3) == ratio(1.0) == 0.85
    assert ratio(0.0) == pytest.approx(0.95)
    assert ratio(6.0) == ratio(60.0) == pytest.approx(0.6)
    assert 0.6 < ratio(3.0) < 0.85


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.floats(0.5, 30.0), st.sampled_from((0.02, 0.2, 1.0)))
def test_the_target_turns_at_most_four_times_an_hour_whatever_happens(seed: int, mean: float, wild: float) -> None:
    chance = random.Random(seed)
    scaling = Scaling(CONFIG)
    demand, target, turns, direction = mean, None, [], 0
    for step in range(720):
        now = step * 30.0
        demand = max(0.0, mean + (demand - mean) * 0.99 + chance.gauss(0.0, wild * mean * 0.2))
        burning = chance.random() < 0.02
        burn = replace(QUIET, capacity_5m=20.0, capacity_1h=20.0, any_1h=20.0) if burning else QUIET
        reading = read(demand, ready=float(target or 5), burn=burn) if chance.random() > 0.05 else Reading()
        decided = scaling.decide(reading, now).target
        if target is not None and decided != target:
            assert decided is not None
            towards = 1 if decided > target else -1
            if direction and towards != direction:
                turns.append(now)
            direction = towards
        target = decided if decided is not None else target
    assert all(sum(1 for other in turns if at <= other < at + 3600.0) <= 4 for at in turns)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 30))
def test_a_hole_never_lowers_the_target(seed: int) -> None:
    chance = random.Random(seed)
    scaling, before = Scaling(CONFIG), None
    for step in range(300):
        whole = read(chance.uniform(0.0, 20.0), ready=float(before or 5))
        name = chance.choice(("demand", "ready", "burn", "none"))
        blank: Burn | None = Burn() if name == "burn" else None
        reading = whole if name == "none" else replace(whole, **{name: blank})
        decided = scaling.decide(reading, step * 30.0).target
        if name != "none" and before is not None:
            assert decided is not None
            assert decided >= before
        before = decided if decided is not None else before
