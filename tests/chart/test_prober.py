"""The prober calls as a customer does, with keys from a Secret, and is scraped under its own job."""

from tests.support.chart import CHART, FULLNAME, render

ON = {"prober": {"enabled": True, "keysSecret": "probes"}}
SLO = sorted(path for folder in ("objectives", "windows") for path in (CHART / "files" / folder).glob("*.yaml"))


def pod(values=None):
    return render(values or ON).one("Deployment", "-prober")["spec"]["template"]["spec"]


def test_it_is_off_unless_asked_for():
    names = [each["metadata"]["name"] for each in render().objects]
    assert [name for name in names if name.endswith(("-prober", "-slo"))] == []
    assert "sluice-prober" in {each["metadata"]["name"] for each in render(ON).find("PrometheusRule")}


def test_it_goes_through_the_gateways_service():
    args = pod()["containers"][0]["args"]
    assert args[0] == "prober"
    assert f"--url=http://{FULLNAME}.serving.svc:8080" in args
    assert "--model=MiniMax-M3.1-Flash" in args
    assert render(ON).one("Deployment", "-prober")["spec"]["replicas"] == 1


def test_it_and_the_test_pod_speak_tls_where_the_gateways_do():
    tls = {"listen": {"tls": {"cert": "/tls/tls.crt", "key": "/tls/tls.key"}}}
    values = {"settings": tls, "prober": {**ON["prober"], "caSecret": "own-ca"}}
    rendered = render(values)
    spec = rendered.one("Deployment", "-prober")["spec"]["template"]["spec"]
    args = spec["containers"][0]["args"]
    assert f"--url=https://{FULLNAME}.serving.svc:8080" in args
    assert "--ca=/etc/sluice-ca/ca.crt" in args
    assert next(each for each in spec["volumes"] if each["name"] == "ca")["secret"]["secretName"] == "own-ca"
    assert rendered.one("Pod", "-test")["spec"]["containers"][0]["args"][-1] == f"https://{FULLNAME}.serving.svc:8080"
    assert not any(argument.startswith("--ca") for argument in pod()["containers"][0]["args"])


def test_its_keys_come_from_a_secret():
    (container,) = pod()["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "probes"}}]
    more = {**ON["prober"], "extraEnvFrom": [{"configMapRef": {"name": "c"}}]}
    assert len(pod({"prober": more})["containers"][0]["envFrom"]) == 2


def test_it_holds_the_promises_that_the_rules_are_made_from():
    rendered = render(ON)
    made = rendered.one("ConfigMap", "-slo")
    assert sorted(made.get("data") or {}) == [f"{path.parent.name}.{path.name}" for path in SLO]
    volumes = {each["name"]: each["configMap"] for each in pod()["volumes"] if "configMap" in each}
    assert volumes["slo"]["name"] == made["metadata"]["name"]
    paths = [each["path"] for each in volumes["slo"].get("items") or []]
    assert paths == [f"{path.parent.name}/{path.name}" for path in SLO]


def test_other_promises_can_be_given():
    own = {"prober": {**ON["prober"], "objectivesConfigMap": "mine"}}
    assert render(own).find("ConfigMap", "-slo") == []
    volumes = {each["name"]: each["configMap"] for each in pod(own)["volumes"] if "configMap" in each}
    assert volumes["slo"] == {"name": "mine"}


def test_it_is_scraped_under_its_own_job():
    (endpoint,) = render(ON).one("PodMonitor", "-prober")["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == pod()["containers"][0]["ports"][0]["name"]
    assert endpoint["relabelings"][0]["replacement"] == "sluice-prober"


def test_it_speaks_to_gateways_and_dns_only():
    egress = render(ON).one("NetworkPolicy", "-prober")["spec"]["egress"]
    assert len(egress) == 2
    assert egress[1]["ports"] == [{"port": 8080, "protocol": "TCP"}]
    assert egress[1]["to"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "gateway"
