"""Builds Grafana dashboards with Grafana's own library: one over all tiers, one per tier that promises something."""

from collections.abc import Iterable, Iterator, Sequence

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import GraphThresholdsStyleMode
from grafana_foundation_sdk.models.dashboard import DataSourceRef, Threshold, ThresholdsMode

from service.rulebook.sources import Sources
from service.slo.objective import Indicator, Objective, TierObjectives
from service.slo.rules import EVENTS_METRIC, bad_series, events_series, ratio_series
from service.slo.window import HOUR_S, WindowPlan, write_duration

Query = tuple[str, str]
"""An expression, and what its line is called."""

_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_RATE = "[$__rate_interval]"


def build_dashboards(sources: Sources) -> dict[str, str]:
    """JSON by path. The library writes fields in one order, so that the same objectives give the same bytes."""
    books = {"dashboards/overview.json": _build_overview(sources)}
    for tier in sources.tiers:
        if not tier.best_effort:
            books[f"dashboards/{tier.tier}.json"] = _build_tier(sources, tier)
    encoder = JSONEncoder(sort_keys=True, indent=2)
    return {path: encoder.encode(board.build()) + "\n" for path, board in books.items()}


def _build_overview(sources: Sources) -> dashboard.Dashboard:
    board = _begin("Sluice: all tiers", "sluice-overview")
    board.with_row(dashboard.Row("What is left of each error budget"))
    objectives = [objective for tier in sources.tiers for objective in tier.objectives]
    for objective in objectives:
        board.with_panel(
            _budget_left(objective, sources.plan, f"{objective.tier} {objective.indicator}").span(3).height(4)
        )
    board.with_row(dashboard.Row("Traffic and workers"))
    board.with_panel(
        _lines(
            "Requests by what they count for",
            "reqps",
            [
                (f'sum by (tier, result) (rate({EVENTS_METRIC}{{slo="{Indicator.AVAILABILITY}"}}{_RATE}))',
                 "{{tier}} {{result}}"),
            ],
        )
    )  # fmt: skip
    board.with_panel(_lines("Workers by state", "short", [("sum by (state) (sluice_workers)", "{{state}}")]))
    board.with_panel(
        _lines(
            "Waiting and running",
            "short",
            [("sum(sluice_queued_requests)", "waiting"), ("sum(sluice_permits_held)", "on workers")],
        )
    )
    board.with_panel(
        _lines(
            "Event loop, 99th percentile of its lag", "s",
            [(f"histogram_quantile(0.99, sum by (le, instance) (rate(sluice_event_loop_lag_seconds_bucket{_RATE})))",
              "{{instance}}")],
        )
    )  # fmt: skip
    return board


def _build_tier(sources: Sources, tier: TierObjectives) -> dashboard.Dashboard:
    plan = sources.plan
    board = _begin(f"Sluice: tier {tier.tier}", f"sluice-{tier.tier}")
    for objective in tier.objectives:
        board.with_row(dashboard.Row(f"{objective.indicator}: {objective.target:.4%}"))
        board.with_panel(_budget_left(objective, plan, f"Budget left of {plan.name}").span(4))
        board.with_panel(_burn(objective, plan).span(12))
        board.with_panel(
            _lines(
                "Bad events an hour", "short",
                [(f"{bad_series(write_duration(HOUR_S))}{_select(objective)}", "bad"),
                 (f"{events_series(write_duration(HOUR_S))}{_select(objective)}", "valid")],
            ).span(8)
        )  # fmt: skip
    board.with_row(dashboard.Row("Why"))
    for panel in _explain(tier):
        board.with_panel(panel)
    return board


def _explain(tier: TierObjectives) -> Iterator[timeseries.Panel]:
    chosen = f'{{tier="{tier.tier}"}}'
    yield _lines(
        "Endings other than completed", "reqps",
        [(f'sum by (outcome) (rate(sluice_requests_total{{tier="{tier.tier}",outcome!="completed"}}{_RATE})) > 0',
          "{{outcome}}")],
    )  # fmt: skip
    promised = [target_s for _, target_s in tier.ttft_targets_s]
    yield _quantiles("Time to first token", "sluice_ttft_seconds", chosen, promised)
    tpot = [] if tier.tpot_target_s is None else [tier.tpot_target_s]
    yield _quantiles("Time per output token", "sluice_tpot_seconds", chosen, tpot)
    yield _quantiles("Wait in the queue", "sluice_queue_wait_seconds", chosen, [])


def _quantiles(title: str, metric: str, selector: str, promised: Sequence[float]) -> timeseries.Panel:
    queries = [
        (
            f"histogram_quantile({quantile}, sum by (le) (rate({metric}_bucket{selector}{_RATE})))",
            f"p{quantile * 100:g}",
        )
        for quantile in (0.5, 0.95, 0.99)
    ]
    return _lines(title, "s", queries, promised)


def _burn(objective: Objective, plan: WindowPlan) -> timeseries.Panel:
    queries = [
        (f"{ratio_series(window)}{_select(objective)} / {objective.budget_ratio:.12g}", window)
        for window in map(write_duration, plan.windows_s)
    ]
    return _lines("Burn rate by window (1 spends the budget in its period)", "none", queries,
                  sorted({pair.factor for pair in plan.pairs}))  # fmt: skip


def _budget_left(objective: Objective, plan: WindowPlan, title: str) -> stat.Panel:
    period = write_duration(plan.period_s)
    expression = f"1 - {ratio_series(period)}{_select(objective)} / {objective.budget_ratio:.12g}"
    return (
        stat.Panel()
        .title(title)
        .datasource(_SOURCE)
        .unit("percentunit")
        .decimals(1)
        .thresholds(_thresholds([(None, "red"), (0.0, "orange"), (0.25, "green")]))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .with_target(_query(expression, "left"))
    )


def _lines(title: str, unit: str, queries: Iterable[Query], marks: Sequence[float] = ()) -> timeseries.Panel:
    """``marks`` are drawn as lines across."""
    panel = timeseries.Panel().title(title).datasource(_SOURCE).unit(unit).min(0).span(12).height(8)
    for expression, legend in queries:
        panel.with_target(_query(expression, legend))
    if marks:
        panel.thresholds(_thresholds([(None, "transparent"), *((mark, "red") for mark in marks)]))
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED))
    return panel


def _query(expression: str, legend: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(expression).legend_format(legend)


def _thresholds(steps: Iterable[tuple[float | None, str]]) -> dashboard.ThresholdsConfig:
    config = dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE)
    return config.steps([Threshold(value=value, color=color) for value, color in steps])


def _begin(title: str, uid: str) -> dashboard.Dashboard:
    source = dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
    return (
        dashboard.Dashboard(title)
        .uid(uid)
        .tags(["sluice", "slo"])
        .refresh("30s")
        .time("now-6h", "now")
        .timezone("utc")
        .with_variable(source)
    )


def _select(objective: Objective) -> str:
    return f'{{tier="{objective.tier}",slo="{objective.indicator}"}}'
