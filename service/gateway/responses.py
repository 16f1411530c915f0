"""How each outcome is told to the client: one table of status, code and words, in the dialect of its API."""

import json
import re
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any

import msgspec

from service.domain.outcome import Outcome
from service.gateway.sse import EventTap, Reader
from service.gateway.tier_echo import EchoTap, mark_whole
from service.gateway.wire import (
    Usage,
    read_messages_event,
    read_openai_event,
    read_responses_event,
)


@dataclass(frozen=True, slots=True)
class Telling:
    """Status, OpenAI's ``type`` and ``code``, and a sentence a client can act on."""

    status: int
    kind: str
    code: str
    message: str


_INVALID, _SERVER, _AUTH = "invalid_request_error", "server_error", "authentication_error"

TELLINGS: dict[Outcome, Telling | None] = {
    Outcome.COMPLETED: None,
    Outcome.CLIENT_GONE_EARLY: None,
    Outcome.CLIENT_GONE_QUEUED: None,
    Outcome.CLIENT_GONE: None,
    Outcome.CLIENT_STALLED: None,
    Outcome.TOO_LARGE: Telling(
        413, _INVALID, "request_too_large", "The request body is larger than this gateway allows."
    ),
    Outcome.BODY_TIMEOUT: Telling(
        408, _INVALID, "request_timeout", "The request body did not arrive in time. Send it again."
    ),
    Outcome.BYTES_EXHAUSTED: Telling(
        503, _SERVER, "server_overloaded", "The gateway holds too many large requests. Retry after the given time."
    ),
    Outcome.UNAUTHENTICATED: Telling(
        401, _AUTH, "invalid_api_key", "No valid API key. Send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
    ),
    Outcome.FORBIDDEN: Telling(403, "permission_error", "forbidden", "This key may not do that."),
    Outcome.MALFORMED: Telling(400, _INVALID, "invalid_request", "The request cannot be read."),
    Outcome.UNKNOWN_MODEL: Telling(404, _INVALID, "model_not_found", "There is no such model. See GET /v1/models."),
    Outcome.UNKNOWN_RESPONSE: Telling(404, _INVALID, "response_not_found", "There is no such response, or it is gone."),
    Outcome.RATE_LIMITED: Telling(
        429,
        "rate_limit_error",
        "rate_limit_exceeded",
        "A limit of the contract is reached. Retry after the given time.",
    ),
    Outcome.QUOTA_UNKNOWN: Telling(
        503,
        _SERVER,
        "server_overloaded",
        "How much of the contract is left cannot be told now. Retry after the given time.",
    ),
    Outcome.QUEUE_FULL: Telling(
        503, _SERVER, "server_overloaded", "The service is overloaded. Retry after the given time."
    ),
    Outcome.NO_WORKERS: Telling(503, _SERVER, "no_workers", "No worker is ready. Retry after the given time."),
    Outcome.DRAINING: Telling(503, _SERVER, "draining", "This gateway is shutting down. Retry; another will answer."),
    Outcome.DEADLINE_UNATTAINABLE: Telling(
        503, _SERVER, "server_overloaded", "The request cannot start in the time allowed. Retry after the given time."
    ),
    Outcome.SHED: Telling(
        503,
        _SERVER,
        "overloaded_excess",
        "Traffic beyond the contract is refused while the service is busy. Retry after the given time.",
    ),
    Outcome.EXPIRED: Telling(
        503, _SERVER, "server_overloaded", "The request waited as long as it may. Retry after the given time."
    ),
    Outcome.WORKER_UNREACHABLE: Telling(502, _SERVER, "worker_failed", "The worker could not be reached. Retry."),
    Outcome.WORKER_BUSY: Telling(
        503, _SERVER, "server_overloaded", "The workers are overloaded. Retry after the given time."
    ),
    Outcome.WORKER_REFUSED: Telling(400, _INVALID, "worker_refused", "The worker refused the request."),
    Outcome.WORKER_FAILED: Telling(502, _SERVER, "worker_failed", "The worker failed before it answered. Retry."),
    Outcome.FIRST_TOKEN_TIMEOUT: Telling(
        504, _SERVER, "deadline_exceeded", "No answer came in the time allowed. Retry."
    ),
    Outcome.STREAM_STALLED: Telling(504, _SERVER, "deadline_exceeded", "The worker stopped answering. Retry."),
    Outcome.STREAM_BROKEN: Telling(502, _SERVER, "worker_failed", "The worker failed while it answered. Retry."),
    Outcome.CLIENT_DEADLINE: Telling(
        504, _SERVER, "deadline_exceeded", "No answer began before the request's own deadline, x-sluice-deadline-ms."
    ),
    Outcome.REVOKED: Telling(
        503,
        _SERVER,
        "overloaded_excess",
        "This traffic beyond the contract was taken back for traffic within it. Retry after the given time.",
    ),
    Outcome.DRAIN_CUT: Telling(
        503, _SERVER, "draining", "The gateway shut down before the answer was complete. Retry."
    ),
    Outcome.GATEWAY_FAULT: Telling(500, _SERVER, "internal_error", "The gateway failed. Retry; the fault is ours."),
}
"""``None``: the client has its answer or is not there to hear one."""

_ANTHROPIC_KINDS = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error",
                    404: "not_found_error", 408: "invalid_request_error", 413: "request_too_large",
                    429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error"}  # fmt: skip
SUSPENDED = "This tenant is suspended. Ask the operator of the service."
_GONE = Telling(499, _SERVER, "client_gone", "The client closed the connection.")


def telling_of(outcome: Outcome) -> Telling:
    """The words for ``outcome``; for endings that no client hears, nginx's status 499."""
    return TELLINGS[outcome] or _GONE


def render_retry(retry_after_s: float | None) -> bytes:
    """``Retry-After`` in whole seconds, rounded up, and ``retry-after-ms`` exactly."""
    if retry_after_s is None:
        return b""
    return b"retry-after: %d\r\nretry-after-ms: %d\r\n" % (-(-retry_after_s // 1), retry_after_s * 1000)


def shape_openai(status: int, kind: str, code: str, message: str, param: str | None) -> dict[str, Any]:
    """OpenAI's error object."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def shape_anthropic(status: int, kind: str, code: str, message: str, param: str | None) -> dict[str, Any]:
    """Anthropic's error object."""
    return {"type": "error", "error": {"type": _ANTHROPIC_KINDS.get(status, "api_error"), "message": message}}


Shape = Callable[[int, str, str, str, str | None], dict[str, Any]]


def render_error(
    shape: Shape,
    telling: Telling,
    retry_after_s: float | None = None,
    detail: str | None = None,
    param: str | None = None,
) -> tuple[int, bytes, bytes]:
    """Status, headers and body of one error answer."""
    body = shape(telling.status, telling.kind, telling.code, detail or telling.message, param)
    headers = b"content-type: application/json\r\n" + render_retry(retry_after_s)
    if telling.status == 401:
        headers += b"www-authenticate: Bearer\r\n"
    return telling.status, headers, json.dumps(body, separators=(",", ":")).encode()


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    """The names of all four APIs side by side: an answer uses one set of them."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: int | None = None


class _Answer(msgspec.Struct):
    usage: _Usage | None = None


_MARKED_MAX = 8 * 1024 * 1024
"""A longer answer names its tier in the header alone."""

_ANSWER = msgspec.json.Decoder(_Answer)
_USAGE_KEY = re.compile(rb'"usage"\s*:\s*(?=\{)')
_FIRST_VALUE = json.JSONDecoder()


def _find_usage(tail: bytes) -> _Usage | None:
    """``usage`` in the end of an answer too long to be kept. Inside a JSON string its quotes would be escaped."""
    ends = [found.end() for found in _USAGE_KEY.finditer(tail)]
    if not ends:
        return None
    try:
        decoded, _ = _FIRST_VALUE.raw_decode(tail[ends[-1] :].decode("utf-8", "replace"))
        return msgspec.convert(decoded, _Usage)
    except (ValueError, msgspec.ValidationError, RecursionError):
        return None


class ApiDialect:
    """One API's way of speaking. ``served`` is the tier to be named in the answer, to a client that asked for one."""

    def __init__(self, reader: Reader, shape: Shape, name: bytes, done: bytes, names_tier: bool = True) -> None:
        self.served: bytes | None = None
        self._names_tier = names_tier
        self._reader = reader
        self._shape = shape
        self._name = name
        self._done = done

    def open_tap(self, strip_usage: bool) -> EventTap:
        """A reader for one stream."""
        if self.served is not None:
            return EchoTap(self._reader, strip_usage, self.served)
        return EventTap(self._reader, strip_usage)

    def serving(self, tier: str) -> "ApiDialect":
        """The same for one request whose answer names the tier that served it, where this API has a place for it."""
        if not self._names_tier:
            return self
        other = copy(self)
        other.served = tier.encode()
        return other

    @property
    def hold_bytes(self) -> int:
        """How much of a whole answer must be held to be finished; 0 if it passes as it comes."""
        return 0 if self.served is None else _MARKED_MAX

    def finish(self, whole: bytes) -> bytes:
        """A whole answer as it goes to the client."""
        return whole if self.served is None else mark_whole(whole, self.served)

    def read_usage(self, body: bytes) -> Usage:
        """Prompt, cached and output tokens of an answer or of its end; ``None`` for what it does not say."""
        try:
            usage = _ANSWER.decode(body).usage
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            usage = _find_usage(body)
        if usage is None:
            return None, None, None
        details = usage.prompt_tokens_details or usage.input_tokens_details
        cached = usage.cache_read_input_tokens if details is None else details.cached_tokens
        if usage.prompt_tokens is not None:
            return usage.prompt_tokens, cached, usage.completion_tokens
        return usage.input_tokens, cached, usage.output_tokens

    def build_refusal(
        self, outcome: Outcome, retry_after_s: float | None = None, detail: str | None = None, param: str | None = None
    ) -> tuple[int, bytes, bytes]:
        """An answer that says why there is none."""
        return render_error(self._shape, telling_of(outcome), retry_after_s, detail, param)

    def build_error(self, status: int, code: str, message: str) -> tuple[int, bytes, bytes]:
        """An answer about a request that has no outcome, since it is none for a worker."""
        kind = _INVALID if status < 500 else _SERVER
        return render_error(self._shape, Telling(status, kind, code, message))

    def adopt_error(self, status: int, content_type: bytes, body: bytes) -> tuple[bytes, bytes]:
        """A worker's 4xx: untouched if it is an error object, else its words in our shape."""
        detail: object = None
        try:
            answer = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            answer = None
        if isinstance(answer, dict):
            if isinstance(answer.get("error"), dict):
                return b"content-type: application/json\r\n", body
            detail = answer.get("detail") or answer.get("message") or answer.get("error")
        message = detail if isinstance(detail, str) else telling_of(Outcome.WORKER_REFUSED).message
        telling = Telling(status, _INVALID, "worker_refused", message)
        _, headers, rendered = render_error(self._shape, telling)
        return headers, rendered

    def build_error_events(self, outcome: Outcome) -> bytes:
        """One error event, then the end of the stream as this API marks it; never an invented finish reason."""
        telling = telling_of(outcome)
        body = self._shape(telling.status, telling.kind, telling.code, telling.message, None)
        return self._name + b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n" + self._done

    def build_stream_end(self) -> bytes:
        """What follows an error event of the worker's own that ended a stream without its mark."""
        return self._done

    def build_heartbeat(self) -> bytes:
        """A comment: every event-stream parser skips it."""
        return b": waiting\n\n"


_DONE = b"data: [DONE]\n\n"
OPENAI = ApiDialect(read_openai_event, shape_openai, b"", _DONE)
RESPONSES = ApiDialect(read_responses_event, shape_openai, b"event: error\n", _DONE)
MESSAGES = ApiDialect(read_messages_event, shape_anthropic, b"event: error\n", b"", names_tier=False)
