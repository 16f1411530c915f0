"""Reads request targets, and describes a request to an ASGI application."""

import re
import urllib.parse
from typing import Any

_ABSOLUTE = re.compile(rb"[A-Za-z][A-Za-z0-9+.\-]*://[^/?#]*")


def strip_authority(target: bytes) -> bytes:
    """``http://host/path?query``, as a client sends it to what it takes for a proxy, without its host."""
    absolute = _ABSOLUTE.match(target)
    if absolute is None:
        return target
    rest = target[absolute.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest


def build_scope(
    method: str,
    target: bytes,
    headers: list[tuple[bytes, bytes]],
    http_version: str,
    scheme: str | None,
    server: tuple[str, int | None] | None,
    client: tuple[str, int] | None,
    over_limit: bool,
) -> dict[str, Any]:
    """An ASGI scope. ``raw_path`` is the path as it was sent: two slashes, dots and escapes are not cleaned up."""
    raw_path, _, query = target.partition(b"#")[0].partition(b"?")
    path = raw_path.decode("latin-1")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": http_version,
        "method": method,
        "server": server,
        "client": client,
        "scheme": scheme,
        "root_path": "",
        "path": urllib.parse.unquote(path) if "%" in path else path,
        "raw_path": raw_path,
        "query_string": query,
        "headers": headers,
        "state": {},
        "extensions": {"sluice.over_limit": {"value": over_limit}},
    }
