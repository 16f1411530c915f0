"""Builds the unit tests of the rules, as promtool runs them.

Each scenario is a stretch of time with what the gateways' counters do in it, and what has to fire when. A scenario in
which nothing may fire proves nothing by itself: the figures may be such that no rule could have fired. So each has a
*mutant*, a rule with the one precaution left out that the scenario is about, which has to fire on the same figures.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from service.rulebook.render import render_yaml
from service.slo.alerts import (
    ABSENT_ALERT,
    ALL_GATES,
    BURN_ALERTS,
    EXHAUSTED_ALERT,
    SCRAPE_ALERT,
    Gates,
    build_burn_alert,
)
from service.slo.objective import Objective, Severity, Speed, TierObjectives
from service.slo.rules import EVENTS_METRIC, Rule, RuleGroup, bad_series, events_series, ratio_series
from service.slo.window import WindowPlan, write_duration

Series = tuple[str, str]
"""A series in Prometheus' notation, and its values in promtool's."""

_FAST, _SLOW = BURN_ALERTS[Speed.FAST], BURN_ALERTS[Speed.SLOW]
_BURNING = (_FAST, _SLOW)


@dataclass(frozen=True, slots=True)
class Check:
    """At ``at_m`` minutes exactly ``firing`` of the alerts in ``among`` fire; with none, it is a check of silence."""

    at_m: int
    firing: tuple[str, ...]
    among: tuple[str, ...] = (_FAST, _SLOW, EXHAUSTED_ALERT)


@dataclass(frozen=True, slots=True)
class Scenario:
    """``mutant`` names the rule that has to fire at each of ``mutant_at_m``."""

    name: str
    series: tuple[Series, ...]
    checks: tuple[Check, ...]
    mutant: str = ""
    mutant_at_m: tuple[int, ...] = ()
    samples: tuple[tuple[int, str, tuple[tuple[str, float], ...]], ...] = ()
    """Minute, expression, and the labels and values that it has to give."""


def counter(objective: Objective, result: str, values: str, replica: str = "a") -> Series:
    """The counter of one result of one replica."""
    labels = f'tier="{objective.tier}",model="m",slo="{objective.indicator}",result="{result}",instance="{replica}"'
    return f"{EVENTS_METRIC}{{{labels}}}", values


class Steps:
    """A counter's values in promtool's notation, put together from stretches of a steady rate; one step is a minute."""

    def __init__(self, start: float = 0.0) -> None:
        self._at = start
        self._text = [f"{start:g}"]

    def rise(self, per_minute: float, minutes: int) -> "Steps":
        """Grow for so many minutes."""
        first = self._at + per_minute
        self._text.append(f"{first:.10g}+{per_minute:.10g}x{minutes - 1}")
        self._at += per_minute * minutes
        return self

    def stay(self, minutes: int) -> "Steps":
        """Nothing happens."""
        return self.rise(0.0, minutes)

    def restart(self) -> "Steps":
        """The process begins again at zero."""
        self._at = 0.0
        self._text.append("0")
        return self

    def vanish(self, minutes: int) -> "Steps":
        """No sample, as when nobody can be scraped."""
        self._text.append(f"_x{minutes}")
        return self

    def __str__(self) -> str:
        return " ".join(self._text)


def build_scenarios(objective: Objective) -> list[Scenario]:
    """What an objective's rules have to do and to leave alone."""
    budget = objective.budget_ratio
    fast = (_FAST,) if objective.fast is not None else ()
    slow = (_SLOW,) if objective.slow is not None else ()

    def good(values: Steps, replica: str = "a") -> Series:
        return counter(objective, "good", str(values), replica)

    def bad(values: Steps, replica: str = "a") -> Series:
        return counter(objective, "bad", str(values), replica)

    both = (*fast, *slow)
    # A full outage has passed 14.4 times the budget in the 1 h window after 14.4 x budget x 60 minutes.
    told_m = math.ceil(14.4 * budget * 60) + 2
    broken = max(0.05, 30 * budget)
    return [
        Scenario(
            "an outage of 20 minutes is told as soon as an hour's budget of it is spent, and the alert ends by itself",
            (good(Steps().rise(100, 120).stay(20).rise(100, 80)), bad(Steps().stay(120).rise(100, 20).stay(80))),
            (
                Check(120, ()),
                Check(120 + told_m, both, _BURNING),
                Check(172, fast if objective.fast is Severity.PAGE else (), (_FAST,)),  # it would be over: it goes on
                Check(185, (), (_FAST,)),
            ),
            "MutantLongWindowOnly",
            (175,),
        ),
        Scenario(
            "half of the allowed failures at 100 requests a second",
            (good(Steps().rise(6000 * (1 - budget / 2), 120)), bad(Steps().rise(6000 * budget / 2, 120))),
            (Check(30, ()), Check(120, ())),
            "MutantNoFactor",
            (30, 120),
        ),
        Scenario(
            "5 % of failures at 100 requests a second, or 30 times what is allowed if that is more",
            (
                good(Steps().rise(6000, 60).rise(6000 * (1 - broken), 60)),
                bad(Steps().stay(60).rise(6000 * broken, 60)),
            ),
            (Check(60, ()), Check(62 + math.ceil(14.4 * budget / broken * 60), both, _BURNING)),
        ),
        Scenario(
            "one failure among three requests of a quiet hour",
            (good(Steps().stay(30).rise(1, 2).stay(68)), bad(Steps().stay(33).rise(1, 1).stay(66))),
            (Check(34, ()), Check(40, ()), Check(100, ())),
            "MutantNoGates",
            (35,),
        ),
        Scenario(
            "six hours without a request",
            (good(Steps().stay(360)), bad(Steps().stay(360))),
            (Check(10, ()), Check(360, ())),
            "MutantUnguardedRatio",
            (10, 360),
            tuple((360, ratio_series(window), ()) for window in ("5m", "1h", "6h", "30d")),
        ),
        Scenario(
            "five failures in a quiet hour after a busy day",
            (good(Steps().rise(20_000, 120).rise(0.25, 80)), bad(Steps().stay(181).rise(1, 5).stay(14))),
            (Check(185, ()), Check(190, ()), Check(200, ())),
            "MutantNoBudgetShare",
            (188,),
        ),
        Scenario(
            "one of two replicas restarts; its counters begin again",
            (
                good(Steps(5_000_000).rise(300, 60).restart().rise(300, 60)),
                bad(Steps(5_000).stay(60).restart().stay(60)),
                good(Steps(5_000_000).rise(300, 121), "b"),
                bad(Steps(5_000).stay(121), "b"),
            ),
            (Check(62, ()), Check(65, ()), Check(121, ())),
            "MutantSumBeforeIncrease",
            (62,),
        ),
        Scenario(
            "a replica with a past appears: what it counted before is not counted again",
            (
                good(Steps().rise(300, 90)),
                bad(Steps().stay(90)),
                (counter(objective, "good", "", "b")[0], "_x60 90000+300x30"),
                (counter(objective, "bad", "", "b")[0], "_x60 5000x30"),
            ),
            (Check(62, ()), Check(70, ()), Check(90, ())),
            "MutantDifference",
            (62,),
        ),
        Scenario(
            "an outage in the first minutes of a Prometheus, before there is an hourly sum",
            (good(Steps().rise(100, 5).stay(30)), bad(Steps().stay(5).rise(100, 30))),
            (Check(4, ()), Check(9, (*both, EXHAUSTED_ALERT))),
        ),
        Scenario(
            "one replica can be scraped no more; the other's failures are seen",
            (
                good(Steps().rise(100, 60).vanish(60)),
                bad(Steps().stay(60).vanish(60)),
                good(Steps().rise(100, 90).stay(30), "b"),
                bad(Steps().stay(90).rise(100, 30), "b"),
                ('up{job="sluice-gateway",instance="a"}', "1x60 0x60"),
                ('up{job="sluice-gateway",instance="b"}', "1x120"),
            ),
            (
                Check(85, ()),
                Check(91 + 2 * told_m, both, _BURNING),
                Check(85, (SCRAPE_ALERT,), (SCRAPE_ALERT, ABSENT_ALERT)),
            ),
        ),
    ]


def build_absence(objective: Objective) -> Scenario:
    """What has to happen when nobody reports."""
    return Scenario(
        "no gateway reports any more",
        (
            counter(objective, "good", str(Steps().rise(100, 60).vanish(60))),
            counter(objective, "bad", str(Steps().stay(60).vanish(60))),
        ),
        (Check(60, (), (ABSENT_ALERT,)), Check(75, (ABSENT_ALERT,), (ABSENT_ALERT,)), Check(110, ())),
        samples=((110, ratio_series("5m"), ()),),
    )


def build_mutants(plan: WindowPlan, tier: TierObjectives) -> RuleGroup:
    """For each objective, the rules with one precaution left out each."""
    rules: list[Rule] = []
    for objective in tier.objectives:
        selector = f'{{tier="{objective.tier}",slo="{objective.indicator}"}}'
        inner = f'tier="{objective.tier}",slo="{objective.indicator}"'
        gated = {
            "MutantLongWindowOnly": replace(ALL_GATES, short_window=False),
            "MutantNoGates": Gates(bad_events=False, budget_share=False),
            "MutantNoBudgetShare": replace(ALL_GATES, budget_share=False),
        }
        for name, gates in gated.items():
            rule = build_burn_alert(plan, tier, objective, Speed.FAST, Severity.PAGE, gates)
            rules.append(replace(rule, name=name, keep_firing_s=0, annotations={}))
        factor = f"14.4 * {objective.budget_ratio:.12g}"
        before = f'increase((sum by (tier, slo) ({EVENTS_METRIC}{{{inner},result="bad"}}))[5m:1m])'
        counted = f'{EVENTS_METRIC}{{{inner},result="bad"}}'
        valid = f"sum by (tier, slo) ({events_series('5m')}{selector})"
        expressions = {
            "MutantNoFactor": f"{ratio_series('1h')}{selector} > 0.4 * {objective.budget_ratio:.12g}",
            "MutantUnguardedRatio": f"({bad_series('5m')}{selector} / {events_series('5m')}{selector})"
            f" != ({bad_series('5m')}{selector} / {events_series('5m')}{selector})",
            "MutantSumBeforeIncrease": f"{before} / {valid} > {factor}",
            "MutantDifference": f"(sum by (tier, slo) ({counted}) - sum by (tier, slo) ({counted} offset 5m))"
            f" / {valid} > {factor}",
        }
        rules += [
            Rule(name, expr, alert=True, labels={"tier": objective.tier, "slo": objective.indicator.value})
            for name, expr in expressions.items()
        ]
    return RuleGroup(f"mutants-{tier.tier}", 15, tuple(rules))


def render_cases(columns: Iterable[Sequence[tuple[Scenario, Objective]]], rule_files: Sequence[str]) -> str:
    """A test file for promtool. Each column is one scenario as several objectives see it, in one stretch of time."""
    tests = [_write_test(column) for column in columns]
    return render_yaml({"rule_files": list(rule_files), "evaluation_interval": "1m", "tests": tests})


def _write_test(column: Sequence[tuple[Scenario, Objective]]) -> dict[str, Any]:
    series: dict[str, str] = {}
    expected: list[dict[str, Any]] = []
    for scenario, objective in column:
        series.update(scenario.series)
        selector = f'tier=~"{objective.tier}|",slo=~"{objective.indicator}|"'
        expected += [
            _expect_firing(check.at_m, f'alertname=~"{"|".join(check.among)}",{selector}', check.firing)
            for check in scenario.checks
        ]
        expected += [
            _expect_firing(at_m, f'alertname="{scenario.mutant}",{selector}', (scenario.mutant,))
            for at_m in scenario.mutant_at_m
        ]
        for at_m, expr, samples in scenario.samples:
            values = [{"labels": labels, "value": value} for labels, value in samples]
            expected.append({"expr": expr, "eval_time": f"{at_m}m", "exp_samples": values})
    return {
        "name": column[0][0].name,
        "interval": write_duration(60),
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": expected,
    }


def _expect_firing(at_m: int, selector: str, alerts: Sequence[str]) -> dict[str, Any]:
    return {
        "expr": f'count by (alertname) (ALERTS{{alertstate="firing",{selector}}})',
        "eval_time": f"{at_m}m",
        "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in sorted(alerts)],
    }
