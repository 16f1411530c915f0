"""Reads the configuration file: YAML to a tree, every key once, then each part against the schema."""

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Union, cast, get_args, get_origin

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from service.settings.fault import SettingsFault, SettingsRefusedError
from service.settings.schema import NOT_YET, Settings

Lines = dict[str, int]

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml, where PyYAML was built with it, reads ten times as fast."""


class _Pieces:
    """A text that is asked for piece by piece. libyaml lets no other thread run while it reads, but for this call: a
    reload of 5,000 tenants would stop the event loop for 0.3 s."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read(self, size: int) -> str:
        """The next characters, at most ``size``."""
        piece = self._text[self._at : self._at + size]
        self._at += len(piece)
        return piece


def read_file(path: Path) -> str:
    """The text of the file; a fault with the cure if there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        cure = "name the file with -c FILE or in SLUICE_CONFIG"
        raise SettingsRefusedError([SettingsFault(str(path), "there is no such file", cure)]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsRefusedError([SettingsFault(str(path), f"cannot be read: {error}")]) from None


def parse_tree(text: str) -> tuple[dict[str, Any], Lines, list[SettingsFault]]:
    """The tree, the line of each path, and a fault for every key that stands twice."""
    lines: Lines = {}
    faults: list[SettingsFault] = []
    try:
        loader = _LOADER(_Pieces(text))
        node = loader.get_single_node()
        tree = {} if node is None else loader.construct_document(node)
        if node is not None:
            _note_lines(node, "", lines, faults)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = None if mark is None else mark.line + 1
        problem = getattr(error, "problem", None) or str(error)
        raise SettingsRefusedError([SettingsFault("(file)", f"is not valid YAML: {problem}", "", line)]) from None
    if not isinstance(tree, dict):
        raise SettingsRefusedError([SettingsFault("(file)", "is not a mapping of settings", "see the example file")])
    return tree, lines, faults


def validate_parts(tree: Mapping[str, Any], lines: Lines) -> tuple[dict[str, Any], list[SettingsFault]]:
    """Every fault of the tree against the schema, and those parts that are valid by themselves, so that what is wrong
    in one does not hide what is wrong between others.
    """
    try:
        settings = Settings.model_validate(tree)
    except ValidationError as error:
        problems = error.errors(include_url=False)
    else:
        return {name: getattr(settings, name) for name in Settings.model_fields}, []
    faults = [_explain(problem, lines) for problem in problems]
    broken = {problem["loc"][0] for problem in problems}
    parts: dict[str, Any] = {}
    for name, field in Settings.model_fields.items():
        if name not in tree:
            parts[name] = None if field.is_required() else field.get_default(call_default_factory=True)
        elif name in broken:
            parts[name] = None
        else:
            parts[name] = TypeAdapter[Any](cast("Any", field.annotation)).validate_python(tree[name])
    return parts, faults


def locate(path: str, lines: Lines) -> int | None:
    """The line of ``path``, or of the nearest thing around it."""
    while path:
        if path in lines:
            return lines[path]
        path = re.sub(r"(\.[^.\[\]]*|\[\d+\]|^[^.\[\]]+)$", "", path)
    return None


def _has_config(annotation: Any) -> bool:  # noqa: ANN401 - any annotation
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _note_lines(node: yaml.Node, path: str, lines: Lines, faults: list[SettingsFault]) -> None:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key_node, value_node in node.value:
            key = str(key_node.value)
            below = _join(path, key)
            line = key_node.start_mark.line + 1
            if key in seen:
                first = lines.get(below)
                message = f"stands twice (first on line {first}); the second would silently win"
                faults.append(SettingsFault(below, message, "keep one of them", line))
                continue
            seen.add(key)
            lines[below] = line
            _note_lines(value_node, below, lines, faults)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _note_lines(item, f"{path}[{index}]", lines, faults)


def _join(path: str, key: str | int) -> str:
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else str(key)


def _explain(problem: Any, lines: Lines) -> SettingsFault:  # noqa: ANN401 - pydantic's
    keys = list(problem["loc"])
    path, kind = "", cast("Any", Settings)
    for key in keys[:-1] if problem["type"] in ("extra_forbidden", "missing") else keys:
        if key == "[key]":
            break
        path, kind = _descend(path, kind, key)
    if problem["type"] == "extra_forbidden":
        return _unknown(path, str(keys[-1]), _model_of(kind), lines)
    if problem["type"] == "missing":
        full = _join(path, str(keys[-1]))
        return SettingsFault(full, "is missing", "add it; the example file shows its shape", locate(path, lines))
    message = str(problem["msg"]).removeprefix("Value error, ").rstrip(".")
    message = message[0].lower() + message[1:]
    given = problem["input"]
    if path == "state":
        cure = "write state: memory, or redis://HOST:6379/0"  # what was given may hold a password
        return SettingsFault(path, message, cure, locate(path, lines))
    if ".keys[" in path:
        cure = "paste the line that 'sluice keys new' prints; the key itself belongs nowhere in this file"
        return SettingsFault(path, message, cure, locate(path, lines))  # what was given may be a key
    if problem["type"] != "value_error" and isinstance(given, str | int | float):
        message += f", not {str(given)[:64]!r}"
    return SettingsFault(path, message, "", locate(path, lines))


def _descend(path: str, annotation: Any, key: str | int) -> tuple[str, Any]:  # noqa: ANN401 - any annotation
    origin = get_origin(annotation)
    model = _model_of(annotation)
    if origin is dict:
        return _join(path, str(key)), get_args(annotation)[1]
    if origin is list:
        return _join(path, key), get_args(annotation)[0]
    if model is not None and key in model.model_fields:
        return _join(path, key), model.model_fields[str(key)].annotation
    if origin in (Union, UnionType):
        for option in get_args(annotation):
            if get_origin(option) in (dict, list):
                return _descend(path, option, key)
    return _join(path, key), None


def _model_of(annotation: Any) -> type[BaseModel] | None:  # noqa: ANN401 - any annotation
    for option in (annotation, *get_args(annotation)):
        if _has_config(option):
            model: type[BaseModel] = option
            return model
    return None


def _unknown(path: str, key: str, model: type[BaseModel] | None, lines: Lines) -> SettingsFault:
    full = _join(path, key)
    line = locate(full, lines)
    if key in NOT_YET:
        return SettingsFault(full, f"is not known: {NOT_YET[key]}", "remove it", line)
    known = [] if model is None else list(model.model_fields)
    close = difflib.get_close_matches(key, known, 1, 0.6)
    if close:
        return SettingsFault(full, "is not known", f"did you mean {close[0]!r}?", line)
    return SettingsFault(full, "is not known", "use one of " + ", ".join(known) if known else "remove it", line)
