"""What cannot work is refused before it reaches a cluster, with the value's name and the cure."""

import pytest

from tests.support.chart import HELM_3, HELM_4, KEDA, MONITORING, RefusedError, render

WRONG = {
    "nodes without a group": ({"worker": {"nodes": 2}}, "worker.nodes is above 1: set worker.kind to LeaderWorkerSet"),
    "a group of one": ({"worker": {"kind": "LeaderWorkerSet"}}, "set worker.nodes to 2 or more"),
    "an emulated group": (
        {"worker": {"kind": "LeaderWorkerSet", "nodes": 2, "emulated": True}}, "worker.emulated runs on one node"
    ),
    "fewest above most": (
        {"worker": {"autoscaling": {"minReplicas": 9, "maxReplicas": 3}}}, "worker.autoscaling.minReplicas is above"
    ),
    "fewest gateways above most": (
        {"gateway": {"autoscaling": {"minReplicas": 9, "maxReplicas": 3}}}, "gateway.autoscaling.minReplicas is above"
    ),
    "a rollout that cannot move": (
        {"worker": {"strategy": {"maxSurge": 0, "maxUnavailable": 0}}}, "set maxSurge or maxUnavailable above 0"
    ),
    "an ingress without a host": ({"gateway": {"ingress": {"enabled": True}}}, "gateway.ingress.host is missing"),
    "a prober without keys": ({"prober": {"enabled": True}}, "prober.keysSecret is missing"),
    "latest": ({"image": {"tag": "latest"}}, "tag"),
    "an unknown kind of scaler": ({"worker": {"autoscaling": {"mode": "both"}}}, "mode"),
    "a typo": ({"worker": {"replica": 3}}, "replica"),
    "a typo at the top": ({"gatewy": {}}, "gatewy"),
    "a margin too short": ({"drain": {"marginSeconds": 5}}, "marginSeconds"),
    "an unpinned digest": ({"image": {"digest": "sha256:abc"}}, "digest"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_refused(case):
    values, said = WRONG[case]
    with pytest.raises(RefusedError, match=said):
        render(values)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"worker": {"autoscaling": {"mode": "keda"}}}, "--api-versions keda.sh/v1alpha1"),
        ({"worker": {"kind": "LeaderWorkerSet", "nodes": 2}}, "--api-versions leaderworkerset.x-k8s.io/v1"),
    ],
)
def test_what_the_cluster_does_not_know_is_refused(values, said):
    with pytest.raises(RefusedError, match=said):
        render(values, apis=(MONITORING,))
    assert render(values).objects


def test_all_faults_are_told_at_once():
    values = {"worker": {"nodes": 2, "autoscaling": {"minReplicas": 9, "maxReplicas": 3}}}
    with pytest.raises(RefusedError) as refused:
        render(values)
    assert "worker.nodes" in str(refused.value)
    assert "worker.autoscaling.minReplicas" in str(refused.value)


@pytest.mark.parametrize("helm", [HELM_3, HELM_4])
def test_an_old_kubernetes_is_refused(helm):
    with pytest.raises(RefusedError, match=r"1\.29"):
        render(kube="1.28", helm=helm)


def test_keda_is_only_asked_for_where_it_is_known():
    assert render({"worker": {"autoscaling": {"mode": "keda"}}}, apis=(KEDA,)).find("ScaledObject")
