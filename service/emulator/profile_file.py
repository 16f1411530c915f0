"""Reads and writes a profile as a file, so that a machine that was measured can be emulated elsewhere.

JSON (as ``sluice bench calibrate`` writes it) or YAML: the fields of ``profiles.EngineProfile``. What is left out has
the value of the shipped profile named by ``base``, ``cpu-small`` if none is; keys that start with ``_`` are remarks. A
file with faults is refused whole, with all of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from service.emulator.profiles import PROFILES, EngineProfile

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

P = TypeVar("P", bound="DataclassInstance")
SUFFIXES = (".json", ".yaml", ".yml")
_BASE = "cpu-small"
_LIMITS = ("max_num_batched_tokens", "max_num_seqs", "kv_blocks", "max_model_len", "block_size")
_NO_ROWS = "not a list of rows of numbers"


class ProfileFault(ValueError):  # noqa: N818  (a fault of the configuration)
    """The file is no profile; the message says all that is wrong."""


def is_file_name(profile: str) -> bool:
    """Whether ``--profile`` names a file rather than a shipped profile."""
    return profile.endswith(SUFFIXES)


def dump_profile(profile: EngineProfile, remarks: Mapping[str, object]) -> str:
    """The file's text; remarks (machine, model, date) stand first."""
    return json.dumps({**{f"_{name}": text for name, text in remarks.items()}, **asdict(profile)}, indent=2) + "\n"


@cache
def load_profile(path: str) -> EngineProfile:
    """The profile in a file, read once per process; raises ``ProfileFault``."""
    import yaml

    try:
        text = Path(path).read_text()
        raw = json.loads(text) if path.endswith(".json") else yaml.safe_load(text)
    except OSError as error:
        raise ProfileFault(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ProfileFault(f"{path}: cannot be read: {error}") from error
    if not isinstance(raw, dict):
        raise ProfileFault(f"{path}: not a mapping of a profile's fields")
    return build_profile({str(name): value for name, value in raw.items()}, path)


def build_profile(raw: Mapping[str, object], where: str) -> EngineProfile:
    """The profile that these fields describe."""
    given = {name: value for name, value in raw.items() if not name.startswith("_")}
    base = given.pop("base", _BASE)
    if base not in PROFILES:
        raise ProfileFault(f"{where}: base: {base!r} is none of {', '.join(PROFILES)}")
    faults: list[str] = []
    profile = _fill(PROFILES[str(base)], given, "", faults)
    if not faults:
        faults = [f"{name}: must be above zero" for name in _LIMITS if getattr(profile, name) <= 0]
    if faults:
        raise ProfileFault(f"{where}: " + "; ".join(faults))
    return profile


def _fill(default: P, given: Mapping[str, object], path: str, faults: list[str]) -> P:
    """``default`` with the given fields in place of its own."""
    known = {one.name for one in fields(default)}
    faults += [f"{path}{name}: no such field" for name in given if name not in known]
    values: dict[str, Any] = {}
    for name in given:
        if name not in known:
            continue
        value, shipped = given[name], getattr(default, name)
        if is_dataclass(shipped):
            if isinstance(value, dict):
                values[name] = _fill(cast("DataclassInstance", shipped), value, f"{name}.", faults)
            else:
                faults.append(f"{path}{name}: not a mapping")
        elif (fault := _find_fault(value, shipped)) is not None:
            faults.append(f"{path}{name}: {fault}")
        else:
            values[name] = _convert(value, shipped)
    return replace(default, **values)


def _find_fault(value: object, shipped: object) -> str | None:
    """What is wrong with a value that stands where ``shipped`` stood."""
    match shipped:
        case tuple():
            rows = value if isinstance(value, list) else [None]
            return None if all(isinstance(row, list) and all(map(_is_number, row)) for row in rows) else _NO_ROWS
        case str():
            return None if isinstance(value, str) else "not a text"
        case _:
            pass
    if not _is_number(value):
        return "not a number (YAML takes 7e-05 for a text and 7.0e-05 for a number)"
    number = cast("float", value)
    if isinstance(shipped, int) and number != int(number):
        return "not a whole number"
    return "negative" if number < 0 else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _convert(value: object, shipped: object) -> object:
    """A faultless value, as the profile holds it."""
    match shipped:
        case tuple():
            return tuple(tuple(row) for row in cast("list[list[float]]", value))
        case float():
            return float(cast("float", value))
        case int():
            return int(cast("float", value))
        case _:
            return value
