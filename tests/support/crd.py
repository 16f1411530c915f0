"""Validates a manifest against a custom resource's schema, strictly: a field that the schema does not name is wrong."""

import os
from pathlib import Path
from typing import Any

import yaml


def _find_folder() -> Path:
    """``SLUICE_CRDS``, else ``shared/crds`` in any folder above the repository."""
    above = [folder / "shared" / "crds" for folder in Path(__file__).resolve().parents]
    return Path(os.environ.get("SLUICE_CRDS") or next((one for one in above if one.is_dir()), "crds"))


CRDS = _find_folder()

_KINDS = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}


def load_schema(file: Path, version: str) -> dict[str, Any]:
    """The schema of one version."""
    crd = yaml.safe_load(file.read_text())
    return next(one["schema"]["openAPIV3Schema"] for one in crd["spec"]["versions"] if one["name"] == version)


def find_faults(schema: dict[str, Any], given: Any, path: str = "") -> list[str]:
    """Everything that the schema does not allow."""
    if schema.get("x-kubernetes-int-or-string"):
        return (
            [] if isinstance(given, int | str) and not isinstance(given, bool) else [f"{path}: neither number nor text"]
        )
    kind = _KINDS.get(schema.get("type", ""))
    if kind is not None and (not isinstance(given, kind) or (isinstance(given, bool) and schema["type"] != "boolean")):
        return [f"{path}: {given!r} is no {schema['type']}"]
    faults = [f"{path}: {given!r} is none of {schema['enum']}"] if given not in schema.get("enum", [given]) else []
    if isinstance(given, list):
        for index, item in enumerate(given):
            faults += find_faults(schema.get("items", {}), item, f"{path}[{index}]")
    if isinstance(given, dict):
        known = schema.get("properties", {})
        more = schema.get("additionalProperties")
        faults += [f"{path}.{name}: is missing" for name in schema.get("required", []) if name not in given]
        for name, value in given.items():
            if name in known:
                faults += find_faults(known[name], value, f"{path}.{name}")
            elif isinstance(more, dict):
                faults += find_faults(more, value, f"{path}.{name}")
            elif not schema.get("x-kubernetes-preserve-unknown-fields") and known:
                faults.append(f"{path}.{name}: is not known")
    return faults
