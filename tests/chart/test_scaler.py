"""The scaler's own pods, and that what they publish is what the autoscaler asks for."""

import re

from service.scaler.scaled_object import build_query, build_scaled_object
from tests.support.chart import FULLNAME, NAMESPACE, render

ON = {"scaler": {"enabled": True}, "worker": {"autoscaling": {"mode": "keda", "minReplicas": 3, "maxReplicas": 9}}}
POOL = f"{NAMESPACE}/{FULLNAME}"


def pod(values=None):
    return render(values or ON).one("Deployment", "-scaler")["spec"]["template"]["spec"]


def test_it_is_off_unless_asked_for():
    assert [each for each in render().objects if each["metadata"]["name"].endswith("-scaler")] == []


def test_it_reads_the_gateways_settings_and_prometheus():
    spec = pod()
    args = spec["containers"][0]["args"]
    assert args[0] == "scaler"
    assert "--prometheus=http://prometheus-operated.monitoring.svc:9090" in args
    assert '--selector=job="sluice-gateway",namespace="serving"' in args
    assert {"name": "config", "configMap": {"name": "sluice-gateway"}} in spec["volumes"]


def test_it_and_the_autoscaler_have_the_same_bounds():
    args = pod()["containers"][0]["args"]
    scaled = render(ON).one("ScaledObject")["spec"]
    assert f"--least={scaled['minReplicaCount']}" in args
    assert f"--most={scaled['maxReplicaCount']}" in args


def test_the_autoscaler_asks_for_this_releases_pool_while_it_is_fresh():
    query = render(ON).one("ScaledObject")["spec"]["triggers"][0]["metadata"]["query"]
    assert set(re.findall(r'pool="([^"]+)"', query)) == {POOL}
    assert f"--pool={POOL}" in pod()["containers"][0]["args"]
    assert "sluice_scaler_input_age_seconds" in query
    assert query == build_query(POOL)
    own = {**ON, "worker": {"autoscaling": {"mode": "keda", "query": "vector(3)"}}}
    assert render(own).one("ScaledObject")["spec"]["triggers"][0]["metadata"]["query"] == "vector(3)"
    hpa = render({"worker": {"autoscaling": {"mode": "hpa"}}}).one("HorizontalPodAutoscaler")
    assert hpa["spec"]["metrics"][0]["external"]["metric"] == {
        "name": "sluice_desired_replicas", "selector": {"matchLabels": {"pool": POOL}},
    }  # fmt: skip


def test_it_is_what_the_scaler_itself_would_print_but_for_names_and_patience():
    made = render(ON).one("ScaledObject")["spec"]
    printed = build_scaled_object(
        "w", f"{FULLNAME}-worker", POOL, "http://prometheus-operated.monitoring.svc:9090", 3, 9
    )
    printed = printed["spec"]
    assert made["triggers"] == printed["triggers"]
    assert made["fallback"]["behavior"] == printed["fallback"]["behavior"]
    ours, theirs = (
        each["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleUp"] for each in (made, printed)
    )
    assert ours == theirs
    old = render(ON, kube="1.32").one("ScaledObject")["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert "tolerance" not in old["scaleUp"]


def test_several_run_and_one_may_go():
    rendered = render(ON)
    assert rendered.one("Deployment", "-scaler")["spec"]["replicas"] == 2
    assert rendered.one("PodDisruptionBudget", "-scaler")["spec"]["maxUnavailable"] == 1


def test_it_is_scraped_under_its_own_job():
    rendered = render(ON)
    (endpoint,) = rendered.one("PodMonitor", "-scaler")["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == pod()["containers"][0]["ports"][0]["name"]
    assert endpoint["relabelings"] == [{"action": "replace", "targetLabel": "job", "replacement": "sluice-scaler"}]


def test_it_speaks_to_prometheus_and_dns_only():
    spec = render(ON).one("NetworkPolicy", "-scaler")["spec"]
    monitoring = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
        "podSelector": {},
    }
    assert spec["ingress"] == [{"ports": [{"port": "metrics", "protocol": "TCP"}], "from": [monitoring]}]
    assert spec["egress"][1:] == [{"to": [monitoring]}]


def test_gateways_say_which_worker_may_go_where_something_scales():
    def settings(values):
        return render(values).one("ConfigMap", "-gateway")["data"]["sluice.yaml"]

    assert "deletion_cost: true" in settings(ON)
    assert "deletion_cost" not in settings({})
    assert {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]} in render(ON).one("Role")["rules"]
    group = {"kind": "LeaderWorkerSet", "nodes": 2, "autoscaling": {"mode": "keda"}}
    assert "deletion_cost" not in settings({"worker": group})
