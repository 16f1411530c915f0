"""Decides how loosely typed JSON is read: a value of the wrong type counts as absent unless vLLM would refuse it."""

from __future__ import annotations

Fields = dict[str, object]


def as_fields(value: object) -> Fields:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[object]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def as_text(value: object, default: str = "") -> str:
    """The value if it is a string, else ``default``."""
    return value if isinstance(value, str) else default


def as_int(value: object) -> int | None:
    """A JSON integer, or a float without a fraction (as pydantic's lax mode takes it)."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) else None
