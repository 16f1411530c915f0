"""Renders the chart with Helm and judges what comes out: each set of values is rendered once for all tests."""

import functools
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate.utils
import pytest
import referencing
import yaml

from tests.support.helm_binary import helm_or_skip

CHART = Path(__file__).parents[2] / "helm" / "sluice"
HELM_3, HELM_4 = "3.17.3", "4.3.1"
KUBERNETES = ("1.29", "1.30", "1.31", "1.32", "1.33", "1.34", "1.35")
MONITORING, KEDA, GROUPS = "monitoring.coreos.com/v1", "keda.sh/v1alpha1", "leaderworkerset.x-k8s.io/v1"
OPERATORS = (MONITORING, KEDA, GROUPS)
RELEASE, NAMESPACE = "sluice", "serving"
FULLNAME = "sluice"

Manifest = dict[str, Any]
Values = Mapping[str, Any]


class RefusedError(Exception):
    """Helm would not render; the message is Helm's."""


class Rendered:
    """The objects of one rendering."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.objects: list[Manifest] = [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each]

    def find(self, kind: str, name: str = "") -> list[Manifest]:
        """All of a kind, or those whose name ends so."""
        return [each for each in self.objects if each["kind"] == kind and each["metadata"]["name"].endswith(name)]

    def one(self, kind: str, name: str = "") -> Manifest:
        """The only one."""
        found = self.find(kind, name)
        assert len(found) == 1, f"{len(found)} of {kind} {name}"
        return found[0]

    def pods(self) -> list[tuple[str, Manifest]]:
        """The name of each pod or template of pods, and its spec."""
        return [
            (f"{each['kind']}/{each['metadata']['name']}", template["spec"])
            for each in self.objects
            for template in pod_templates(each)
        ]


def pod_templates(manifest: Manifest) -> list[Manifest]:
    """The pod templates within an object; a pod is its own."""
    match manifest["kind"]:
        case "Pod":
            return [manifest]
        case "Deployment" | "Job":
            return [manifest["spec"]["template"]]
        case "LeaderWorkerSet":
            group = manifest["spec"]["leaderWorkerTemplate"]
            return [group["leaderTemplate"], group["workerTemplate"]]
        case _:
            return []


def render(values: Values | None = None, **how: Any) -> Rendered:
    """The chart with ``values``. ``how``: helm, kube, apis, files (names of values files of the chart)."""
    return _render(json.dumps(values or {}), tuple(how.pop("files", ())), tuple(how.pop("apis", OPERATORS)), **how)


@functools.cache
def _render(
    values: str, files: tuple[str, ...], apis: tuple[str, ...], helm: str = HELM_4, kube: str = "1.33"
) -> Rendered:
    options = ["--kube-version", f"{kube}.0", "--namespace", NAMESPACE]
    for api in apis:
        options += ["--api-versions", api]
    for name in files:
        options += ["--values", str(CHART / name)]  # a path from the root of the file system stays one
    with tempfile.NamedTemporaryFile("w", suffix=".json") as written:
        written.write(values)
        written.flush()
        done = run_helm(helm, "template", RELEASE, str(CHART), *options, "--values", written.name)
    if done.returncode:
        raise RefusedError(done.stderr)
    return Rendered(done.stdout)


def run_helm(version: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Helm, away from any cluster and from the user's own settings."""
    helm = helm_or_skip(version)
    with tempfile.TemporaryDirectory() as home:
        environment = {"HOME": home, "PATH": "/usr/bin:/bin", "KUBECONFIG": "/dev/null"}
        return subprocess.run(
            (str(helm), *arguments), capture_output=True, text=True, timeout=60, check=False, env=environment
        )


# ------------------------------------------------------------------------------------------------ schemas


@functools.cache
def _definitions(version: str) -> referencing.Resource[Any]:
    contents = kubernetes_validate.utils.schema_contents(
        f"kubernetes-json-schema/v{_release(version)}-local-strict/_definitions.json", version
    )
    return referencing.Resource.from_contents(contents)


@functools.cache
def _release(version: str) -> str:
    return next(each for each in kubernetes_validate.utils.all_versions() if each.startswith(f"{version}."))


@functools.cache
def _core_validator(api_version: str, kind: str, version: str) -> Any:
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    name = f"kubernetes-json-schema/v{_release(version)}-local-strict/{kind.lower()}-{group}.json"
    schema = referencing.Resource.from_contents(kubernetes_validate.utils.schema_contents(name, version))
    registry = _definitions(version) @ (schema @ referencing.Registry())
    return jsonschema.Draft202012Validator(schema.contents, registry=registry)


@functools.cache
def crd_folder() -> Path | None:
    """Where schemas of custom resources are: ``SLUICE_CRDS``, else ``shared/crds`` in a folder above the repository."""
    named = os.environ.get("SLUICE_CRDS")
    if named:
        return Path(named)
    found = [folder / "shared" / "crds" for folder in CHART.parents if (folder / "shared" / "crds").is_dir()]
    return found[0] if found else None


@functools.cache
def _custom_validators() -> dict[tuple[str, str], Any]:
    folder = crd_folder()
    if folder is None:
        return {}
    validators = {}
    for path in folder.glob("*.yaml"):
        crd = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)["spec"]
        for version in crd["versions"]:
            schema = _close(version["schema"]["openAPIV3Schema"])
            schema["properties"]["metadata"] = {"type": "object"}
            key = f"{crd['group']}/{version['name']}", crd["names"]["kind"]
            validators[key] = jsonschema.Draft202012Validator(schema)
    return validators


def _close(schema: Any) -> Any:
    """The schema as an API server holds it with strict field validation: what is not named is refused."""
    if isinstance(schema, list):
        return [_close(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _close(value) for key, value in schema.items() if key not in ("description", "format", "default")}
    if closed.pop("x-kubernetes-int-or-string", False):
        closed.pop("anyOf", None)
        closed["type"] = ["integer", "string"]
    free = closed.pop("x-kubernetes-preserve-unknown-fields", False)
    if isinstance(closed.get("properties"), dict) and "additionalProperties" not in closed and not free:
        closed["additionalProperties"] = False
    return closed


def find_faults(manifest: Manifest, versions: Iterable[str] = KUBERNETES) -> list[str]:
    """What strict schemas have against the object."""
    key = manifest["apiVersion"], manifest["kind"]
    if key[0] in OPERATORS:
        validator = _custom_validators().get(key)
        return [] if validator is None else [_tell("", error) for error in validator.iter_errors(manifest)]
    return [
        _tell(version, error) for version in versions for error in _core_validator(*key, version).iter_errors(manifest)
    ]


def need_crds() -> None:
    """Skip where the schemas of custom resources are absent."""
    if crd_folder() is None:
        pytest.skip("no schemas of custom resources: set SLUICE_CRDS, or put them at ../shared/crds")


def _tell(version: str, error: jsonschema.ValidationError) -> str:
    return f"{version} {'.'.join(map(str, error.absolute_path))}: {error.message[:200]}"
