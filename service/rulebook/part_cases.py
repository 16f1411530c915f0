"""Builds promtool's tests of the alerts on parts: the record, the shared store, the workers' own valves."""

from typing import Any

from service.rulebook.render import render_yaml
from service.slo.objective import Severity
from service.slo.part_alerts import (
    DATABASE_ALERT,
    LOST_ALERT,
    PART_ALERTS,
    SPOOL_ALERT,
    STORE_ALERT,
    VALVE_ALERT,
    VALVE_MIN,
    build_part_alerts,
    build_spool_condition,
    build_valve_condition,
)
from service.slo.rules import Rule, RuleGroup

_PAGE, _TICKET = Severity.PAGE.value, Severity.TICKET.value
_MUTANT = "Mutant"
_EAGER = {SPOOL_ALERT: build_spool_condition(0.0), VALVE_ALERT: build_valve_condition(1)}
"""Conditions without what keeps the alert silent; the others lose their wait."""

_Firing = tuple[tuple[str, str], ...]


def build_part_mutants() -> RuleGroup:
    """Each alert that waits or has a threshold, without it: where the alert is silent, its mutant has to fire."""
    rules = {
        rule.name: Rule(f"{_MUTANT}{rule.name}", _EAGER.get(rule.name, rule.expr), alert=True)
        for rule in build_part_alerts().rules
        if rule.for_s or rule.name in _EAGER
    }
    return RuleGroup("mutants-parts", 15, tuple(rules.values()))


def render_part_cases() -> str:
    """Silent at what passes by itself, loud at what does not, and silent where there is no such part."""
    room = ("sluice_ledger_spool_max_bytes", "100x60")
    tests = [
        _write(
            "a spool fills by ten percent a minute, and is drained",
            [room, ("sluice_ledger_spool_bytes", "0+10x9 0x50")],
            {
                4: ((SPOOL_ALERT, _MUTANT),),
                6: ((SPOOL_ALERT, _TICKET), (SPOOL_ALERT, _MUTANT)),
                9: ((SPOOL_ALERT, _TICKET), (SPOOL_ALERT, _PAGE), (SPOOL_ALERT, _MUTANT)),
                12: (),
            },
        ),
        _write(
            "a database restarts for four minutes",
            [("sluice_ledger_database_away", "0x4 1x3 0x50")],
            {7: ((DATABASE_ALERT, _MUTANT),), 15: ()},
        ),
        _write(
            "a database is away for half an hour",
            [("sluice_ledger_database_away", "0x4 1x30 0x20")],
            {14: ((DATABASE_ALERT, _MUTANT),), 20: ((DATABASE_ALERT, _TICKET), (DATABASE_ALERT, _MUTANT)), 40: ()},
        ),
        _write(
            "one entry of one gateway of two is lost",
            [('sluice_ledger_lost_total{instance="a"}', "0x9 1x50"), ("sluice_ledger_lost_total", "0x60")],
            {9: (), 12: ((LOST_ALERT, _PAGE),), 40: ()},
        ),
        _write(
            "the shared store restarts within a minute",
            [("sluice_store_away", "0x4 1 0x50")],
            {5: ((STORE_ALERT, _MUTANT),), 8: ()},
        ),
        _write(
            "the shared store is away for ten minutes",
            [("sluice_store_away", "0x4 1x10 0x20")],
            {6: ((STORE_ALERT, _MUTANT),), 10: ((STORE_ALERT, _TICKET), (STORE_ALERT, _MUTANT)), 20: ()},
        ),
        _write(
            "a worker refuses twice while it restarts",
            [('sluice_attempt_failures_total{cause="busy"}', "0x9 2x50")],
            {9: (), 15: ((VALVE_ALERT, _MUTANT),), 40: ()},
        ),
        _write(
            "workers refuse again and again",
            [('sluice_attempt_failures_total{cause="busy"}', f"0x9 0+{VALVE_MIN}x20 100x30")],
            {9: (), 15: ((VALVE_ALERT, _TICKET), (VALVE_ALERT, _MUTANT)), 58: ()},
        ),
        _write(
            "attempts fail for other reasons",
            [('sluice_attempt_failures_total{cause="unreachable"}', "0+50x60")],
            {30: ()},
        ),
        _write("a gateway without a ledger and without a store", [("sluice_permits_held", "3x60")], {30: ()}),
    ]
    rule_files = ["../rules/alerts.yaml", "mutants/parts.yaml"]
    return render_yaml({"rule_files": rule_files, "evaluation_interval": "15s", "tests": tests})


def _write(name: str, series: list[tuple[str, str]], firing: dict[int, _Firing]) -> dict[str, Any]:
    """``firing`` says for each minute which alerts fire, as (alert, severity) or (alert, ``Mutant``)."""
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": one, "values": its} for one, its in series],
        "promql_expr_test": [
            {
                "expr": "count by (alertname, severity)"
                f' (ALERTS{{alertstate="firing",alertname=~"({_MUTANT})?({"|".join(PART_ALERTS)})"}})',
                "eval_time": f"{at_m}m",
                "exp_samples": [{"labels": labels, "value": 1} for labels in sorted(map(_name, expected))],
            }
            for at_m, expected in firing.items()
        ],
    }


def _name(firing: tuple[str, str]) -> str:
    alert, severity = firing
    if severity == _MUTANT:
        return f'{{alertname="{_MUTANT}{alert}"}}'
    return f'{{alertname="{alert}", severity="{severity}"}}'
