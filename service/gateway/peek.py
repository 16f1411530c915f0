"""Reads the few fields of a body that the gateway needs, and renders the body as the worker gets it.

The body is never re-modelled: unknown fields go on byte for byte. msgspec splits the top level into raw slices in C;
a body of many megabytes costs one scan, and its strings are never decoded.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from service.domain.value import value

_STRIPPED = frozenset(
    (
        "priority", "request_id", "kv_transfer_params", "ec_transfer_params", "cache_salt", "vllm_xargs",
        "api_base", "base_url", "extra_headers", "extra_body",
    )
)  # fmt: skip
"""Fields that steer the engine or the transport: they are ours to set, never the client's."""

_DEPTH_MAX = 64
_INT64_MAX = 2**63 - 1
_MEMBER = re.compile(rb'[ \t\r\n]*,?[ \t\r\n]*"((?:[^"\\]|\\.)*)"[ \t\r\n]*:[ \t\r\n]*')
_END = re.compile(rb"[ \t\r\n]*\}[ \t\r\n]*")
_SPACE = b" \t\r\n"
_RAW_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_VALUE = msgspec.json.Decoder()
_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


class PeekError(Exception):
    """The body cannot be served; ``param`` names the field at fault."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


@value
class Peeked:
    """What was read. ``parts`` is the body for the worker; ``strip_usage``: usage was asked for on our own account."""

    model: str
    stream: bool
    max_output_tokens: int | None
    service_tier: str | None
    previous_response_id: str | None
    strip_usage: bool
    parts: Sequence[bytes | memoryview]


def peek(body: bytes | bytearray, usage_on_request: bool, extra: bytes, model_required: bool = True) -> Peeked:
    """Read ``body`` and prepare it for the worker.

    ``usage_on_request``: the API sends usage in a stream only when ``stream_options`` asks for it. ``extra`` are
    rendered members (``"cache_salt":"...",``) that are put first.

    Raises:
        PeekError: not a JSON object, a duplicate key, a field of the wrong type.
    """
    fields = _split(body)
    model = _string(fields, "model")
    if model is None:
        if model_required:
            raise PeekError("The field 'model' is missing: name one of the models listed by GET /v1/models.", "model")
        model = ""
    stream = _boolean(fields, "stream")
    bound = _bound(fields)
    strip_usage = False
    if stream and usage_on_request:
        options = _object(fields, "stream_options")
        if options is None or options.get("include_usage") is not True:
            wanted = options.get("include_usage") if options is not None else None
            if wanted is not None and not isinstance(wanted, bool):
                raise PeekError("'stream_options.include_usage' must be true or false.", "stream_options")
            strip_usage = True
            if options is None and "stream_options" not in fields:
                extra += b'"stream_options":{"include_usage":true},'
            else:
                options = {**(options or {}), "include_usage": True}
                options.pop("continuous_usage_stats", None)
                fields["stream_options"] = msgspec.Raw(msgspec.json.encode(options))
                return _peeked(fields, model, bound, stream, strip_usage, _render(fields, extra))
    if _STRIPPED.isdisjoint(fields):
        parts = _splice(body, extra, empty=not fields)
    else:
        parts = _render(fields, extra)
    return _peeked(fields, model, bound, stream, strip_usage, parts)


def _peeked(
    fields: Mapping[str, msgspec.Raw],
    model: str,
    bound: int | None,
    stream: bool,
    strip_usage: bool,
    parts: Sequence[bytes | memoryview],
) -> Peeked:
    tier = _string(fields, "service_tier") if "service_tier" in fields else None
    previous = _string(fields, "previous_response_id") if "previous_response_id" in fields else None
    return Peeked(model, stream, bound, tier, previous, strip_usage, parts)


def _split(body: bytes | bytearray) -> dict[str, msgspec.Raw]:
    """The members of the top-level object, as raw slices of ``body``."""
    try:
        fields = _RAW_OBJECT.decode(body)
    except msgspec.ValidationError:
        raise PeekError("The body must be a JSON object.") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise PeekError(_explain(body, error)) from None
    compact = 1 + 4 * len(fields) + sum(map(len, fields)) + sum(map(len, fields.values()))
    if compact != len(body) and not _is_spaced(body, fields):
        _check_members(body, fields)
    if not body.isascii():
        try:
            str(memoryview(body), "utf-8")
        except UnicodeDecodeError as error:
            raise PeekError(f"The body is not valid UTF-8 (byte {error.start}).") from None
    return fields


def _explain(body: bytes | bytearray, error: Exception) -> str:
    if not body.strip(_SPACE):
        return "The body is empty: send a JSON object."
    if isinstance(error, RecursionError):
        return f"The body is nested deeper than {_DEPTH_MAX} levels."
    return f"The body is not valid JSON: {error}."


@lru_cache(512)
def _token(key: str) -> bytes:
    return json.dumps(key).encode() + b": "


def _is_spaced(body: bytes | bytearray, fields: Mapping[str, msgspec.Raw]) -> bool:
    """Whether ``body`` is exactly its members one after the other as Python's encoder spaces them: ``"k": v, ``."""
    position = 1
    for key, raw in fields.items():
        token = _token(key)
        if not body.startswith(token, position):
            return False
        position += len(token) + len(raw) + 2
    return position - 1 == len(body)


def _check_members(body: bytes | bytearray, fields: Mapping[str, msgspec.Raw]) -> None:
    """Walk the members in the order of the body: a key that stands twice breaks the walk.

    A compact body (``{"k":v,"k":v}``) whose length adds up cannot hold a duplicate, nor can one with every member in
    its place as Python spaces them, so only others come here.
    """
    position = body.index(b"{") + 1
    for key, raw in fields.items():
        member = _MEMBER.match(body, position)
        if member is None:
            raise _duplicate(body, fields)
        name = member.group(1)
        if name != key.encode() and json.loads(b'"%b"' % name) != key:
            raise _duplicate(body, fields)
        position = member.end() + len(raw)
    if _END.fullmatch(body, position) is None:
        raise _duplicate(body, fields)


def _duplicate(body: bytes | bytearray, fields: Mapping[str, msgspec.Raw]) -> PeekError:
    """Find out which key stands twice; slow, for the refusal only."""
    seen: set[str] = set()
    twice: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen.clear()
        twice.clear()
        for key, _ in pairs:
            if key in seen:
                twice.append(key)
            seen.add(key)
        return {}

    if len(body) <= 1024 * 1024:
        json.loads(body, object_pairs_hook=note)
    name = twice[0] if twice and twice[0] in fields else None
    which = f"The key {name!r}" if name is not None else "A key"
    return PeekError(f"{which} stands more than once in the body.", name)


def _splice(body: bytes | bytearray, extra: bytes, empty: bool) -> Sequence[bytes | memoryview]:
    if not extra:
        return (bytes(body),) if len(body) < 65536 else (memoryview(body),)
    start = body.index(b"{") + 1
    if empty:
        return (b"{" + extra[:-1] + b"}",)
    if len(body) < 65536:
        return (b"{" + extra + body[start:],)
    return (b"{" + extra, memoryview(body)[start:])


def _render(fields: Mapping[str, msgspec.Raw], extra: bytes) -> Sequence[bytes | memoryview]:
    members: list[bytes | memoryview] = []
    glue = b"{" + extra
    for key, raw in fields.items():
        if key not in _STRIPPED:
            members.append(glue + json.dumps(key).encode() + b":")
            members.append(memoryview(raw))
            glue = b","
    if not members:
        return (b"{" + extra[:-1] + b"}",)
    members.append(b"}")
    return (b"".join(members),) if sum(map(len, members)) < 65536 else members


# ---------------------------------------------------------------- fields


def _value(fields: Mapping[str, msgspec.Raw], name: str) -> Any:  # noqa: ANN401 - decoded JSON of any shape
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        return _VALUE.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise PeekError(f"The field {name!r} is not valid JSON.", name) from None


def _string(fields: Mapping[str, msgspec.Raw], name: str) -> str | None:
    if name not in fields:
        return None
    value = _value(fields, name)
    if value is not None and not isinstance(value, str):
        raise PeekError(f"The field {name!r} must be a string.", name)
    return value


def _boolean(fields: Mapping[str, msgspec.Raw], name: str) -> bool:
    raw = fields.get(name)
    if raw is None:
        return False
    text = bytes(raw) if len(raw) < 8 else b""
    if text == b"true":
        return True
    if text in (b"false", b"null"):
        return False
    raise PeekError(f"The field {name!r} must be true or false.", name)


def _bound(fields: Mapping[str, msgspec.Raw]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        if name in fields:
            value = _value(fields, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise PeekError(f"The field {name!r} must be a whole number.", name)
            if not -_INT64_MAX - 1 <= value <= _INT64_MAX:
                raise PeekError(f"The field {name!r} does not fit in 64 bits.", name)
            return max(value, 0)
    return None


def _object(fields: Mapping[str, msgspec.Raw], name: str) -> dict[str, Any] | None:
    raw = fields.get(name)
    if raw is None:
        return None
    _check_depth(bytes(raw), name)
    pairs: list[tuple[str, Any]] | None = None

    def keep(found: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal pairs
        pairs = found
        return dict(found)

    try:
        value = json.loads(bytes(raw), object_pairs_hook=keep)
    except (ValueError, RecursionError):
        raise PeekError(f"The field {name!r} is not valid JSON.", name) from None
    if value is None:
        return None
    if not isinstance(value, dict):
        raise PeekError(f"The field {name!r} must be an object.", name)
    if pairs is not None and len(pairs) != len(value):
        raise PeekError(f"A key stands more than once in {name!r}.", name)
    return value


def _check_depth(raw: bytes, name: str) -> None:
    depth = 0
    for match in _BRACKET.finditer(raw):
        token = match.group()
        if token in b"[{":
            depth += 1
            if depth > _DEPTH_MAX:
                raise PeekError(f"The field {name!r} is nested deeper than {_DEPTH_MAX} levels.", name)
        elif token in b"]}":
            depth -= 1
