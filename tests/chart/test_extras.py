"""Names, priority classes, further objects, the test pod, and the notes."""

import http.server
import subprocess
import sys
import threading

import pytest

from tests.support.chart import CHART, NAMESPACE, RELEASE, render, run_helm


@pytest.mark.parametrize(
    ("values", "prefix"),
    [
        ({}, "sluice"),
        ({"nameOverride": "gate"}, "sluice-gate"),
        ({"fullnameOverride": "front"}, "front"),
        ({"fullnameOverride": "x" * 60}, "x" * 40),
    ],
)
def test_names(values, prefix):
    names = {each["metadata"]["name"] for each in render(values).objects}
    assert all(name == prefix or name.startswith(f"{prefix}-") for name in names)
    assert all(len(name) <= 63 for name in names)


def test_priority_classes():
    assert render().find("PriorityClass") == []
    rendered = render({"priorityClasses": {"create": True}})
    classes = {each["metadata"]["name"]: each["value"] for each in rendered.find("PriorityClass")}
    assert classes == {"sluice-gateway": 1_000_000, "sluice-worker": 900_000}
    used = {each["spec"]["template"]["spec"]["priorityClassName"] for each in rendered.find("Deployment")}
    assert used == set(classes)
    own = render({"priorityClasses": {"create": True}, "worker": {"priorityClassName": "gpu"}})
    assert own.one("Deployment", "-worker")["spec"]["template"]["spec"]["priorityClassName"] == "gpu"


def test_further_objects_may_use_templates():
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: '{{ .Release.Name }}-text'}"
    whole = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-map"}}
    rendered = render({"extraObjects": [text, whole]})
    assert {each["metadata"]["name"] for each in rendered.find("ConfigMap")} >= {"sluice-text", "sluice-map"}


def test_the_test_pod_is_a_hook_and_can_be_left_out():
    pod = render().one("Pod", "-test")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert render({"tests": {"enabled": False}}).find("Pod") == []


@pytest.mark.parametrize(("ready", "code"), [(200, 0), (503, 1)])
def test_the_test_pods_program_judges_rightly(ready, code):
    answers = {"/healthz": 200, "/readyz": ready, "/v1/models": 401}

    class Gateway(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(answers[self.path])
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Gateway)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        (container,) = render().one("Pod", "-test")["spec"]["containers"]
        assert container["args"][1] == f"http://sluice.{NAMESPACE}.svc:8080"
        program = (sys.executable, "-c", container["args"][0], f"http://127.0.0.1:{server.server_port}")
        assert subprocess.run(program, capture_output=True, timeout=30, check=False).returncode == code
    finally:
        server.shutdown()
        server.server_close()


def notes(*options: str) -> str:
    done = run_helm("4.3.1", "install", RELEASE, str(CHART), "--dry-run=client", "-n", NAMESPACE, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("NOTES:")[2]


def test_notes_tell_the_next_step():
    said = notes()
    assert "kubectl -n serving rollout status deployment/sluice-gateway --timeout=2100s" in said
    assert "helm test -n serving sluice" in said
    assert "sluice keys new" in said
    assert "The Prometheus operator was not found" in said
    assert "Several gateways share nothing" in said
    assert "Each gateway keeps its ledger in its own pod" in said
    assert "Secret sluice" in said
    prod = notes("--values", str(CHART / "values-prod.yaml"), "--set", "worker.autoscaling.mode=none")
    assert "sluice keys new" not in prod
    assert "curl -H" in prod
    assert "share nothing" not in prod
    assert "in its own pod" not in prod
    assert "which stays" not in prod
    assert "There are no workers in this release" in notes("--set", "worker.enabled=false")
