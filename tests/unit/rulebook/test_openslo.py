"""OpenSLO documents: what is written reads back, and what cannot be read says why."""

import re
from pathlib import Path

import pytest
import yaml

from service.rulebook.openslo import export_openslo, import_openslo
from service.rulebook.sources import TierPart, build_tier, read_sources
from service.settings.fault import SettingsRefusedError

SOURCES = read_sources(Path(__file__).parents[3] / "slo")
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
LABEL = re.compile(r"([a-z0-9.]+/)?[a-zA-Z0-9]([a-zA-Z0-9._-]{0,61}[a-zA-Z0-9])?")


def documents():
    return list(yaml.safe_load_all(export_openslo(SOURCES)))


def faults(*changed):
    with pytest.raises(SettingsRefusedError) as refused:
        import_openslo(yaml.safe_dump_all(changed))
    return [str(fault) for fault in refused.value.faults]


def test_what_is_exported_reads_back_as_it_was():
    trees = import_openslo(export_openslo(SOURCES))
    written = {tier.tier: tier for tier in SOURCES.tiers if not tier.best_effort}
    assert {name: build_tier(TierPart.model_validate(tree)) for name, tree in trees.items()} == written
    assert trees["priority"]["description"] == SOURCES.descriptions["priority"]


def test_documents_have_the_form_of_the_specification():
    found = documents()
    assert len(found) == 8
    for document in found:
        assert set(document) == {"apiVersion", "kind", "metadata", "spec"}
        assert (document["apiVersion"], document["kind"]) == ("openslo/v1", "SLO")
        metadata, spec = document["metadata"], document["spec"]
        assert NAME.fullmatch(metadata["name"])
        assert all(LABEL.fullmatch(key) for key in (*metadata["labels"], *metadata["annotations"]))
        assert all(isinstance(value, str) for value in metadata["annotations"].values())
        assert set(spec) == {
            "description", "service", "indicator", "timeWindow", "budgetingMethod", "objectives",
        }  # fmt: skip
        assert len(spec["description"]) <= 1050
        assert len(spec["timeWindow"]) == len(spec["objectives"]) == 1
        assert set(spec["indicator"]["spec"]["ratioMetric"]) == {"counter", "good", "total"}
        assert 0.0 <= spec["objectives"][0]["target"] < 1.0
    assert len({document["metadata"]["name"] for document in found}) == 8


def test_a_document_by_hand_needs_no_annotations_and_may_say_percent():
    by_hand = documents()[0]
    del by_hand["metadata"]["annotations"], by_hand["metadata"]["labels"]
    by_hand["spec"]["objectives"] = [{"targetPercent": 99.9}]
    trees = import_openslo(yaml.safe_dump_all([{"kind": "Service", "apiVersion": "openslo/v1"}, by_hand, None, "text"]))
    assert trees["default"]["objectives"] == {"availability": {"target": 0.999}}
    by_hand["metadata"]["labels"] = {"tier": "default", "slo": "availability"}
    del by_hand["spec"]["indicator"]
    assert import_openslo(yaml.safe_dump(by_hand)) == trees


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("apiVersion", "openslo/v1alpha", "only openslo/v1 is read"),
        ("metadata.labels", {"tier": "default", "slo": "speed"}, "do not say which objective"),
        ("spec.objectives", [], "is not one objective"),
        ("spec.objectives", [{"target": 0.9}, {"target": 0.99}], "is not one objective"),
        ("spec.objectives", [{"target": 0.9, "targetPercent": 90}], "is not one objective"),
        ("spec.objectives", [{"target": "high"}], "is not one objective"),
        ("spec.objectives", [{"target": 0}], "greater than 0"),
        ("spec.budgetingMethod", "Timeslices", "default: budgetingMethod"),
        ("spec.timeWindow", [{"duration": "1M", "isRolling": False}], "default: timeWindow.0.isRolling"),
        ("metadata.annotations", {"sluice/ttft": "4096"}, "are not as they are exported"),
        ("metadata.annotations", {"sluice/tpot_s": "fast"}, "are not as they are exported"),
        ("metadata.annotations", {"sluice/fast": "sms"}, "default: objectives.availability.fast"),
        (
            "spec.indicator.spec.ratioMetric.good.metricSource.spec.query", "sum(http_requests_total)",
            "measures something else than sluice_slo_events_total",
        ),
    ],
)  # fmt: skip
def test_each_fault_is_named_with_its_document(path, value, fault):
    document = documents()[0]
    *way, last = path.split(".")
    place = document
    for key in way:
        place = place[key]
    place[last] = value
    found = faults(document)
    assert any(fault in line for line in found), found


def test_the_same_objective_twice_no_slo_at_all_and_no_yaml():
    first = documents()[0]
    assert any("documents[1].metadata.labels: is a second objective" in line for line in faults(first, first))
    assert "has no SLO of openslo/v1" in faults({"kind": "Service"})[0]
    with pytest.raises(SettingsRefusedError, match="not valid YAML"):
        import_openslo("a: [")
