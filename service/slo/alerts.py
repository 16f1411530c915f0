"""Builds the alerts: budgets that burn, budgets that are gone, figures that are missing."""

from collections.abc import Iterable
from dataclasses import dataclass

from service.slo.objective import Indicator, Objective, Severity, Speed, TierObjectives
from service.slo.part_alerts import PART_ALERTS, RUNBOOKS
from service.slo.rules import EVENTS_METRIC, Rule, RuleGroup, bad_series, events_series, ratio_series
from service.slo.window import MINUTE_S, WindowPair, WindowPlan, write_duration

BURN_ALERTS = {Speed.FAST: "SluiceBudgetBurnFast", Speed.SLOW: "SluiceBudgetBurnSlow"}
EXHAUSTED_ALERT = "SluiceBudgetExhausted"
ABSENT_ALERT = "SluiceFiguresAbsent"
SCRAPE_ALERT = "SluiceScrapeFailing"
PROBE_ALERT = "SluiceProbeFailing"
PROBER_ABSENT_ALERT = "SluiceProberAbsent"
MAINTENANCE_ALERT = "SluiceMaintenance"
ALERTS = (
    *BURN_ALERTS.values(), EXHAUSTED_ALERT, ABSENT_ALERT, SCRAPE_ALERT, PROBE_ALERT, PROBER_ABSENT_ALERT,
    MAINTENANCE_ALERT, *PART_ALERTS,
)  # fmt: skip
"""Each has a runbook of its name."""

GATEWAY_JOB = "sluice-gateway"
_INTERVAL_S = 15
_KEEP_FIRING_S = 5 * MINUTE_S
_ABSENT_BUDGET_SHARE = 0.01
_ABSENT_FLOOR_S = MINUTE_S
_ABSENT_FLOOR_OF_DRILLS_S = 10
"""A Prometheus begins to scrape up to 5 s after its start, whatever its intervals."""


@dataclass(frozen=True, slots=True)
class Gates:
    """Which conditions beside the burn rate an alert asks for. Rules are built without one of them only to show, in a
    test, that its absence would be noticed."""

    bad_events: bool = True
    budget_share: bool = True
    short_window: bool = True


ALL_GATES = Gates()


def build_tier_alerts(plan: WindowPlan, tier: TierObjectives, divisor: int = 1) -> RuleGroup:
    """The alerts of one tier; ``divisor`` is the one that the plan was shrunk by."""
    rules: list[Rule] = []
    for objective in tier.objectives:
        for speed in Speed:
            severity = objective.severity_of(speed)
            if severity is not None:
                rules.append(build_burn_alert(plan, tier, objective, speed, severity, divisor=divisor))
        rules.append(_build_exhausted(plan, tier, objective))
    if not tier.best_effort:
        rules.append(_build_absent(plan, tier, divisor))
    return RuleGroup(f"sluice-slo-alerts-{tier.tier}", max(1, _INTERVAL_S // divisor), tuple(rules))


def build_common_alerts(divisor: int = 1) -> RuleGroup:
    """The alerts that belong to no tier."""
    rules = (_build_scrape_failing(divisor), _build_maintenance())
    return RuleGroup("sluice-slo-alerts", max(1, _INTERVAL_S // divisor), rules)


def build_burn_alert(
    plan: WindowPlan, tier: TierObjectives, objective: Objective, speed: Speed, severity: Severity,
    gates: Gates = ALL_GATES, divisor: int = 1,
) -> Rule:  # fmt: skip
    """Fires while any pair of this speed has its burn rate above the factor in both windows, at least
    ``bad_events_min`` bad events in the long one, and as many as spend the pair's share of the budget of the whole
    period's events (else a quiet night's single failures count as much as a busy day's)."""
    pairs = [_build_condition(plan, tier, objective, pair, gates) for pair in plan.pairs_of(speed)]
    spent = " or ".join(
        f"{pair.budget_share(plan.period_s):.0%} in {write_duration(pair.long_s)}" for pair in plan.pairs_of(speed)
    )
    return Rule(
        BURN_ALERTS[speed],
        "\nor\n".join(pairs),
        alert=True,
        keep_firing_s=max(1, _KEEP_FIRING_S // divisor) if severity is Severity.PAGE else 0,
        labels={"severity": severity.value, "tier": objective.tier, "slo": objective.indicator.value},
        annotations=_annotate(
            BURN_ALERTS[speed],
            f"Tier {objective.tier}: the {objective.indicator} budget of {plan.name} burns {speed} ({spent})",
            f"{{{{ $value | humanizePercentage }}}} of events are bad; {objective.budget_ratio:.4%} may be.",
        ),
    )


def build_probe_alerts(tiers: Iterable[TierObjectives]) -> RuleGroup:
    """The prober's own alerts. A failing probe counts only where there are too few requests to judge by."""
    rules = []
    for tier in tiers:
        if tier.best_effort:
            continue
        selector = f'tier="{tier.tier}"'
        bad = f'sum by (tier) (increase(sluice_probe_requests_total{{{selector},result="bad"}}[10m]))'
        valid = f"sum by (tier) (increase(sluice_probe_requests_total{{{selector}}}[10m]))"
        traffic = f'sum by (tier) ({events_series("1h")}{{{selector},slo="{Indicator.AVAILABILITY}"}})'
        expr = f"{bad} >= 3\nand {bad} / ({valid} > 0) > 0.5\nunless {traffic} >= {tier.probe_below_per_hour:g}"
        labels = {"severity": Severity.PAGE.value, "tier": tier.tier, "slo": Indicator.AVAILABILITY.value}
        text = f"Tier {tier.tier}: synthetic requests fail, and there is too little traffic to judge by"
        rules.append(
            Rule(
                PROBE_ALERT, expr, alert=True, keep_firing_s=_KEEP_FIRING_S, labels=labels,
                annotations=_annotate(PROBE_ALERT, text, "{{ $value | humanize }} probes failed in 10 minutes."),
            )
        )  # fmt: skip
    rules.append(
        Rule(
            PROBER_ABSENT_ALERT, "absent(sluice_probe_requests_total)", alert=True, for_s=10 * MINUTE_S,
            labels={"severity": Severity.TICKET.value},
            annotations=_annotate(PROBER_ABSENT_ALERT, "No prober is scraped", "Quiet tiers are watched by nobody."),
        )
    )  # fmt: skip
    return RuleGroup("sluice-slo-prober", _INTERVAL_S, tuple(rules))


def _build_condition(
    plan: WindowPlan, tier: TierObjectives, objective: Objective, pair: WindowPair, gates: Gates
) -> str:
    long, short, period = map(write_duration, (pair.long_s, pair.short_s, plan.period_s))
    selector = _select(objective)
    threshold = f"{pair.factor:g} * {objective.budget_ratio:.12g}"
    parts = [f"{ratio_series(long)}{selector} > {threshold}"]
    if gates.short_window:
        parts.append(f"{ratio_series(short)}{selector} > {threshold}")
    if gates.bad_events:
        parts.append(f"{bad_series(long)}{selector} >= {tier.bad_events_min}")
    if gates.budget_share:
        share = f"{pair.budget_share(plan.period_s):.6g} * {objective.budget_ratio:.12g}"
        parts.append(f"{bad_series(long)}{selector} >= {share} * {events_series(period)}{selector}")
    return "(\n  " + "\n  and ".join(parts) + "\n)"


def _build_exhausted(plan: WindowPlan, tier: TierObjectives, objective: Objective) -> Rule:
    selector, period = _select(objective), write_duration(plan.period_s)
    bad, valid = f"{bad_series(period)}{selector}", f"{events_series(period)}{selector}"
    expr = f"{bad} >= {objective.budget_ratio:.12g} * {valid}\nand {bad} >= {tier.bad_events_min}"
    return Rule(
        EXHAUSTED_ALERT, expr, alert=True,
        labels={"severity": Severity.TICKET.value, "tier": objective.tier, "slo": objective.indicator.value},
        annotations=_annotate(
            EXHAUSTED_ALERT,
            f"Tier {objective.tier}: the {objective.indicator} budget of {plan.name} is gone",
            f"{{{{ $value | humanize }}}} bad events; {objective.budget_ratio:.4%} of all may be.",
        ),
    )  # fmt: skip


def _build_absent(plan: WindowPlan, tier: TierObjectives, divisor: int) -> Rule:
    """Waits as long as an outage needs to spend 1 % of the tightest budget: what nobody sees may be one."""
    tightest = min(objective.budget_ratio for objective in tier.objectives)
    floor_s = max(_ABSENT_FLOOR_S // divisor, _ABSENT_FLOOR_OF_DRILLS_S)
    for_s = max(floor_s, round(_ABSENT_BUDGET_SHARE * tightest * plan.period_s))
    series = f'{EVENTS_METRIC}{{tier="{tier.tier}",slo="{tier.objectives[0].indicator}",result="good"}}'
    return Rule(
        ABSENT_ALERT, f"absent({series})", alert=True, for_s=for_s,
        labels={"severity": Severity.PAGE.value, "tier": tier.tier},
        annotations=_annotate(
            ABSENT_ALERT, f"Tier {tier.tier}: no gateway reports its events", "No alert on this tier can fire."
        ),
    )  # fmt: skip


def _build_scrape_failing(divisor: int) -> Rule:
    text = "A gateway cannot be scraped: its events are missing from every figure"
    return Rule(
        SCRAPE_ALERT, f'up{{job="{GATEWAY_JOB}"}} == 0', alert=True, for_s=max(1, 5 * MINUTE_S // divisor),
        labels={"severity": Severity.TICKET.value},
        annotations=_annotate(SCRAPE_ALERT, text, "{{ $labels.instance }} has not answered for 5 minutes."),
    )  # fmt: skip


def _build_maintenance() -> Rule:
    """Tells nobody: Alertmanager inhibits pages and tickets while it fires."""
    return Rule(
        MAINTENANCE_ALERT, "max(sluice_maintenance) > 0", alert=True, labels={"severity": "none"},
        annotations=_annotate(MAINTENANCE_ALERT, "Announced maintenance", "Its requests are excluded, and listed."),
    )  # fmt: skip


def _select(objective: Objective) -> str:
    return f'{{tier="{objective.tier}",slo="{objective.indicator}"}}'


def _annotate(alert: str, summary: str, description: str) -> dict[str, str]:
    return {"summary": summary, "description": description, "runbook": f"{RUNBOOKS}/{alert}.md"}
