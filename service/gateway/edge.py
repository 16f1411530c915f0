"""The listener's limits, and what it says to bytes and connections that never become a request."""

import secrets
from dataclasses import dataclass

LINGER_S = 2.0
"""How long what a client still sends is taken and thrown away, after it has its last answer."""

HEAD_MAX_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class EdgeConfig:
    """Limits of the listener.

    Above ``connections_max`` only health is answered; of these, ``connections_reserve`` may be open. The head of a
    request must come within ``head_timeout_s``, its body within ``body_timeout_s``; an idle connection is kept
    ``keep_alive_s``. ``write_buffer_bytes`` is where a slow reader starts to hold the worker back; from there on
    nothing more is begun on its connection.
    """

    connections_max: int = 8192
    connections_reserve: int = 64
    head_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    keep_alive_s: float = 75.0
    body_max_bytes: int = 64 * 1024 * 1024
    bodies_max_bytes: int = 1024 * 1024 * 1024
    write_buffer_bytes: int = 64 * 1024


def _build_answer(status_line: bytes, lines: bytes, message: bytes, kind: bytes, code: bytes) -> bytes:
    body = b'{"error":{"message":"%b","type":"%b","param":null,"code":"%b"}}' % (message, kind, code)
    return (
        b"HTTP/1.1 %b\r\ncontent-type: application/json\r\n%bconnection: close\r\ncontent-length: %d\r\n\r\n%b"
        % (status_line, lines, len(body), body)
    )  # fmt: skip


TOO_MANY = _build_answer(
    b"503 Service Unavailable", b"",
    b"Too many connections to this gateway. Try again shortly.", b"server_error", b"server_overloaded",
)  # fmt: skip
NOT_HTTP = _build_answer(
    b"400 Bad Request", b"", b"The request is not valid HTTP/1.1.", b"invalid_request_error", b"bad_http"
)
FAULTY = _build_answer(
    b"500 Internal Server Error",
    b"",
    b"The gateway failed. Retry; the fault is ours.",
    b"server_error",
    b"internal_error",
)
HEAD_TOO_LARGE = _build_answer(
    b"431 Request Header Fields Too Large", b"",
    b"The request line and headers are larger than this gateway allows.", b"invalid_request_error", b"head_too_large",
)  # fmt: skip


def mark(answer: bytes, lines: bytes) -> bytes:
    """``answer`` with ``lines`` put first among its headers, and an id by which its client can name it."""
    status_line, _, rest = answer.partition(b"\r\n")
    return b"%b\r\nx-request-id: %b\r\n%b%b" % (status_line, secrets.token_hex(8).encode(), lines, rest)
