"""Reads the few fields of a body that the gateway needs, and renders the body as the worker gets it.

The body is never re-modelled: unknown fields go on byte for byte.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from service.domain.value import value
from service.gateway.members import PeekError, check_depth, split_members

_STRIPPED = frozenset(
    (
        "priority", "request_id", "kv_transfer_params", "ec_transfer_params", "cache_salt", "vllm_xargs",
        "api_base", "base_url", "extra_headers", "extra_body",
    )
)  # fmt: skip
"""Fields that steer the engine or the transport: they are ours to set, never the client's."""
_INT64_MAX = 2**63 - 1
_FIELD_MAX, _OPTIONS_MAX = 4096, 65536
"""Bytes of a field that is read here, and of ``stream_options``: all that anybody means fits, and what is longer would
hold everybody up while it is decoded."""
_VALUE = msgspec.json.Decoder()
_NAME = msgspec.json.Decoder(str)
_BOM = b"\xef\xbb\xbf"


@value
class Peeked:
    """What was read. ``parts`` is the body for the worker; ``strip_usage``: usage was asked for on our own account;
    ``fields`` are the members as the client sent them."""

    model: str
    stream: bool
    max_output_tokens: int | None
    service_tier: str | None
    previous_response_id: str | None
    strip_usage: bool
    parts: Sequence[bytes | memoryview]
    fields: Mapping[str, msgspec.Raw]
    store: bool = True


def peek(
    body: bytes | bytearray,
    usage_on_request: bool,
    extra: bytes,
    model_required: bool = True,
    bounds: Sequence[str] = ("max_completion_tokens", "max_tokens"),
) -> Peeked:
    """Read ``body`` and prepare it for the worker.

    ``usage_on_request``: the API sends usage in a stream only when ``stream_options`` asks for it. ``extra`` are
    rendered members (``"cache_salt":"...",``) that are put first. ``bounds`` name the fields that bound the output.

    Raises:
        PeekError: not a JSON object, a duplicate key, a field of the wrong type.
    """
    try:
        fields = split_members(body)
    except PeekError:
        if not body.startswith(_BOM):
            raise
        body = body[3:]  # the worker would skip it too
        fields = split_members(body)
    try:
        model: str | None = _NAME.decode(fields["model"])  # other kinds of value fail at their first byte
    except (KeyError, msgspec.MsgspecError, UnicodeDecodeError):  # the exception, which needs a second look
        model = _string(fields, "model")
    if model is None:
        if model_required:
            raise PeekError("The field 'model' is missing: name one of the models listed by GET /v1/models.", "model")
        model = ""
    stream = "stream" in fields and _boolean(fields, "stream")
    bound = _bound(fields, bounds)
    strip_usage = False
    if stream and usage_on_request:
        if "stream_options" not in fields:
            strip_usage = True
            extra += b'"stream_options":{"include_usage":true},'
        else:
            options = _options(fields)
            if options is not None:
                strip_usage = True
                fields["stream_options"] = msgspec.Raw(options)
                return _peeked(fields, model, bound, stream, strip_usage, _render(fields, extra))
    if not stream and "stream_options" in fields:  # workers refuse them there
        del fields["stream_options"]
        parts = _render(fields, extra)
    elif _STRIPPED.isdisjoint(fields):
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
    if "store" in fields:  # whatever else stands there is the worker's to refuse
        return Peeked(
            model, stream, bound, tier, previous, strip_usage, parts, fields, bytes(fields["store"]) != b"false"
        )
    return Peeked(model, stream, bound, tier, previous, strip_usage, parts, fields)


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
    _check_size(raw, name, _FIELD_MAX)
    try:
        return _VALUE.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise PeekError(f"The field {name!r} is not valid JSON.", name) from None


def _check_size(raw: msgspec.Raw, name: str, most: int) -> None:
    if len(raw) > most:
        raise PeekError(f"The field {name!r} is longer than {most} bytes.", name)


def _string(fields: Mapping[str, msgspec.Raw], name: str) -> str | None:
    value = _value(fields, name)
    if value is None or isinstance(value, str):
        return value
    raise PeekError(f"The field {name!r} must be a string.", name)


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


def _bound(fields: Mapping[str, msgspec.Raw], names: Sequence[str]) -> int | None:
    first: int | None = None
    for name in names:
        if name in fields:
            value = _value(fields, name)
            if value is None:
                continue
            if type(value) is not int:
                if not isinstance(value, float) or not value.is_integer():  # 16.0 is a whole number to the worker
                    raise PeekError(f"The field {name!r} must be a whole number.", name)
                value = int(value)
            if not -_INT64_MAX - 1 <= value <= _INT64_MAX:
                raise PeekError(f"The field {name!r} does not fit in 64 bits.", name)
            if first is None:
                first = max(value, 0)
    return first


def _options(fields: Mapping[str, msgspec.Raw]) -> bytes | None:
    """``stream_options`` as the worker must get it to report usage; ``None`` if the client's own will do.

    The client's other members are kept, except one that would take effect only because usage is now asked for.
    """
    name = "stream_options"
    _check_size(fields[name], name, _OPTIONS_MAX)
    raw = bytes(fields[name])
    if raw == b"null":
        return b'{"include_usage":true}'
    if not raw.startswith(b"{"):
        raise PeekError(f"The field {name!r} must be an object.", name)
    check_depth(raw, name)
    try:
        options = split_members(raw)
    except PeekError as error:
        message = f"A key stands more than once in {name!r}." if "once" in error.message else error.message
        raise PeekError(message, name) from None
    wanted = options.pop("include_usage", None)
    if wanted is not None and bytes(wanted) == b"true":
        return None
    if wanted is not None and bytes(wanted) not in (b"false", b"null"):
        raise PeekError("'stream_options.include_usage' must be true or false.", name)
    options.pop("continuous_usage_stats", None)
    members = [json.dumps(key).encode() + b":" + bytes(value) for key, value in options.items()]
    return b"{" + b",".join([b'"include_usage":true', *members]) + b"}"
