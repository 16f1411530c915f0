"""One test per template and rule of the workers."""

import pytest

from service.launch.profiles import build_m31_flash_profile
from tests.support.chart import FULLNAME, GROUPS, render

GROUP = {"kind": "LeaderWorkerSet", "nodes": 2, "tensorParallel": 8}


def pod(values=None):
    return render({"worker": values or {}}).one("Deployment", "-worker")["spec"]["template"]["spec"]


def container(values=None):
    return pod(values)["containers"][0]


def test_it_runs_the_profile_by_our_launcher():
    assert container()["args"][:5] == [
        "worker", "run", "--profile=m3.1-flash", "--host=0.0.0.0", "--port=8000",
    ]  # fmt: skip
    assert "--engine-python=/opt/engine/bin/python3" in container()["args"]


def test_gpus_runtime_class_and_tolerations():
    profile = build_m31_flash_profile()
    spec = pod()
    (own,) = spec["containers"]
    assert own["resources"]["limits"]["nvidia.com/gpu"] == profile.layout.devices
    assert own["resources"]["requests"]["nvidia.com/gpu"] == profile.layout.devices
    assert spec["runtimeClassName"] == "nvidia"
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in spec["tolerations"]
    assert "runtimeClassName" not in pod({"runtimeClassName": ""})


def test_options_of_the_profile_reach_the_command_line():
    said = {
        "model": "/models/m31", "tensorParallel": 8, "kvCacheDtype": "fp8", "contextTokens": 131072,
        "runningRequests": 64, "speculation": "dspark", "schedule": "1-32:7", "extraArgs": ["--force"],
    }  # fmt: skip
    args = container(said)["args"]
    assert args[-8:] == [
        "--model=/models/m31", "--tensor-parallel=8", "--kv-cache-dtype=fp8", "--context-tokens=131072",
        "--running-requests=64", "--speculation=dspark", "--schedule=1-32:7", "--force",
    ]  # fmt: skip


def test_what_differs_from_the_profile_on_purpose_is_not_taken_for_a_fault():
    def settings(values):
        return render(values).one("ConfigMap", "-gateway")["data"]["sluice.yaml"]

    assert "confirm_profile" not in settings({})
    assert "confirm_profile: false" in settings({"worker": {"kvCacheDtype": "fp8"}})
    kept = {"worker": {"kvCacheDtype": "fp8"}, "settings": {"pool": {"confirm_profile": True}}}
    assert "confirm_profile: true" in settings(kept)


@pytest.mark.parametrize(("seconds", "tries"), [(1800, 360), (1801, 361), (30, 6)])
def test_the_start_up_probe_lets_a_model_load(seconds, tries):
    probe = container({"startup": {"seconds": seconds}})["startupProbe"]
    assert probe["periodSeconds"] == 5
    assert probe["failureThreshold"] == tries


def test_a_full_engine_is_not_restarted():
    probe = container()["livenessProbe"]
    assert probe["timeoutSeconds"] * probe["failureThreshold"] >= 120


def test_one_goes_before_one_comes():
    spec = render().one("Deployment", "-worker")["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert spec["progressDeadlineSeconds"] == 2100
    spare = render({"worker": {"strategy": {"maxSurge": 1, "maxUnavailable": 0}}}).one("Deployment", "-worker")
    assert spare["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_the_model_cache():
    rendered = render({"worker": {"cache": {"size": "1Ti", "storageClassName": "fast"}}})
    claim = rendered.one("PersistentVolumeClaim")
    assert claim["spec"] == {
        "accessModes": ["ReadWriteMany"], "storageClassName": "fast", "resources": {"requests": {"storage": "1Ti"}},
    }  # fmt: skip
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    volumes = {each["name"]: each for each in pod()["volumes"]}
    assert volumes["models"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    variables = {each["name"]: each.get("value") for each in container()["env"]}
    assert variables["HF_HOME"] == "/models"


def test_an_existing_claim_and_none():
    rendered = render({"worker": {"cache": {"existingClaim": "weights"}}})
    assert rendered.find("PersistentVolumeClaim") == []
    volumes = {each["name"]: each for each in pod({"cache": {"existingClaim": "weights"}})["volumes"]}
    assert volumes["models"] == {"name": "models", "persistentVolumeClaim": {"claimName": "weights"}}
    assert render({"worker": {"cache": {"enabled": False}}}).find("PersistentVolumeClaim") == []
    volumes = {each["name"]: each for each in pod({"cache": {"enabled": False}})["volumes"]}
    assert volumes["models"] == {"name": "models", "emptyDir": {}}


def test_shared_memory_is_memory():
    volumes = {each["name"]: each for each in pod({"sharedMemory": "32Gi"})["volumes"]}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "32Gi"}


def test_the_hubs_token_comes_from_a_secret():
    assert not any(each["name"] == "HF_TOKEN" for each in container()["env"])
    variables = {each["name"]: each for each in container({"tokenSecret": "hub"})["env"]}
    assert variables["HF_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "hub", "key": "token"}


def test_its_service_is_headless_and_only_of_workers():
    service = render().one("Service", "-workers")["spec"]
    assert service["clusterIP"] == "None"
    assert service["selector"]["app.kubernetes.io/component"] == "worker"
    assert "publishNotReadyAddresses" not in service


def test_a_disruption_budget_by_default():
    assert render().one("PodDisruptionBudget", "-worker")["spec"]["maxUnavailable"] == 1
    assert render({"worker": {"pdb": {"enabled": False}}}).find("PodDisruptionBudget", "-worker") == []
    assert render({"worker": {"pdb": {"maxUnavailable": "25%"}}}).one("PodDisruptionBudget", "-worker")["spec"][
        "maxUnavailable"
    ] == "25%"  # fmt: skip


def test_an_emulated_worker_needs_neither_gpu_nor_weights():
    rendered = render({"worker": {"emulated": True}})
    spec = rendered.one("Deployment", "-worker")["spec"]["template"]["spec"]
    (own,) = spec["containers"]
    assert own["args"][0] == "emulate"
    assert own["image"] == rendered.one("Deployment", "-gateway")["spec"]["template"]["spec"]["containers"][0]["image"]
    assert "nvidia.com/gpu" not in own["resources"]["limits"]
    assert "runtimeClassName" not in spec
    assert rendered.find("PersistentVolumeClaim") == []
    assert "profile" not in rendered.one("ConfigMap", "-gateway")["data"]["sluice.yaml"]


def test_without_workers_nothing_of_theirs_is_made():
    rendered = render({"worker": {"enabled": False}})
    assert [each["metadata"]["name"] for each in rendered.objects if "worker" in each["metadata"]["name"]] == []


def test_a_worker_over_several_nodes():
    rendered = render({"worker": GROUP})
    assert rendered.find("Deployment", "-worker") == []
    spec = rendered.one("LeaderWorkerSet")["spec"]
    assert spec["replicas"] == 2
    group = spec["leaderWorkerTemplate"]
    assert group["size"] == 2
    assert group["restartPolicy"] == "RecreateGroupOnPodRestart"
    leader, follower = (group[f"{name}Template"]["spec"]["containers"][0] for name in ("leader", "worker"))
    for each in (leader, follower):
        seat = ["--nodes=2", "--node-rank=$(LWS_WORKER_INDEX)", "--leader=$(LWS_LEADER_ADDRESS)"]
        assert [word for word in seat if word in each["args"]] == seat
        assert each["resources"]["limits"]["nvidia.com/gpu"] == 4
    assert "readinessProbe" in leader
    assert not {"readinessProbe", "startupProbe", "livenessProbe", "ports"} & set(follower)


def test_gateways_speak_to_leaders_only():
    service = render({"worker": GROUP}).one("Service", "-workers")["spec"]
    assert service["selector"]["leaderworkerset.sigs.k8s.io/worker-index"] == "0"


def test_annotations_of_the_workload_itself():
    wanted = {"leaderworkerset.sigs.k8s.io/exclusive-topology": "rack"}
    group = render({"worker": {**GROUP, "annotations": wanted}}).one("LeaderWorkerSet")
    assert group["metadata"]["annotations"] == wanted
    alone = render({"worker": {"annotations": wanted}}).one("Deployment", "-worker")
    assert alone["metadata"]["annotations"] == wanted


def test_a_group_can_be_scaled():
    rendered = render({"worker": {**GROUP, "autoscaling": {"mode": "keda"}}}, apis=(GROUPS, "keda.sh/v1alpha1"))
    assert "replicas" not in rendered.one("LeaderWorkerSet")["spec"]
    assert rendered.one("ScaledObject")["spec"]["scaleTargetRef"] == {
        "apiVersion": GROUPS, "kind": "LeaderWorkerSet", "name": f"{FULLNAME}-worker",
    }  # fmt: skip


def test_users_may_add_to_the_pod():
    spec = pod(
        {
            "extraEnv": [{"name": "NCCL_DEBUG", "value": "INFO"}],
            "extraEnvFrom": [{"configMapRef": {"name": "c"}}],
            "extraVolumes": [{"name": "more", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
            "priorityClassName": "gpu",
        }
    )
    (own,) = spec["containers"]
    assert {"name": "NCCL_DEBUG", "value": "INFO"} in own["env"]
    assert own["envFrom"] == [{"configMapRef": {"name": "c"}}]
    assert {"name": "more", "mountPath": "/more"} in own["volumeMounts"]
    assert {"name": "more", "emptyDir": {}} in spec["volumes"]
    assert spec["priorityClassName"] == "gpu"
