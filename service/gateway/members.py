"""Takes a JSON object apart into raw members without decoding what stands in them, and says what is wrong with it.

msgspec splits the top level in C; a body of many megabytes costs one scan, and its strings are never decoded.
"""

import json
import re
from codecs import utf_8_decode
from collections.abc import Mapping
from itertools import islice
from typing import Any

import msgspec

_DEPTH_MAX = 64
_MEMBER = re.compile(rb'[ \t\r\n]*,?[ \t\r\n]*"((?:[^"\\]++|\\.)*+)"[ \t\r\n]*:[ \t\r\n]*')
_END = re.compile(rb"[ \t\r\n]*\}[ \t\r\n]*")
_PAIR = re.compile(rb'"[ \t\r\n]*+:')
_SPACE = b" \t\r\n"
_BLANK = 32
_RAW_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_BRACKET = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{}]', re.DOTALL)
_SLICE = 1 << 16
_EXPLAINED = 1 << 20
"""Larger bodies are refused without looking for the exact reason."""
_LARGE = 1 << 19
_MEMBERS_MAX = 65536
"""Members that a large body may have outside of those that are large by nature: each costs memory and time here."""


class _Weighty(msgspec.Struct):
    """The members that carry a conversation or a document, in any of the APIs."""

    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()
    instructions: msgspec.Raw = msgspec.Raw()
    documents: msgspec.Raw = msgspec.Raw()
    logit_bias: msgspec.Raw = msgspec.Raw()


_WEIGHTY = msgspec.json.Decoder(_Weighty)


class PeekError(Exception):
    """The body cannot be served; ``param`` names the field at fault."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


def split_members(body: bytes | bytearray) -> dict[str, msgspec.Raw]:
    """The members of the top-level object, as raw slices of ``body``."""
    try:
        if len(body) > _LARGE:
            _check_count(body)
        fields = _RAW_OBJECT.decode(body)
    except msgspec.ValidationError:
        raise PeekError("The body must be a JSON object.") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise PeekError(_explain(body, error)) from None
    if body[body.find(b":") + 1] != _BLANK or not _is_spaced(body, fields):
        compact = 1 + 4 * len(fields) + sum(map(len, fields)) + sum(map(len, fields.values()))
        if compact != len(body):
            _check_members(body, fields)
    if not body.isascii():
        _check_utf8(body)
    return fields


def locate_member(body: bytes, name: str) -> tuple[int, int] | None:
    """Where the value of ``name`` stands in the top-level object; ``None`` if there is none, or no object."""
    try:
        fields = _RAW_OBJECT.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    position = body.index(b"{") + 1
    for key, raw in fields.items():
        member = _MEMBER.match(body, position)
        if member is None:
            return None
        position = member.end() + len(raw)
        if key == name:
            return member.end(), position
    return None


def _check_utf8(body: bytes | bytearray) -> None:
    """Slice by slice: a long text with one emoji in it would take four bytes for each character as a whole."""
    view = memoryview(body)
    position = 0
    try:
        while position < len(view):
            end = position + _SLICE
            _, read = utf_8_decode(view[position:end], "strict", end >= len(view))
            position += read
    except UnicodeDecodeError as error:
        raise PeekError(f"The body is not valid UTF-8 (byte {position + error.start}).") from None


def _check_count(body: bytes | bytearray) -> None:
    """Refuse a body that is nothing but members; those within messages and the like cost nothing here."""
    weighty = _WEIGHTY.decode(body)
    carried = [getattr(weighty, name) for name in weighty.__struct_fields__]
    if len(body) - sum(map(len, carried)) <= _LARGE:
        return
    # colons first: that costs next to nothing, and text that is full of them is rare
    if body.count(b":") - sum(bytes(raw).count(b":") for raw in carried) <= _MEMBERS_MAX:
        return
    most = _MEMBERS_MAX + sum(_count_pairs(raw, len(body)) for raw in carried)
    if _count_pairs(body, most + 1) > most:
        raise PeekError(f"The body has more than {_MEMBERS_MAX} members.")


def _count_pairs(text: bytes | bytearray | msgspec.Raw, most: int) -> int:
    """Members, at any depth, up to ``most``; a few more if strings look like them."""
    return sum(1 for _ in islice(_PAIR.finditer(text), most))


def _explain(body: bytes | bytearray, error: Exception) -> str:
    if not body.strip(_SPACE):
        return "The body is empty: send a JSON object."
    if isinstance(error, RecursionError):
        return "The body is nested too deeply."
    if len(body) <= _EXPLAINED:
        try:
            json.loads(body)
        except (ValueError, RecursionError):
            pass
        else:
            return "The body holds NaN, Infinity or half of a surrogate pair, which JSON cannot exchange."
    return f"The body is not valid JSON: {error}."


_TOKENS: dict[str, tuple[bytes, int]] = {}
"""Keys as Python's encoder writes them, with the bytes they take beside their value: the first few short ones that
come, since a client's text is not kept."""


def _render_token(key: str) -> tuple[bytes, int]:
    rendered = json.dumps(key).encode() + b": "
    token = rendered, len(rendered) + 2
    if len(key) <= 64 and len(_TOKENS) < 256:
        _TOKENS[key] = token
    return token


def _is_spaced(body: bytes | bytearray, fields: Mapping[str, msgspec.Raw]) -> bool:
    """Whether ``body`` is exactly its members one after the other as Python's encoder spaces them: ``"k": v, ``."""
    position = 1
    for key, raw in fields.items():
        token, size = _TOKENS.get(key) or _render_token(key)
        if not body.startswith(token, position):
            return False
        position += size + len(raw)
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

    if len(body) <= _EXPLAINED:
        json.loads(body, object_pairs_hook=note)
    name = twice[0] if twice and twice[0] in fields else None
    which = f"The key {name!r}" if name is not None else "A key"
    return PeekError(f"{which} stands more than once in the body.", name)


def check_depth(raw: bytes, name: str) -> None:
    """Refuse what is nested deeper than anybody means it."""
    depth = 0
    for match in _BRACKET.finditer(raw):
        token = match.group()
        if token in b"[{":
            depth += 1
            if depth > _DEPTH_MAX:
                raise PeekError(f"The field {name!r} is nested deeper than {_DEPTH_MAX} levels.", name)
        elif token in b"]}":
            depth -= 1
