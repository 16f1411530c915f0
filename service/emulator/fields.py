"""Decides how loosely typed JSON is read: a value of the wrong type counts as absent unless vLLM would refuse it."""

from __future__ import annotations

Fields = dict[str, object]


def as_fields(value: object) -> Fields:
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def as_text(value: object, default: str = "") -> str:
    return value if isinstance(value, str) else default


def as_int(value: object) -> int | None:
    """A JSON integer, or a float without a fraction (as pydantic's lax mode takes it)."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) else None
