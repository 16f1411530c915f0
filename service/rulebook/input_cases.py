"""Builds promtool's tests of what an autoscaler asks, and of the prober's alerts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from service.rulebook.cases import Series, Steps, counter
from service.rulebook.derived import list_scaler_queries
from service.rulebook.render import render_yaml
from service.slo.alerts import GATEWAY_JOB, PROBE_ALERT, build_probe_alerts
from service.slo.objective import Indicator, Objective, TierObjectives
from service.slo.rules import Rule, RuleGroup

_STATES = ("sluice_queued_requests", "sluice_queued_tokens", "sluice_permits_held")
_MUTANT = "MutantProbeDespiteTraffic"
_STEERED = (Indicator.AVAILABILITY, Indicator.TTFT)


def render_scaler_cases(tiers: Iterable[TierObjectives]) -> str:
    """Empty, partial, stale and not-a-number figures: none of them may read as a load, least of all as none."""
    promising = [tier for tier in tiers if not tier.best_effort]
    queries = {query["name"]: query["query"] for query in list_scaler_queries(promising)}
    idle = [*_gateway("a", "0x20", "1x20"), *_counters(promising, Steps(5).stay(20), Steps().stay(20))]
    broken = [*_gateway("a", "7x20", "1x20"), *_counters(promising, Steps().stay(20), Steps().rise(60, 20))]
    half = [*_gateway("a", "7x20", "1x20"), *_gateway("b", "9x10 stale", "1x10 0x10")]
    worst = {
        name: max(1 / objective.budget_ratio for objective in tier.objectives if objective.indicator in _STEERED)
        for tier in promising
        for name in queries
        if name.startswith(f"burn_rate_{tier.tier}_")
    }
    tests = [
        _write("gateways without workers and without requests: no load", idle, dict.fromkeys(queries, 0.0)),
        _write("every request fails: all budgets burn", broken, worst),
        _write("nothing is scraped: no value, not none to do", [], dict.fromkeys(queries)),
        _write(
            "no number: no value",
            _gateway("a", " ".join(["NaN"] * 20), "1x20"),
            dict.fromkeys(("queued_requests", "permits_held")),
        ),
        _write("one of two gateways is not seen: no value", half, dict.fromkeys(("queued_requests", "permits_held"))),
    ]
    for test in tests:
        for check in test["promql_expr_test"]:
            check["expr"] = queries[check["expr"]]
    naive = {"expr": "sum(sluice_queued_requests)", "eval_time": "15m", "exp_samples": [{"labels": "{}", "value": 7}]}
    tests[-1]["promql_expr_test"].append(naive)  # a plain sum takes half of the load for all of it
    return render_yaml({"rule_files": ["../rules/recording.yaml"], "evaluation_interval": "1m", "tests": tests})


def build_prober_mutants(tiers: Iterable[TierObjectives]) -> RuleGroup:
    """The prober's alert where traffic does not silence it."""
    probing = [rule for rule in build_probe_alerts(tiers).rules if rule.name == PROBE_ALERT]
    rules = tuple(
        Rule(_MUTANT, rule.expr.partition("\nunless ")[0], alert=True, labels={"tier": rule.labels["tier"]})
        for rule in probing
    )
    return RuleGroup("mutants-prober", 15, rules)


def render_prober_cases(tiers: Iterable[TierObjectives]) -> str:
    """Failing probes call somebody where traffic is too low to judge by, and nobody else."""
    promising = [tier for tier in tiers if not tier.best_effort]
    probes = [
        (f'sluice_probe_requests_total{{tier="{tier.tier}",result="{result}"}}', values)
        for tier in promising
        for result, values in (("good", "0+6x60 360x30"), ("bad", "0x60 6+6x30"))
    ]
    quiet = [*probes, *_counters(promising, Steps().rise(0.1, 90), Steps().stay(90))]
    busy = [*probes, *_counters(promising, Steps().rise(100, 90), Steps().stay(90))]
    alerts = f"{PROBE_ALERT}|{_MUTANT}"
    tests = []
    for name, series, firing in (
        ("probes fail in a quiet hour", quiet, (PROBE_ALERT, _MUTANT)),
        ("probes fail without a request of a customer ever", probes, (PROBE_ALERT, _MUTANT)),
        ("probes fail while customers are served", busy, (_MUTANT,)),
    ):
        test = _write(name, series, {})
        for at_m, expected in ((59, ()), (75, firing)):
            samples = [
                {"labels": f'{{alertname="{alert}", tier="{tier.tier}"}}', "value": 1}
                for alert in sorted(expected)
                for tier in promising
            ]
            expression = f'count by (alertname, tier) (ALERTS{{alertstate="firing",alertname=~"{alerts}"}})'
            test["promql_expr_test"].append({"expr": expression, "eval_time": f"{at_m}m", "exp_samples": samples})
        tests.append(test)
    rule_files = ["../rules/recording.yaml", "../rules/prober.yaml", "mutants/prober.yaml"]
    return render_yaml({"rule_files": rule_files, "evaluation_interval": "1m", "tests": tests})


def _gateway(name: str, states: str, up: str) -> list[Series]:
    figures = [(f'{state}{{instance="{name}"}}', states) for state in _STATES]
    return [*figures, (f'up{{job="{GATEWAY_JOB}",instance="{name}"}}', up)]


def _counters(tiers: Iterable[TierObjectives], good: Steps, bad: Steps) -> list[Series]:
    objectives: list[Objective] = [
        objective for tier in tiers for objective in tier.objectives if objective.indicator in _STEERED
    ]
    return [
        counter(objective, result, str(values))
        for objective in objectives
        for result, values in (("good", good), ("bad", bad))
    ]


def _write(name: str, series: Sequence[Series], values: Mapping[str, float | None]) -> dict[str, Any]:
    """``values`` by query; ``None``: it gives nothing."""
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": one, "values": its} for one, its in series],
        "promql_expr_test": [
            {
                "expr": query,
                "eval_time": "15m",
                "exp_samples": [] if value is None else [{"labels": "{}", "value": round(value, 6)}],
            }
            for query, value in values.items()
        ],
    }
