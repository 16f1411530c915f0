"""The manifest that makes a deployment follow the scaler."""

import copy

import pytest

from service.scaler.scaled_object import build_query, build_scaled_object
from tests.support.crd import CRDS, find_faults, load_schema

FILE = CRDS / "keda.sh_scaledobjects.yaml"
MANIFEST = build_scaled_object("m3", "m3-workers", "m3", "http://prometheus:9090", 2, 16)


@pytest.fixture
def schema() -> dict[str, object]:
    if not FILE.exists():
        pytest.skip(f"{FILE} is not here: the schema of ScaledObject is needed")
    return load_schema(FILE, "v1alpha1")


def test_it_is_valid_field_by_field(schema: dict[str, object]) -> None:
    assert find_faults(schema, MANIFEST) == []


def test_the_validation_finds_what_is_wrong(schema: dict[str, object]) -> None:
    wrong = copy.deepcopy(MANIFEST)
    wrong["spec"]["minReplicas"] = 1
    wrong["spec"]["pollingInterval"] = "30"
    wrong["spec"]["triggers"][0]["metadata"]["threshold"] = 1
    del wrong["spec"]["scaleTargetRef"]
    assert len(find_faults(schema, wrong)) == 4


def test_nothing_is_never_taken_for_zero() -> None:
    (trigger,) = MANIFEST["spec"]["triggers"]
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    assert trigger["metricType"] == "AverageValue"
    assert MANIFEST["spec"]["fallback"]["behavior"] == "currentReplicasIfHigher"
    assert MANIFEST["spec"]["minReplicaCount"] == 2
    assert "or" not in build_query("m3").split()


def test_old_clusters_do_without_tolerance() -> None:
    old = build_scaled_object("m3", "m3", "m3", "http://p", 1, 2, tolerance=False)
    behavior = old["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert "tolerance" not in behavior["scaleUp"]
    assert MANIFEST["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleUp"]["tolerance"] == 0


@pytest.mark.parametrize(("least", "most"), [(0, 4), (5, 4)])
def test_bounds_that_cannot_be_kept_are_refused(least: int, most: int) -> None:
    with pytest.raises(ValueError, match="at least"):
        build_scaled_object("m3", "m3", "m3", "http://p", least, most)
