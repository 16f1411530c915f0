"""Decides how a body is parsed and how its typed fields are read; says no as FastAPI and pydantic do in vLLM."""

from __future__ import annotations

import json

import msgspec

from service.emulator.fields import Fields, as_int
from service.emulator.refusals import Refusal, build_bad_json, build_invalid, build_missing, build_validation


def parse_json(data: bytes) -> Fields:
    """The body as an object."""
    try:
        value: object = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            value = json.loads(data)
        except UnicodeDecodeError as error:
            raise Refusal(400, "There was an error parsing the body", "Bad Request") from error
        except json.JSONDecodeError as error:
            raise build_bad_json(error.msg, error.pos) from error
        except RecursionError as error:
            raise Refusal(400, "There was an error parsing the body", "Bad Request") from error
        refuse_surrogates(value)
    if not isinstance(value, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        raise build_invalid("model_attributes_type", (), message, value)
    return value


def refuse_surrogates(value: object) -> None:
    """Half a surrogate pair is a string to Python's parser but not to pydantic."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise Refusal(400, str(error)) from error


def require(body: Fields, name: str) -> object:
    """The value of a field, of whatever type; a body without the field is refused with 400."""
    if name not in body:
        raise build_missing([name], body)
    return body[name]


def read_int(body: Fields, name: str, at_least: int | None = None) -> int | None:
    """An optional integer; a wrong type is refused, as pydantic does."""
    raw = body.get(name)
    if raw is None:
        return None
    value = as_int(raw)
    if value is None:
        if isinstance(raw, float):
            message = "Input should be a valid integer, got a number with a fractional part"
            raise build_invalid("int_from_float", (name,), message, raw)
        if isinstance(raw, str):
            message = "Input should be a valid integer, unable to parse string as an integer"
            raise build_invalid("int_parsing", (name,), message, raw)
        raise build_invalid("int_type", (name,), "Input should be a valid integer", raw)
    if at_least is not None and value < at_least:
        raise build_validation(f"{name} must be at least {at_least}, got {value}.", name, value)
    return value
