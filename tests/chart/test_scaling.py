"""Workers are scaled by one thing at a time, and nobody is sent away because a figure is missing."""

import copy

import pytest

from tests.support.chart import FULLNAME, find_faults, need_crds, render

KEDA = {"worker": {"autoscaling": {"mode": "keda", "minReplicas": 3, "maxReplicas": 9, "fallbackReplicas": 5}}}
HPA = {"worker": {"autoscaling": {"mode": "hpa", "minReplicas": 3, "maxReplicas": 9}}}


def test_by_default_nothing_scales():
    rendered = render()
    assert rendered.find("ScaledObject") == rendered.find("HorizontalPodAutoscaler") == []
    assert rendered.one("Deployment", "-worker")["spec"]["replicas"] == 2


@pytest.mark.parametrize(("values", "kind"), [(KEDA, "ScaledObject"), (HPA, "HorizontalPodAutoscaler")])
def test_one_scaler_and_no_replicas(values, kind):
    rendered = render(values)
    others = {"ScaledObject", "HorizontalPodAutoscaler"} - {kind}
    assert len(rendered.find(kind)) == 1
    assert [each for other in others for each in rendered.find(other)] == []
    assert "replicas" not in rendered.one("Deployment", "-worker")["spec"]


def test_an_empty_answer_is_an_error_and_not_zero_workers():
    (trigger,) = render(KEDA).one("ScaledObject")["spec"]["triggers"]
    assert trigger["metadata"]["ignoreNullValues"] == "false"


def test_without_an_answer_nobody_goes():
    spec = render(KEDA).one("ScaledObject")["spec"]
    assert spec["fallback"] == {"failureThreshold": 3, "replicas": 5, "behavior": "currentReplicasIfHigher"}
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (3, 9)


def test_the_figure_is_the_number_of_workers():
    (trigger,) = render(KEDA).one("ScaledObject")["spec"]["triggers"]
    assert trigger["metricType"] == "AverageValue"
    assert trigger["metadata"]["threshold"] == "1"
    (metric,) = render(HPA).one("HorizontalPodAutoscaler")["spec"]["metrics"]
    assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": "1"}


def test_one_worker_goes_at_a_time_and_late():
    keda = render(KEDA).one("ScaledObject")["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    hpa = render(HPA).one("HorizontalPodAutoscaler")["spec"]["behavior"]
    for behavior in (keda, hpa):
        assert behavior["scaleDown"]["stabilizationWindowSeconds"] == 900
        assert behavior["scaleDown"]["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 300}]
        assert behavior["scaleUp"]["stabilizationWindowSeconds"] == 0


def test_both_scale_the_deployment_of_the_workers():
    for values, kind in ((KEDA, "ScaledObject"), (HPA, "HorizontalPodAutoscaler")):
        target = render(values).one(kind)["spec"]["scaleTargetRef"]
        assert target == {"apiVersion": "apps/v1", "kind": "Deployment", "name": f"{FULLNAME}-worker"}


def test_kedas_schema_takes_it():
    need_crds()
    scaled = render(KEDA).one("ScaledObject")
    assert find_faults(scaled) == []
    wrong = copy.deepcopy(scaled)
    wrong["spec"]["fallback"]["behavior"] = "currentReplicasIfLarger"
    assert len(find_faults(wrong)) == 1
