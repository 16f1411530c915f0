"""Rules: their names, their order, what each gate adds. What they do on figures is tested with promtool."""

from dataclasses import replace

from service.domain.tier import Tier
from service.slo.alerts import (
    ALERTS,
    ALL_GATES,
    Gates,
    build_burn_alert,
    build_common_alerts,
    build_probe_alerts,
    build_tier_alerts,
)
from service.slo.objective import Indicator, Severity, Speed, TierObjectives, derive_objectives
from service.slo.part_alerts import build_part_alerts
from service.slo.rules import EVENTS_METRIC, build_recordings, list_thresholds
from service.telemetry.labels import NO_TIER
from tests.unit.slo.test_window import PLAN

TIER = derive_objectives(
    Tier("gold", 0, availability=0.999, attainment=0.99, ttft_targets_s=((4096, 1.0),), tpot_target_s=0.025)
)


def test_each_window_has_events_bad_and_ratio_and_the_period_too():
    names = [rule.name for group in build_recordings(PLAN) for rule in group.rules]
    windows = ["5m", "30m", "1h", "2h", "6h", "1d", "30d"]
    expected = [f"slo:{what}{w}" for w in windows for what in ("events:increase", "bad:increase", "bad:ratio")]
    assert sorted(names) == sorted(expected)
    assert all(not rule.alert for group in build_recordings(PLAN) for rule in group.rules)


def test_the_period_is_a_sum_of_hours_and_the_last_hour_stands_in_at_first():
    (rule,) = [rule for group in build_recordings(PLAN) for rule in group.rules if rule.name == "slo:bad:increase30d"]
    assert rule.expr == "sum_over_time(slo:bad:increase1h[30d:1h]) or slo:bad:increase1h"


def test_increase_comes_before_sum_and_requests_of_no_tier_are_left_out():
    rules = {rule.name: rule.expr for group in build_recordings(PLAN) for rule in group.rules}
    selector = f'tier!="{NO_TIER}",result="bad"'
    assert rules["slo:bad:increase5m"] == f"sum by (tier, slo, model) (increase({EVENTS_METRIC}{{{selector}}}[5m]))"
    assert rules["slo:bad:ratio5m"] == "slo:bad:increase5m / (slo:events:increase5m > 0)"


def test_nothing_recorded_is_ever_stale():
    assert all(group.interval_s < 300 for group in build_recordings(PLAN))
    quick = build_recordings(PLAN.shrink(60), 60)
    assert {group.interval_s for group in quick} == {1, 2}


def test_each_gate_adds_its_condition():
    objective = TIER.objectives[0]

    def expr(gates):
        return build_burn_alert(PLAN, TIER, objective, Speed.FAST, Severity.PAGE, gates).expr

    full = expr(ALL_GATES)
    assert full.count("\n  and ") == 6
    assert full.count("\nor\n") == 1
    for name in ("bad_events", "budget_share", "short_window"):
        assert expr(replace(ALL_GATES, **{name: False})).count("\n  and ") == 4
    assert expr(Gates(False, False, False)).count("\n  and ") == 0
    assert "> 14.4 * 0.001" in full
    assert 'slo:bad:increase1h{tier="gold",slo="availability"} >= 0.02 * 0.001 * slo:events:increase30d' in full


def test_a_tier_has_two_speeds_of_each_objective_its_exhaustion_and_its_absence():
    silent = replace(TIER, objectives=(replace(TIER.objectives[0], fast=None), *TIER.objectives[1:]))
    names = [rule.name for rule in build_tier_alerts(PLAN, silent).rules]
    assert names.count("SluiceBudgetBurnFast") == 3
    assert names.count("SluiceBudgetBurnSlow") == names.count("SluiceBudgetExhausted") == 4
    assert names.count("SluiceFiguresAbsent") == 1
    assert build_tier_alerts(PLAN, TierObjectives("flex")).rules == ()


def test_pages_go_on_firing_for_a_while_and_tickets_do_not():
    rules = build_tier_alerts(PLAN, TIER).rules
    burning = [rule for rule in rules if "Burn" in rule.name]
    assert {(rule.labels["severity"], rule.keep_firing_s) for rule in burning} == {("page", 300), ("ticket", 0)}


def test_absence_is_told_before_an_outage_has_spent_a_hundredth_of_the_budget():
    (tight,) = [rule for rule in build_tier_alerts(PLAN, TIER).rules if rule.name == "SluiceFiguresAbsent"]
    assert tight.for_s == 60  # 26 s by the arithmetic: not below what two missed scrapes may take
    loose = derive_objectives(Tier("loose", 1, availability=0.99))
    (rule,) = [rule for rule in build_tier_alerts(PLAN, loose).rules if rule.name == "SluiceFiguresAbsent"]
    assert rule.for_s == 259  # 1 % of 1 % of 30 days


def test_probes_count_only_where_traffic_does_not():
    rules = build_probe_alerts([TIER, TierObjectives("flex")]).rules
    assert [rule.name for rule in rules] == ["SluiceProbeFailing", "SluiceProberAbsent"]
    assert "unless sum by (tier) (slo:events:increase1h" in rules[0].expr
    assert rules[0].expr.endswith(">= 20")


def test_every_alert_is_in_the_list_and_says_what_to_do():
    groups = [build_tier_alerts(PLAN, TIER), build_common_alerts(), build_probe_alerts([TIER]), build_part_alerts()]
    rules = [rule for group in groups for rule in group.rules]
    assert {rule.name for rule in rules} == set(ALERTS)
    for rule in rules:
        assert set(rule.annotations) == {"summary", "description", "runbook"}
        assert rule.annotations["runbook"] == f"slo/runbooks/{rule.name}.md"
        assert rule.labels["severity"] in ("page", "ticket", "none")


def test_every_threshold_once():
    targets = [(((4096, 1.0), (8192, 3.0)), 0.025), (((4096, 1.0),), None), ((), 0.05)]
    assert list_thresholds(targets) == ([1.0, 3.0], [0.025, 0.05])
    assert TIER.find(Indicator.TTFT) is TIER.objectives[1]
