"""The reference names every setting with its true default, and nothing else; the example file is valid."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from service.settings.build import load_plan
from service.settings.changes import APPLIED_AT_RELOAD
from service.settings.schema import NOT_YET, Settings

DEPLOY = Path(__file__).parents[3] / "deploy"


def models_in(annotation: Any) -> list[tuple[str, type[BaseModel]]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [("", annotation)]
    arguments = get_args(annotation)
    mark = {"dict": ".NAME", "list": "[]"}.get(getattr(annotation, "__origin__", type(None)).__name__, "")
    return [(mark + inner, model) for one in arguments for inner, model in models_in(one)]


def walk(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, field in model.model_fields.items():
        full = f"{path}.{name}" if path else name
        inside = models_in(field.annotation)
        if inside:
            for mark, inner in inside:
                yield from walk(inner, full + mark)
        else:
            yield full, field


SETTINGS = dict(walk(Settings))
ROWS = {
    path: (default, bool(restart), text)
    for path, default, restart, text in re.findall(
        r"^\| `([^`]+)` \| (.*?)(, \*restart\*)? \| (.*) \|$", (DEPLOY / "SETTINGS.md").read_text(), re.MULTILINE
    )
}


def test_every_setting_is_documented_and_nothing_else():
    assert set(ROWS) == set(SETTINGS)


@pytest.mark.parametrize("path", SETTINGS)
def test_the_default_and_the_need_of_a_restart_are_true(path):
    written, restart, text = ROWS[path]
    field = SETTINGS[path]
    assert len(text) > 10
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    if field.is_required():
        assert written.startswith("*(required")
    elif default in (None, {}):
        assert not re.fullmatch(r"`[\d.]+`", written)
    else:
        shown = {True: "true", False: "false"}.get(default, str(default)) if isinstance(default, bool) else str(default)
        assert written == f"`{shown}`"
    plain = re.sub(r"\[\]|\.NAME", "", path)
    applied = any(plain == known or plain.startswith(f"{known}.") for known in APPLIED_AT_RELOAD)
    assert restart is not applied


def test_what_is_refused_is_named():
    text = (DEPLOY / "SETTINGS.md").read_text()
    assert all(f"`{name}`" in text for name in NOT_YET)


def test_the_example_is_valid_and_has_comments():
    path = DEPLOY / "sluice.example.yaml"
    plan = load_plan(path, {}, b"")
    assert [tier.name for tier in plan.corridor.tiers.values()] == ["priority", "default", "flex"]
    assert path.read_text().count("#") > 10
