"""One test per template and rule of the gateway."""

import base64

import pytest

from tests.support.chart import FULLNAME, NAMESPACE, render


def deployment(values=None, **how):
    return render(values, **how).one("Deployment", "-gateway")["spec"]


def container(values=None):
    return deployment(values)["template"]["spec"]["containers"][0]


def test_a_rollout_never_has_fewer_than_asked():
    spec = deployment()
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert spec["minReadySeconds"] == 10
    assert spec["revisionHistoryLimit"] == 5


def test_a_rollout_waits_for_the_first_worker():
    assert deployment()["progressDeadlineSeconds"] == 2100
    assert deployment({"worker": {"startup": {"seconds": 3600}}})["progressDeadlineSeconds"] == 3900
    assert deployment({"gateway": {"progressDeadlineSeconds": 77}})["progressDeadlineSeconds"] == 77


def test_liveness_never_depends_on_workers():
    spec = container()
    assert spec["livenessProbe"]["httpGet"]["path"] == spec["startupProbe"]["httpGet"]["path"] == "/healthz"
    assert spec["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_secrets_come_from_a_secret():
    variables = {each["name"]: each for each in container()["env"]}
    reference = variables["SLUICE_ADMIN_TOKEN"]["valueFrom"]["secretKeyRef"]
    assert reference == {"name": FULLNAME, "key": "admin-token"}
    made = render().one("Secret")
    assert made["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    values = [base64.b64decode(value) for value in made["data"].values()]
    assert [len(value) for value in values] == [48, 48]
    assert values[0] != values[1]


def test_passwords_of_redis_and_postgres_come_from_their_secrets():
    assert {each["name"] for each in container()["env"]} == {"SLUICE_CONFIG", "SLUICE_ADMIN_TOKEN", "SLUICE_CACHE_SALT"}
    stores = {"redis": {"existingSecret": "redis"}, "postgres": {"existingSecret": "db", "key": "pw"}}
    variables = {each["name"]: each for each in container({"secrets": stores})["env"]}
    assert variables["SLUICE_REDIS_PASSWORD"]["valueFrom"]["secretKeyRef"] == {"name": "redis", "key": "password"}
    assert variables["PGPASSWORD"]["valueFrom"]["secretKeyRef"] == {"name": "db", "key": "pw"}


def test_relative_paths_of_the_settings_can_be_written():
    spec = container()
    assert spec["workingDir"] == "/var/lib/sluice"
    assert {"name": "data", "mountPath": "/var/lib/sluice"} in spec["volumeMounts"]
    volumes = {each["name"]: each for each in deployment()["template"]["spec"]["volumes"]}
    assert volumes["data"]["emptyDir"] == {"sizeLimit": "4Gi"}


def test_an_existing_secret_is_used_and_none_made():
    rendered = render({"secrets": {"existingSecret": "mine", "adminTokenKey": "token"}})
    assert rendered.find("Secret") == []
    names = {
        each["name"]: each
        for each in rendered.one("Deployment", "-gateway")["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    assert names["SLUICE_ADMIN_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "mine", "key": "token"}
    assert names["SLUICE_CACHE_SALT"]["valueFrom"]["secretKeyRef"] == {"name": "mine", "key": "cache-salt"}


def test_a_change_of_the_settings_restarts_it_and_one_of_a_replica_count_does_not():
    def sums(values=None):
        return deployment(values)["template"]["metadata"]["annotations"]

    before = sums()
    assert sums({"gateway": {"replicas": 5}}) == before
    queue = sums({"settings": {"limits": {"queue_ttl_s": 5}}})
    assert queue["checksum/config"] != before["checksum/config"]
    assert queue["checksum/slo"] == before["checksum/slo"]
    tiers = sums({"settings": {"tiers": {"priority": {"availability": 0.99}}}})
    assert tiers["checksum/slo"] != before["checksum/slo"]


def test_users_may_add_to_the_pod():
    spec = deployment(
        {
            "gateway": {
                "extraArgs": ["--flag"],
                "extraEnv": [{"name": "A", "value": "b"}],
                "extraEnvFrom": [{"secretRef": {"name": "s"}}],
                "extraVolumes": [{"name": "tls", "secret": {"secretName": "tls"}}],
                "extraVolumeMounts": [{"name": "tls", "mountPath": "/tls"}],
                "podAnnotations": {"x": "y"},
                "podLabels": {"l": "m"},
                "priorityClassName": "high",
                "nodeSelector": {"n": "o"},
                "tolerations": [{"operator": "Exists"}],
                "affinity": {"nodeAffinity": {}},
            }
        }
    )["template"]
    pod, own = spec["spec"], spec["spec"]["containers"][0]
    assert own["args"] == ["serve", "--flag"]
    assert {"name": "A", "value": "b"} in own["env"]
    assert own["envFrom"] == [{"secretRef": {"name": "s"}}]
    assert {"name": "tls", "mountPath": "/tls"} in own["volumeMounts"]
    assert {"name": "tls", "secret": {"secretName": "tls"}} in pod["volumes"]
    assert spec["metadata"]["annotations"]["x"] == "y"
    assert spec["metadata"]["labels"]["l"] == "m"
    assert pod["priorityClassName"] == "high"
    assert pod["nodeSelector"] == {"n": "o"}
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert pod["affinity"] == {"nodeAffinity": {}}


def test_services_keep_the_admin_port_apart():
    public, admin = render().one("Service", f"{FULLNAME}"), render().one("Service", "-admin")
    assert [port["name"] for port in public["spec"]["ports"]] == ["http"]
    assert [port["name"] for port in admin["spec"]["ports"]] == ["admin"]
    assert admin["spec"]["clusterIP"] == "None"
    assert public["spec"]["type"] == "ClusterIP"
    service = {"type": "LoadBalancer", "port": 443, "annotations": {"a": "b"}}
    other = render({"gateway": {"service": service}}).one("Service", FULLNAME)
    assert (other["spec"]["type"], other["spec"]["ports"][0]["port"]) == ("LoadBalancer", 443)
    assert other["metadata"]["annotations"] == {"a": "b"}


def test_a_disruption_budget_by_default():
    budget = render().one("PodDisruptionBudget", "-gateway")["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert budget["selector"]["matchLabels"] == deployment()["selector"]["matchLabels"]
    assert render({"gateway": {"pdb": {"enabled": False}}}).find("PodDisruptionBudget", "-gateway") == []


def test_autoscaled_it_has_no_replicas():
    assert deployment({"gateway": {"replicas": 4}})["replicas"] == 4
    rendered = render({"gateway": {"autoscaling": {"enabled": True, "maxReplicas": 7}}})
    assert "replicas" not in rendered.one("Deployment", "-gateway")["spec"]
    scaler = rendered.one("HorizontalPodAutoscaler", "-gateway")["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 7)
    assert scaler["scaleTargetRef"]["name"] == f"{FULLNAME}-gateway"
    assert scaler["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 600
    assert render().find("HorizontalPodAutoscaler") == []


def test_an_ingress_if_asked():
    assert render().find("Ingress") == []
    asked = {
        "enabled": True,
        "host": "api.example.com",
        "className": "nginx",
        "tlsSecret": "cert",
        "annotations": {"a": "b"},
    }
    made = render({"gateway": {"ingress": asked}}).one("Ingress")
    assert made["metadata"]["annotations"] == {"a": "b"}
    assert made["spec"]["ingressClassName"] == "nginx"
    assert made["spec"]["tls"] == [{"hosts": ["api.example.com"], "secretName": "cert"}]
    (rule,) = made["spec"]["rules"]
    assert rule["http"]["paths"][0]["backend"]["service"] == {"name": FULLNAME, "port": {"name": "http"}}
    plain = render({"gateway": {"ingress": {"enabled": True, "host": "h"}}}).one("Ingress")["spec"]
    assert "tls" not in plain
    assert "ingressClassName" not in plain


def test_it_may_read_endpoint_slices_and_nothing_else():
    rendered = render()
    assert rendered.one("Role")["rules"] == [
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]}
    ]
    binding = rendered.one("RoleBinding")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": f"{FULLNAME}-gateway", "namespace": NAMESPACE}]
    assert rendered.find("ClusterRole") == rendered.find("ClusterRoleBinding") == []
    without = render({"gateway": {"discovery": "dns"}})
    assert without.find("Role") == without.find("RoleBinding") == []


def test_accounts_mount_nothing_by_themselves():
    accounts = render({"serviceAccount": {"annotations": {"a": "b"}}}).find("ServiceAccount")
    assert {each["metadata"]["name"] for each in accounts} >= {f"{FULLNAME}-gateway", f"{FULLNAME}-worker"}
    for each in accounts:
        assert each["automountServiceAccountToken"] is False
        assert each["metadata"]["annotations"] == {"a": "b"}


@pytest.mark.parametrize(
    ("image", "wanted"),
    [
        ({"repository": "r/s"}, "r/s:0.1.0"),
        ({"repository": "r/s", "tag": "7"}, "r/s:7"),
        ({"repository": "r:5000/s", "tag": "7", "digest": "sha256:" + "a" * 64}, "r:5000/s@sha256:" + "a" * 64),
    ],
)
def test_a_digest_wins_over_a_tag(image, wanted):
    assert container({"image": image})["image"] == wanted


def test_pull_secrets_reach_every_pod():
    for name, spec in render({"imagePullSecrets": [{"name": "registry"}]}).pods():
        assert spec["imagePullSecrets"] == [{"name": "registry"}], name
