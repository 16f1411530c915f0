"""Declarations: names, labels and buckets by the rules of the house, and the document made from them."""

import math
from pathlib import Path

import pytest

from service.domain.outcome import Outcome
from service.gateway.routes import ROUTES, STORED
from service.telemetry.document import build_document
from service.telemetry.histogram import Histogram, merge_edges
from service.telemetry.kinds import Kind
from service.telemetry.labels import KINDS, can_occur
from service.telemetry.metrics import METRICS

DOCUMENT = Path(__file__).parents[3] / "deploy" / "METRICS.md"
CLOSED = {"tier", "kind", "outcome", "stage", "state", "cause", "worker", "version", "slo", "result", "window", "model"}
CLOSED |= {"claim", "band", "passage", "call", "condition"}


def test_document_is_the_one_made_from_the_declarations():
    assert DOCUMENT.read_text() == build_document(), (
        "write it again: python -c 'from pathlib import Path; from service.telemetry.document import build_document; "
        'Path("deploy/METRICS.md").write_text(build_document())\''
    )


def test_document_names_every_metric_outcome_and_label():
    text = build_document()
    for name in [metric.name for metric in METRICS] + [outcome.label for outcome in Outcome] + sorted(CLOSED):
        assert name in text


def test_kinds_are_those_of_the_routes():
    assert {route.kind for route in ROUTES.values()} | {STORED.kind} == set(KINDS)
    assert len(KINDS) == len(set(KINDS))


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_declaration_follows_the_rules(metric):
    assert metric.name.startswith("sluice_")
    assert metric.help.endswith(".")
    assert set(metric.labels) <= CLOSED
    assert metric.name.endswith("_total") is (metric.kind is Kind.COUNTER)
    assert metric.unit in metric.name or metric.kind is Kind.COUNTER
    assert bool(metric.edges) is bool(metric.why) is (metric.kind is Kind.HISTOGRAM)
    assert list(metric.edges) == sorted(set(metric.edges))


def test_names_differ():
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_every_outcome_can_occur_somewhere():
    for outcome in Outcome:
        assert any(can_occur(outcome, kind, known) for kind in KINDS for known in (True, False)), outcome


def test_what_can_occur_before_anybody_is_known():
    early = {outcome for outcome in Outcome if can_occur(outcome, "completions", False)}
    assert early == {
        Outcome.TOO_LARGE,
        Outcome.BODY_TIMEOUT,
        Outcome.CLIENT_GONE_EARLY,
        Outcome.BYTES_EXHAUSTED,
        Outcome.UNAUTHENTICATED,
        Outcome.GATEWAY_FAULT,
    }


def test_edges_are_merged_once_each():
    assert merge_edges((1.0, 2.0), [2, 1.5]) == (1.0, 1.5, 2.0)


@pytest.mark.parametrize("edge", [0.0, -1.0, math.inf, math.nan])
def test_edges_are_positive_numbers(edge):
    with pytest.raises(ValueError, match="positive number"):
        merge_edges((1.0,), [edge])


def test_histogram_counts_an_edge_within_it_and_less_than_nothing_as_nothing():
    histogram = Histogram((1.0, 2.0))
    for length_s in (-0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(length_s)
    assert histogram.counts == [2, 2, 1]
    assert histogram.cumulative() == [2, 4, 5]
    assert histogram.sum_s == 13.5
