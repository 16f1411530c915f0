"""checkov finds in the chart and the Dockerfiles what is explained here, and nothing else.

Its environment takes a minute to install, so without one only `make chart` (SLUICE_CHECKOV=1) runs this.
"""

import os
from pathlib import Path

import pytest

from tests.support import checkov_run
from tests.support.chart import render

pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).parents[2]

CHART = {
    "CKV_K8S_11": "a limit of CPU throttles in the middle of an answer; requests reserve it, memory has a limit",
    "CKV_K8S_15": "tags are never moved and digests cannot be; asking at each start is one more thing to fail",
    "CKV_K8S_35": "secrets are read from the environment once; see SLUICE_ADMIN_TOKEN in `sluice serve --help`",
    "CKV_K8S_38": "a gateway reads EndpointSlices with it; gateway.discovery: dns does without",
    "CKV_K8S_43": "a chart cannot know the digest of your registry: image.digest takes it, values-prod.yaml shows it",
    "CKV_K8S_8": "the test pod asks once and ends",
    "CKV_K8S_9": "the test pod asks once and ends",
}
ONLY = {"CKV_K8S_38": "-gateway", "CKV_K8S_8": "-test", "CKV_K8S_9": "-test"}
DOCKERFILES = {
    "CKV_DOCKER_2": "Kubernetes probes the port and ignores HEALTHCHECK; the compose file has a check of its own",
    "CKV_DOCKER_7": "the base is an argument, whose default has a version",
}


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    if os.environ.get("SLUICE_CHECKOV") != "1" and not checkov_run.locate().is_dir():
        pytest.skip("checkov is not installed: `make chart` installs and runs it")


def failures(framework: str, files: dict[str, str]) -> set[tuple[str, str]]:
    told = checkov_run.judge(framework, files)
    assert told["summary"]["parsing_errors"] == 0
    assert told["summary"]["passed"] > 20
    assert told["summary"]["skipped"] == 0
    return {(each["check_id"], each["resource"]) for each in told["failed_checks"]}


def test_the_chart():
    files = {name: render(files=[name]).text for name in ("values.yaml", "values-dev.yaml", "values-prod.yaml")}
    found = failures("kubernetes", files)
    assert {check for check, _ in found} == set(CHART)
    assert [each for each in found if not each[1].endswith(ONLY.get(each[0], ""))] == []


def test_production_values_pin_digests():
    found = failures("kubernetes", {"prod.yaml": render(files=["values-prod.yaml"]).text})
    assert "CKV_K8S_43" not in {check for check, _ in found}


def test_the_dockerfiles():
    files = {path.name: path.read_text() for path in (ROOT / "Dockerfile", ROOT / "deploy" / "worker.Dockerfile")}
    assert {check for check, _ in failures("dockerfile", files)} == set(DOCKERFILES)


def test_it_sees_faults():
    pod = (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n"
        "spec: {hostNetwork: true, containers: [{name: c, image: 'a:latest'}]}\n"
    )
    told = checkov_run.judge("kubernetes", {"pod.yaml": pod})
    assert {"CKV_K8S_19", "CKV_K8S_14"} <= {each["check_id"] for each in told["failed_checks"]}
