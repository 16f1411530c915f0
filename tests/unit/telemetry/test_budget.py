"""Events as objectives count them, and the budgets that follow."""

import pytest

from service.domain.mark import Mark
from service.domain.outcome import Outcome
from service.domain.tier import Tier
from service.slo.objective import Speed
from service.slo.verdict import MET, judge
from service.slo.window import THIRTY_DAYS, WindowPair, WindowPlan
from service.telemetry.budget import Budgets
from service.telemetry.labels import NO_TIER
from service.telemetry.slo_events import SloEvents
from tests.support.telemetry import TIERS, build_settlement, build_stream

GOLD = Tier("gold", 0, availability=0.999, attainment=0.99, ttft_targets_s=((4096, 2.5),), tpot_target_s=0.05)


def settle(events, settlement, tier=GOLD):
    settlement.tier = tier.name if tier else None
    settlement.verdict = judge(settlement, tier)
    events.settle(settlement)


def count(events, **labels):
    (family,) = events.families()
    names = family.metric.labels
    found = [value for given, value in family.values if labels.items() <= dict(zip(names, given, strict=True)).items()]
    return sum(found)


def test_every_label_set_is_there_at_zero():
    (family,) = SloEvents(["gold", "flex"], "model").families()
    assert len(family.values) == 3 * 4 * 3
    assert {value for _, value in family.values} == {0}
    assert {labels[0] for labels, _ in family.values} == {"gold", "flex", NO_TIER}
    assert {labels[1] for labels, _ in family.values} == {"model"}


def test_the_usual_verdict_counts_as_good_four_times():
    events = SloEvents(["gold"], "m")
    settle(events, build_stream())
    assert judge(build_stream(), GOLD) is MET
    for slo in ("availability", "ttft", "tpot", "all"):
        assert count(events, tier="gold", slo=slo, result="good") == 1
        assert count(events, slo=slo) == 1


def test_late_is_bad_for_the_first_token_and_for_all_only():
    events = SloEvents(["gold"], "m")
    settle(events, build_stream(first_token_at=103.0))
    bad = {slo: count(events, slo=slo, result="bad") for slo in ("availability", "ttft", "tpot", "all")}
    assert bad == {"availability": 0, "ttft": 1, "tpot": 0, "all": 1}


@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize("mark", [None, *Mark])
def test_each_request_counts_once_by_availability(outcome, mark):
    events = SloEvents(["gold"], "m")
    settlement = build_settlement(outcome=outcome, tier="gold")
    settlement.marks = frozenset() if mark is None else frozenset((mark,))
    settle(events, settlement)
    assert count(events, slo="availability") == 1
    assert count(events, slo="all") == 1


def test_whoever_is_not_known_and_whoever_was_not_judged():
    events = SloEvents(["gold"], "m")
    settle(events, build_settlement(outcome=Outcome.UNAUTHENTICATED), None)
    assert count(events, tier=NO_TIER, slo="availability", result="excluded") == 1
    events.settle(build_settlement())
    assert count(events, slo="availability") == 1


def test_another_tier_begins_at_zero_and_the_one_that_goes_stays():
    events = SloEvents(["gold"], "m")
    settle(events, build_stream())
    events.reconfigure(["silver"])
    assert count(events, tier="gold", slo="all", result="good") == 1
    assert count(events, tier="silver") == 0
    assert events.counts()["gold", "all"] == (0, 1)
    assert events.counts()["silver", "all"] == (0, 0)


def test_a_reading_gives_rates_and_what_is_left():
    budgets = Budgets([GOLD], "m", 0.0)
    for _ in range(99):
        settle(budgets.events, build_stream())
    settle(budgets.events, build_settlement(outcome=Outcome.WORKER_FAILED))
    assert all(not family.values for family in list(budgets.families())[1:]), "no reading yet"
    budgets.observe(10.0)
    families = {family.metric.name: dict(family.values) for family in budgets.families()}
    rates = families["sluice_slo_burn_rate"]
    assert rates["gold", "availability", "5m"] == pytest.approx(10.0)
    assert rates["gold", "all", "3d"] == pytest.approx(1.0)
    assert families["sluice_slo_budget_left_ratio"]["gold", "availability"] == pytest.approx(-9.0)
    assert ("gold", "ttft", "5m") in rates
    (first, *_) = budgets.describe()
    assert first["burn_rates"]["5m"] == pytest.approx(10.0)
    assert (first["tier"], first["slo"], first["objective"], first["burning"]) == ("gold", "availability", 0.999, [])


def test_three_failures_burn_and_another_promise_may_not():
    plan = WindowPlan("x", 7200, 60, (WindowPair(Speed.FAST, 60, 5, 14.4),))
    budgets = Budgets([GOLD], "m", 0.0, plan)
    for _ in range(3):
        settle(budgets.events, build_settlement(outcome=Outcome.WORKER_FAILED))
    budgets.observe(10.0)
    assert budgets.describe()[0]["burning"] == ["fast"]
    budgets.reconfigure([Tier("gold", 0, best_effort=True), *TIERS])
    assert budgets.describe() == []
    assert THIRTY_DAYS.windows_s[0] == 300


def test_misses_are_counted_by_cause_and_exist_from_the_start():
    events = SloEvents(["gold"], "model")
    (family,) = events.misses()
    assert all(count == 0 for _, count in family.values)
    for outcome in (Outcome.EXPIRED, Outcome.STREAM_BROKEN):
        settle(events, build_settlement(outcome=outcome))
    settle(events, build_stream())
    (family,) = events.misses()
    counts = {cause: count for (tier, cause), count in family.values if tier == "gold"}
    assert (counts["capacity"], counts["worker"], counts["deploy"]) == (1, 1, 0)


def test_only_misses_for_want_of_capacity_strain_and_a_few_are_chance():
    budgets = Budgets([GOLD, Tier("flex", 1, best_effort=True)], "m", 0.0)
    for outcome, count_ in ((Outcome.COMPLETED, 90), (Outcome.STREAM_BROKEN, 10), (Outcome.EXPIRED, 2)):
        for _ in range(count_):
            settlement = build_stream() if outcome is Outcome.COMPLETED else build_settlement(outcome=outcome)
            settle(budgets.events, settlement)
    budgets.observe(10.0)
    assert budgets.strains() == ()
    settle(budgets.events, build_settlement(outcome=Outcome.EXPIRED))
    budgets.observe(20.0)
    (strain,) = budgets.strains()
    assert strain.tier == "gold"
    assert strain.short == strain.long == pytest.approx(3 / 103 / 0.01)
