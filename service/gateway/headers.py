"""Header lines: what of a client's reaches the worker, and what every answer of ours carries."""

import re
from collections.abc import Collection, Mapping, Sequence

_SANE_ID = re.compile(rb"[A-Za-z0-9._:\-]{1,128}")
_PASSED = (b"accept", b"traceparent", b"tracestate", b"anthropic-version", b"anthropic-beta")
"""Client headers that reach the worker. Everything else stays here: credentials, cookies, and whatever claims a
tenant, a tier or a destination."""

Headers = Sequence[tuple[bytes, bytes]]


def render_outbound(
    named: Mapping[bytes, bytes], headers: Headers, request_id: str, size: int, priority: int, worker_key: bytes
) -> bytes:
    """Lines for the worker, with the empty line that ends a head. ``priority``: vLLM's, 0 is its own default."""
    lines = b"content-type: %b\r\nx-request-id: %b\r\ncontent-length: %d\r\n" % (
        named.get(b"content-type", b"application/json"), request_id.encode(), size,
    )  # fmt: skip
    if priority:
        lines += b"x-vllm-priority: %d\r\n" % priority
    if worker_key:
        lines += b"authorization: Bearer %b\r\n" % worker_key
    barred: Collection[bytes] = ()
    if b"connection" in named and (named[b"connection"] != b"keep-alive" or len(named) != len(headers)):
        barred = read_connection_names(headers)
    for name in _PASSED:
        if name in named and name not in barred:
            lines += b"%b: %b\r\n" % (name, named[name])
    return lines + b"\r\n"


def read_connection_names(headers: Headers) -> frozenset[bytes]:
    """Headers that concern this connection only, because ``Connection`` names them."""
    values = [value for name, value in headers if name == b"connection"]
    return frozenset(token.strip().lower() for value in values for token in value.split(b","))


def is_sane_id(theirs: bytes) -> bool:
    """Whether a client's own id of a request may go into logs and answers."""
    return _SANE_ID.fullmatch(theirs) is not None


def read_deadline_s(value: bytes) -> float | None:
    """Seconds of ``x-sluice-deadline-ms``; ``None`` if that is not what stands there."""
    return int(value) / 1000.0 if value.isdigit() and len(value) <= 12 else None
