"""What follows beside rules: edges, scaler queries, dashboards."""

import json
import re
from pathlib import Path

import yaml

from service.cli.demo import TIERS
from service.domain.tier import Tier
from service.rulebook.dashboards import build_dashboards
from service.rulebook.derived import list_scaler_queries
from service.rulebook.sources import read_sources
from service.settings.build import load_plan
from service.slo.objective import derive_objectives
from service.telemetry.kinds import Kind
from service.telemetry.metrics import METRICS
from service.telemetry.recorder import Recorder

ROOT = Path(__file__).parents[3]
SOURCES = read_sources(ROOT / "slo")


def test_a_gateway_that_promises_the_objectives_has_these_edges():
    tiers = load_plan(ROOT / "deploy" / "sluice.example.yaml", {}, b"").corridor.tiers.values()
    written = yaml.safe_load((ROOT / "slo" / "derived" / "edges.yaml").read_text())
    for distributions in Recorder(tiers).distributions():
        if distributions.metric.name in written:
            expected = written.pop(distributions.metric.name)
            for _, histogram in distributions.series:
                assert list(histogram.edges) == expected["edges"]
                assert set(expected["promised"]) <= set(histogram.edges)
    assert not written
    assert len(TIERS) == 3


def names_in(expression):
    return set(re.findall(r"\bsluice_\w+|slo:\w+:\w+", expression))


def known_names():
    recorded = set(re.findall(r"record: (\S+)", (ROOT / "slo" / "rules" / "recording.yaml").read_text()))
    figures = {metric.name for metric in METRICS if metric.kind is not Kind.HISTOGRAM}
    figures |= {f"{metric.name}_bucket" for metric in METRICS if metric.kind is Kind.HISTOGRAM}
    return recorded | figures


def list_expressions(tree):
    if isinstance(tree, dict):
        for key, value in tree.items():
            if key == "expr":
                yield value
            else:
                yield from list_expressions(value)
    elif isinstance(tree, list):
        for item in tree:
            yield from list_expressions(item)


def test_dashboards_ask_for_figures_that_exist():
    boards = build_dashboards(SOURCES)
    assert set(boards) == {f"dashboards/{name}.json" for name in ("overview", "default", "priority")}
    for path, text in boards.items():
        board = json.loads(text)
        expressions = list(list_expressions(board))
        assert len(expressions) > 8, path
        assert board["uid"].startswith("sluice-")
        for expression in expressions:
            assert names_in(expression), expression
            assert names_in(expression) <= known_names(), expression


def test_every_promise_is_a_line_on_its_tiers_dashboard():
    board = json.loads(build_dashboards(SOURCES)["dashboards/priority.json"])
    (panel,) = [panel for panel in board["panels"] if panel["title"] == "Time to first token"]
    assert [step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]] == [None, 1, 3, 12, 60]


def test_the_scaler_asks_gateways_only_and_every_tier_that_promises_something():
    queries = list_scaler_queries(SOURCES.tiers)
    assert {query["name"] for query in queries} == {
        "queued_requests", "queued_tokens", "permits_held",
        *(f"burn_rate_{tier}_{window}" for tier in ("priority", "default") for window in ("5m", "30m")),
    }  # fmt: skip
    for query in queries:
        assert names_in(query["query"]) <= known_names()
        assert "unless on () (up" in query["query"]
    slow = derive_objectives(Tier("slow", 0, availability=0.99))
    (burn,) = [query for query in list_scaler_queries([slow]) if query["name"] == "burn_rate_slow_5m"]
    assert "ttft" not in burn["query"]
