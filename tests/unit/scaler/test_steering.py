"""Decisions from what Prometheus holds, and from what it does not."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from service.domain.tier import Tier
from service.domain.units import TierName
from service.scaler.config import SteeringConfig, derive_budgets
from service.scaler.loop import steer, take_step
from service.scaler.page import Bulletin
from service.scaler.queries import Part, Window, build_miss_query, build_queries
from service.scaler.source import Labels
from service.scaler.steering import decide, describe, find_begin, find_step, list_changes
from service.slo.scaling import Decision, ScalingConfig
from tests.support.written_prometheus import Value, WrittenPrometheus, label, write_pool

CONFIG = SteeringConfig(
    "m3", 'job="sluice"', {TierName("gold"): 0.01}, ScalingConfig(workers_most=40, use_forecast=False)
)
NOW = 1_764_590_400.0


async def ask(source: WrittenPrometheus, config: SteeringConfig = CONFIG, at: float = NOW) -> Decision:
    return await decide(config, source, at)


async def test_demand_becomes_a_target() -> None:
    decision = await ask(write_pool(CONFIG, lambda _: 9.0, lambda _: 11.0))
    assert decision.target == 11
    assert decision.complete
    assert describe(decision)["reactive"] == 10


async def test_two_scalers_give_the_same_answer_whenever_they_were_started() -> None:
    def demand(at: float) -> float:
        return 6.0 + 4.0 * ((at // 1700.0) % 3.0)

    def build() -> WrittenPrometheus:
        return write_pool(CONFIG, demand, lambda _: 14.0, capacity_burn=0.2)

    early, late = build(), build()
    for step in range(20):
        at = NOW + 30.0 * step
        first = await ask(early, at=at)
        if step >= 15:  # the other one has just begun, and asks a little later within the step
            assert await ask(late, at=find_step(CONFIG, at + CONFIG.lag_s + 12.3)) == first


async def test_an_earlier_day_is_remembered() -> None:
    config = replace(CONFIG, scaling=ScalingConfig(workers_most=40))
    rise = NOW % 86_400.0 + 300.0  # five minutes from now, as every day

    def demand(at: float) -> float:
        return 12.0 if at % 86_400.0 > rise else 4.0

    decision = await ask(write_pool(config, demand, lambda _: 6.0), config)
    assert decision.foreseen == pytest.approx(12.0)
    assert decision.target == 14


async def test_burn_of_capacity_raises_and_other_burn_only_holds() -> None:
    assert (await ask(write_pool(CONFIG, lambda _: 3.0, lambda _: 8.0, burn=20.0))).target == 8
    assert (await ask(write_pool(CONFIG, lambda _: 3.0, lambda _: 8.0))).target < 8  # type: ignore[operator]
    burning = await ask(write_pool(CONFIG, lambda _: 3.0, lambda _: 8.0, burn=20.0, capacity_burn=20.0))
    assert burning.parts.burn == 12


def without(part: Part) -> Callable[[WrittenPrometheus], None]:
    def forget(source: WrittenPrometheus) -> None:
        source.series[build_queries(CONFIG)[part]] = {}

    return forget


def half(part: Part, name: Labels) -> Callable[[WrittenPrometheus], None]:
    def forget(source: WrittenPrometheus) -> None:
        query = build_queries(CONFIG)[part]
        kept: Mapping[Labels, Value] = {
            labels: value for labels, value in source.series[query].items() if labels != name
        }
        source.series[query] = kept

    return forget


def forget_misses(source: WrittenPrometheus) -> None:
    source.series[build_miss_query(CONFIG, Window.H1, False)] = {}


@pytest.mark.parametrize(
    "forget",
    [
        without(Part.DEMAND),
        without(Part.GATEWAYS),
        without(Part.TARGETS),
        without(Part.WORKERS),
        half(Part.DEMAND, label("claim", "excess")),
        half(Part.WORKERS, label("state", "resting")),
        forget_misses,
    ],
)
async def test_what_is_not_there_lowers_nothing(forget: Callable[[WrittenPrometheus], None]) -> None:
    source = write_pool(CONFIG, lambda _: 2.0, lambda _: 12.0)
    assert (await ask(source)).target < 12  # type: ignore[operator]
    forget(source)
    decision = await ask(source)
    assert decision.target is None or decision.target >= (12 if decision.parts.reactive is None else 4)
    assert not decision.complete


async def test_optional_parts_may_be_missing() -> None:
    source = write_pool(CONFIG, lambda _: 9.0, lambda _: 11.0)
    for part in (Part.KV, Part.PERMITS, Part.QUEUED, Part.HELD):
        without(part)(source)
    assert (await ask(source)).complete


async def test_a_gateway_that_went_missing_makes_the_rest_only_a_part() -> None:
    """Half of the demand is no longer told; the target stays, for the rest of a quarter of an hour and the hold."""
    at_half = NOW - 300.0
    source = write_pool(
        CONFIG,
        lambda at: 12.0 if at < at_half else 3.0,
        lambda _: 15.0,
        gateways=lambda at: 2.0 if at < at_half else 1.0,
    )
    source.series[build_queries(CONFIG)[Part.TARGETS]] = {(): lambda at: 2.0 if at < at_half else 1.0}
    decision = await ask(source)
    assert decision.target == 15
    assert not decision.complete


async def test_ten_minutes_of_darkness_at_the_peak_never_lower_the_target() -> None:
    dark = (NOW - 900.0, NOW - 300.0)

    def lit(value: float) -> Value:
        return lambda at: None if dark[0] <= at < dark[1] else value

    source = write_pool(CONFIG, lit(12.0), lit(15.0), gateways=lit(2.0))
    targets = [(await ask(source, at=NOW - 1200.0 + 30.0 * step)).target for step in range(60)]
    assert set(targets) == {15}


async def test_nothing_known_is_no_number() -> None:
    source = write_pool(CONFIG, lambda _: None, lambda _: None, gateways=lambda _: None)
    decision = await ask(source)
    assert decision.target is None


async def test_the_last_target_stands_while_prometheus_is_away() -> None:
    source = write_pool(CONFIG, lambda _: 9.0, lambda _: 11.0)
    bulletin = Bulletin("m3", lambda: NOW + 90.0)
    assert bulletin.input_age_s is None
    assert await take_step(CONFIG, source, bulletin, NOW) is not None
    source.away = True
    assert await take_step(CONFIG, source, bulletin, NOW + 30.0) is None
    assert bulletin.decision is not None
    assert bulletin.decision.target == 11
    assert (bulletin.failures, bulletin.input_age_s) == (1, 90.0)
    source.away = False
    source.series = write_pool(CONFIG, lambda _: None, lambda _: None, gateways=lambda _: None).series
    await take_step(CONFIG, source, bulletin, NOW + 60.0)
    assert bulletin.decision.target == 11


async def test_each_step_is_taken_once() -> None:
    config = replace(CONFIG, step_s=0.125, lag_s=0.0)
    source = write_pool(config, lambda _: 9.0, lambda _: 11.0)
    await decide(config, source, NOW)
    once, source.asked = source.asked, 0
    bulletin, stop, looks = Bulletin("m3", lambda: NOW), asyncio.Event(), 0

    def wall() -> float:
        nonlocal looks
        looks += 1
        if looks == 5:
            stop.set()
        return NOW if looks < 4 else NOW + 0.125

    await steer(config, source, bulletin, stop, wall)
    assert (looks, source.asked) == (5, 2 * once)


def test_an_operator_is_told_of_changes_only() -> None:
    one = asyncio.run(ask(write_pool(CONFIG, lambda _: 9.0, lambda _: 11.0)))
    assert list_changes(None, one)[0] == "11 workers, was unknown"
    assert list_changes(one, one) == ()
    assert list_changes(one, replace(one, target=12))[0] == "12 workers, was 11"


def test_the_grid_is_everybodys() -> None:
    assert find_step(CONFIG, 64.9) == 30.0
    assert find_step(CONFIG, 65.0) == 60.0
    assert find_begin(CONFIG, 36_000.0) == 28_800.0
    assert find_begin(CONFIG, 39_599.0) == 28_800.0


@pytest.mark.parametrize("selector", ["job=sluice", "sum(up)", 'job="a"} or vector(0', 'job="a",'])
def test_a_selector_is_label_matchers_and_nothing_else(selector: str) -> None:
    with pytest.raises(ValueError, match="selector"):
        SteeringConfig("m3", selector)


def test_selectors_may_be_several_or_none() -> None:
    assert SteeringConfig("m3", 'job="a",namespace=~"b|c"').selector
    assert "{}" in build_queries(SteeringConfig("m3"))[Part.PERMITS]
    assert build_miss_query(SteeringConfig("m3"), Window.H1, False).startswith("sum by (tier) (increase(")


def test_budgets_are_what_the_tiers_leave() -> None:
    tiers = {
        TierName("gold"): Tier(TierName("gold"), 0, availability=0.999, attainment=0.98, tpot_target_s=0.05),
        TierName("silver"): Tier(TierName("silver"), 1, availability=0.99),
        TierName("flex"): Tier(TierName("flex"), 2, best_effort=True),
    }
    assert derive_budgets(tiers) == {"gold": 0.02, "silver": 0.01}
