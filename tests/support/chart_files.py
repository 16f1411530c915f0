"""Writes what the chart carries of other parts: ``python -m tests.support.chart_files``; a test fails when it is old.

A chart can only read files inside its own folder, so rules, dashboards, objectives and windows of ``slo/`` are
copied to ``helm/sluice/files``. The settings of the gateway in ``values.schema.json`` come from the settings' own
schema.
"""

import json
from pathlib import Path
from typing import Any

from service.settings.schema import Settings

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "sluice"
SCHEMA = CHART / "values.schema.json"
PREFIX = "settings."
COMPUTED = {
    "LimitSettings": ("drain_delay_s", "grace_s", "whole_s"),
    "PoolSettings": ("discovery", "workers", "name", "port", "service", "port_name", "namespace"),
}
"""Settings the chart computes: not to be written in values."""
COPIED = {"rules": "*.yaml", "dashboards": "*.json", "objectives": "*.yaml", "windows": "*.yaml"}


def build_settings_schema() -> dict[str, Any]:
    """The definitions of everything that may be written under ``settings``."""
    whole = Settings.model_json_schema(ref_template="#/definitions/" + PREFIX + "{model}")
    definitions = whole.pop("$defs")
    definitions["Settings"] = whole
    for part in (whole, definitions["PoolSettings"]):
        part.pop("required", None)  # the chart has defaults for them, or writes them itself
    for name in ("host", "port", "admin_host", "admin_port"):
        del definitions["ListenSettings"]["properties"][name]
    for model, names in COMPUTED.items():
        for name in names:
            del definitions[model]["properties"][name]
    return {PREFIX + name: _strip(body) for name, body in sorted(definitions.items())}


def render_schema() -> str:
    """The chart's schema with the settings' definitions as they are."""
    schema = json.loads(SCHEMA.read_text())
    kept = {name: body for name, body in schema["definitions"].items() if not name.startswith(PREFIX)}
    schema["definitions"] = {**kept, **build_settings_schema()}
    return json.dumps(schema, indent=2) + "\n"


def list_copies() -> dict[Path, str]:
    """Each file under ``files`` that there should be, and its text."""
    return {
        CHART / "files" / folder / source.name: source.read_text()
        for folder, pattern in COPIED.items()
        for source in sorted((ROOT / "slo" / folder).glob(pattern))
    }


def _strip(part: Any) -> Any:
    if isinstance(part, dict):
        return {key: _strip(value) for key, value in part.items() if key not in ("title", "default")}
    return [_strip(item) for item in part] if isinstance(part, list) else part


if __name__ == "__main__":
    SCHEMA.write_text(render_schema())
    copies = list_copies()
    for folder in COPIED:
        for old in (CHART / "files" / folder).glob("*"):
            if old not in copies:
                old.unlink()
    for target, text in copies.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
