"""Who may speak to whom: workers to nobody but gateways, figures to nobody but Prometheus."""

from tests.support.chart import FULLNAME, Manifest, render

MONITORING = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}, "podSelector": {}}


def policy(name, values=None) -> Manifest:
    return render(values).one("NetworkPolicy", name)["spec"]


def component(peer: Manifest) -> str:
    assert set(peer) == {"podSelector"}
    return peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"]


def egress_ports(spec: Manifest) -> list[int]:
    return [port["port"] for rule in spec["egress"] for port in rule.get("ports", [])]


def test_workers_are_reached_by_gateways_and_prometheus_only():
    spec = policy("-worker")
    (rule,) = spec["ingress"]
    assert rule["ports"] == [{"port": 8000, "protocol": "TCP"}]
    gateway, prometheus = rule["from"]
    assert component(gateway) == "gateway"
    assert prometheus == MONITORING
    assert spec["policyTypes"] == ["Ingress", "Egress"]


def test_workers_fetch_weights_unless_told_not_to():
    assert egress_ports(policy("-worker")) == [53, 53, 443]
    assert egress_ports(policy("-worker", {"networkPolicy": {"workerDownloads": False}})) == [53, 53]
    assert egress_ports(policy("-worker", {"worker": {"emulated": True}})) == [53, 53]


def test_nodes_of_one_worker_reach_each_other():
    spec = policy("-worker", {"worker": {"kind": "LeaderWorkerSet", "nodes": 2}})
    assert component(spec["ingress"][1]["from"][0]) == "worker"
    assert "ports" not in spec["ingress"][1]
    assert [component(rule["to"][0]) for rule in spec["egress"] if rule.get("to") and "ports" not in rule] == ["worker"]


def test_anybody_may_call_gateways_unless_clients_are_named():
    public, admin = policy("-gateway")["ingress"]
    assert public == {"ports": [{"port": "http", "protocol": "TCP"}]}
    assert admin == {"ports": [{"port": "admin", "protocol": "TCP"}], "from": [MONITORING]}
    clients = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}]
    named = policy("-gateway", {"networkPolicy": {"clients": clients}})["ingress"][0]
    assert named["from"][:1] == clients
    # What belongs to the release, as the test pod, still may.
    assert named["from"][1]["podSelector"]["matchLabels"]["app.kubernetes.io/instance"] == "sluice"


def test_gateways_reach_workers_dns_and_the_api_server():
    spec = policy("-gateway")
    assert egress_ports(spec) == [53, 53, 8000, 443, 6443]
    assert component(spec["egress"][1]["to"][0]) == "worker"
    assert egress_ports(policy("-gateway", {"gateway": {"discovery": "dns"}})) == [53, 53, 8000]
    named = policy("-gateway", {"networkPolicy": {"apiServer": {"ports": [6443], "cidrs": ["10.0.0.1/32"]}}})
    assert named["egress"][2] == {
        "ports": [{"port": 6443, "protocol": "TCP"}], "to": [{"ipBlock": {"cidr": "10.0.0.1/32"}}],
    }  # fmt: skip


def test_further_ways_out_can_be_opened():
    rule = {"ports": [{"port": 6379, "protocol": "TCP"}], "to": [{"podSelector": {"matchLabels": {"app": "redis"}}}]}
    assert policy("-gateway", {"networkPolicy": {"gatewayEgress": [rule]}})["egress"][-1] == rule


def test_policies_name_the_pods_they_are_for():
    for name in ("-gateway", "-worker"):
        wanted = render().one("Deployment", name)["spec"]["selector"]["matchLabels"]
        assert policy(name)["podSelector"]["matchLabels"] == wanted


def test_they_can_be_left_out():
    assert render({"networkPolicy": {"enabled": False}}).find("NetworkPolicy") == []
    assert f"{FULLNAME}-gateway" in {each["metadata"]["name"] for each in render().find("NetworkPolicy")}
