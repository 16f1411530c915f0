"""What holds for every pod of the chart: restricted security, resources, pinned images, nothing mounted unasked."""

import re

import pytest

from tests.support.chart import Manifest, pod_templates, render

GROUP = {"worker": {"kind": "LeaderWorkerSet", "nodes": 2}}
RENDERINGS = {
    "defaults": lambda: render(),
    "dev": lambda: render(files=["values-dev.yaml"]),
    "prod": lambda: render(files=["values-prod.yaml"]),
    "group": lambda: render(GROUP),
}


def pods(which: str) -> list[tuple[str, Manifest]]:
    found = RENDERINGS[which]().pods()
    assert len(found) >= 3
    return found


@pytest.mark.parametrize("which", RENDERINGS)
def test_security_is_restricted(which):
    for name, spec in pods(which):
        context = spec["securityContext"]
        assert context["runAsNonRoot"] is True, name
        assert context["runAsUser"] > 10_000, name
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in spec["containers"]:
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False, name
            assert own["readOnlyRootFilesystem"] is True, name
            assert own["capabilities"] == {"drop": ["ALL"]}, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec), name
        assert not any("hostPath" in volume for volume in spec.get("volumes", ())), name


@pytest.mark.parametrize("which", RENDERINGS)
def test_only_a_gateway_that_asks_the_api_has_a_token(which):
    for name, spec in pods(which):
        assert spec["automountServiceAccountToken"] is name.endswith("-gateway"), name
    without = render({"gateway": {"discovery": "dns"}})
    assert [spec["automountServiceAccountToken"] for _, spec in without.pods()] == [False, False, False]


@pytest.mark.parametrize("which", RENDERINGS)
def test_everybody_says_what_it_needs(which):
    for name, spec in pods(which):
        for container in spec["containers"]:
            assert {"cpu", "memory"} <= set(container["resources"]["requests"]), name
            assert "memory" in container["resources"]["limits"], name


@pytest.mark.parametrize("which", RENDERINGS)
def test_images_are_pinned(which):
    for name, spec in pods(which):
        for container in spec["containers"]:
            assert re.search(r":[0-9][\w.-]*$|@sha256:[0-9a-f]{64}$", container["image"]), name


def test_what_is_written_to_is_a_volume():
    for name, spec in render().pods():
        if "test" in name:
            continue
        mounts = {mount["mountPath"]: mount["name"] for mount in spec["containers"][0]["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        assert "emptyDir" in volumes[mounts["/tmp"]], name  # noqa: S108 - a path in the pod


@pytest.mark.parametrize("which", RENDERINGS)
def test_replicas_are_spread_over_nodes_and_zones(which):
    for manifest in RENDERINGS[which]().objects:
        for template in pod_templates(manifest):
            if manifest["kind"] in ("Pod", "Job"):
                continue
            keys = {each["topologyKey"]: each for each in template["spec"]["topologySpreadConstraints"]}
            assert set(keys) == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}
            for each in keys.values():
                labels = template["metadata"]["labels"]
                assert each["labelSelector"]["matchLabels"].items() <= labels.items()


def test_how_strictly_they_are_spread_can_be_said():
    def rules(values):
        (spec,) = (spec for name, spec in render(values).pods() if name.endswith("-gateway"))
        return {each["topologyKey"]: each["whenUnsatisfiable"] for each in spec["topologySpreadConstraints"]}

    assert set(rules({}).values()) == {"ScheduleAnyway"}
    strict = rules({"gateway": {"spread": {"nodes": "DoNotSchedule"}}})
    assert strict["kubernetes.io/hostname"] == "DoNotSchedule"
    assert strict["topology.kubernetes.io/zone"] == "ScheduleAnyway"
    own = {"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}
    assert rules({"gateway": {"topologySpreadConstraints": [own]}}) == {"rack": "DoNotSchedule"}


@pytest.mark.parametrize("which", RENDERINGS)
def test_selectors_select_their_own_pods_and_no_others(which):
    rendered = RENDERINGS[which]()
    labels = {
        f"{each['kind']}/{each['metadata']['name']}": template["metadata"]["labels"]
        for each in rendered.objects
        for template in pod_templates(each)
    }
    for each in rendered.find("Deployment"):
        own = each["spec"]["selector"]["matchLabels"].items()
        assert [name for name, carried in labels.items() if own <= carried.items()] == [
            f"Deployment/{each['metadata']['name']}"
        ]


def test_standard_labels_are_on_everything_but_custom_ones_too():
    rendered = render({"commonLabels": {"team": "inference"}})
    for each in rendered.objects:
        labels = each["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "sluice"
        assert labels["app.kubernetes.io/instance"] == "sluice"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert labels["helm.sh/chart"].startswith("sluice-")
        assert labels["team"] == "inference"


def test_a_chart_upgrade_alone_restarts_nothing():
    for each in render().find("Deployment"):
        labels = each["spec"]["template"]["metadata"]["labels"]
        assert "helm.sh/chart" not in labels
        assert "app.kubernetes.io/version" not in labels
