"""Holds vLLM's error answers: status, body and the words in them."""

from __future__ import annotations

import msgspec

from service.emulator.steps import RefusalReason

BUSY = {
    RefusalReason.QUEUED_REQUESTS: (
        "The engine is currently busy and cannot accept new requests. "
        "Please try again later or on a different instance."
    ),
    RefusalReason.QUEUED_TOKENS: (
        "The engine has reached its prefill token backlog limit. Please try again later or on a different instance."
    ),
}
UNSUPPORTED_MEDIA = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
SHUTTING_DOWN = "cannot schedule new futures after shutdown"


class Refusal(Exception):  # noqa: N818  (an answer that ends a request early, not a fault of the program)
    """An answer other than 200, raised while a request is being read."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        """OpenAI's shape, as vLLM writes it."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
        return msgspec.json.encode({"error": error})

    def anthropic_body(self) -> bytes:
        error = {"type": self.kind, "message": self.message}
        return msgspec.json.encode({"type": "error", "error": error})


class Unrouted(Exception):  # noqa: N818  (an answer, not a fault of the program)
    """Starlette's own 404 and 405, which vLLM leaves as they are."""

    def __init__(self, status: int, detail: str, allow: str = "") -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.allow = allow


def build_validation(message: str, parameter: str, value: object = None) -> Refusal:
    """vLLM's ``VLLMValidationError``: the parameter, and the value if there is one, stand behind the message too."""
    where = f"parameter={parameter}" if value is None else f"parameter={parameter}, value={value}"
    return Refusal(400, f"{message} ({where})", param=parameter)


def summarise(value: object) -> object:
    """A value as vLLM echoes it in a validation error."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list | dict):
        return f"<{type(value).__name__} of {len(value)} items>"
    return str(value)


def build_invalid(kind: str, where: tuple[str, ...], message: str, value: object = None) -> Refusal:
    """What FastAPI's validation says, in vLLM's words (400, not 422)."""
    path = ".".join(("body", *where))
    detail = {"type": kind, "loc": path, "msg": message, "input": summarise(value)}
    return Refusal(400, f"1 validation error:\n  {detail}", "Bad Request", path)


def build_missing(names: list[str], body: dict[str, object]) -> Refusal:
    """Required fields that are not there, all of them."""
    details = [
        {"type": "missing", "loc": f"body.{name}", "msg": "Field required", "input": summarise(body)} for name in names
    ]
    label = "error" if len(names) == 1 else "errors"
    lines = "\n".join(f"  {detail}" for detail in details)
    return Refusal(400, f"{len(names)} validation {label}:\n{lines}", "Bad Request", f"body.{names[0]}")


def build_bad_json(message: str, position: int) -> Refusal:
    """A body that is not JSON: the parser's complaint and the character it stopped at."""
    path = f"body.{position}"
    detail = {
        "type": "json_invalid",
        "loc": path,
        "msg": "JSON decode error",
        "input": "<dict of 0 items>",
        "ctx": {"error": message},
    }
    return Refusal(400, f"1 validation error:\n  {detail}", "Bad Request", path)


def build_unknown_model(asked: str, served: str) -> Refusal:
    """404 for a model this worker does not serve, naming the one it does."""
    message = f"The model `{asked}` does not exist. Valid aliases: {served}."
    return Refusal(404, message, "NotFoundError", "model")


def build_too_long(limit: int, tokens: int, is_text: bool) -> Refusal:
    """vLLM's tokenizer stops one token past the limit, so it knows the length only of prompts that came as ids."""
    known = f"at least {limit + 1}" if is_text else str(tokens)
    message = (
        f"This model's maximum context length is {limit} tokens. However, your prompt contains {known} input tokens, "
        "which exceeds this limit even without any output tokens. Please reduce the length of the input prompt."
    )
    return build_validation(message, "input_tokens", limit + 1 if is_text else tokens)


def build_busy(reason: RefusalReason) -> Refusal:
    """503 of one of vLLM's two valves, in its words."""
    return Refusal(503, BUSY[reason], "Service Unavailable")
