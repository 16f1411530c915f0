"""What the four APIs say in their events and answers: token, usage, end, error. Pure functions over decoded JSON."""

from typing import Any

from service.gateway.sse import Finding

Usage = tuple[int | None, int | None, int | None]


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def read_openai_usage(usage: object) -> Usage | None:
    """``usage`` of chat completions and completions: prompt, cached, output."""
    if not isinstance(usage, dict):
        return None
    details = usage.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    return _count(usage.get("prompt_tokens")), cached, _count(usage.get("completion_tokens"))


def read_responses_usage(usage: object) -> Usage | None:
    """``usage`` of responses and, with other names for the cache, of messages: prompt, cached, output."""
    if not isinstance(usage, dict):
        return None
    details = usage.get("input_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    if cached is None:
        cached = _count(usage.get("cache_read_input_tokens"))
    return _count(usage.get("input_tokens")), cached, _count(usage.get("output_tokens"))


def _has_text(value: object) -> bool:
    return isinstance(value, str | list) and len(value) > 0


def read_openai_event(name: str | None, data: Any) -> Finding:  # noqa: ANN401 - decoded JSON of any shape
    """One chunk of chat completions or completions."""
    finding = Finding()
    if not isinstance(data, dict):
        return finding
    if data.get("error") is not None:
        finding.failed = True
    choices = data.get("choices")
    finding.usage = read_openai_usage(data.get("usage"))
    if not isinstance(choices, list):
        return finding
    finding.bare_usage = not choices and finding.usage is not None
    for choice in choices:
        if not isinstance(choice, dict):
            continue
        delta = choice.get("delta")
        if isinstance(delta, dict):
            token = any(
                _has_text(delta.get(key)) for key in ("content", "reasoning", "reasoning_content", "tool_calls")
            )
            finding.token = finding.token or token
        finding.token = finding.token or _has_text(choice.get("text"))
        finding.aborted = finding.aborted or (choice.get("finish_reason") == "abort" and not finding.token)
    return finding


def read_responses_event(name: str | None, data: Any) -> Finding:  # noqa: ANN401 - decoded JSON of any shape
    """One event of responses."""
    finding = Finding()
    if not isinstance(data, dict):
        return finding
    kind = data.get("type") or name or ""
    finding.token = isinstance(kind, str) and kind.endswith(".delta") and _has_text(data.get("delta"))
    finding.done = kind in ("response.completed", "response.incomplete", "response.failed", "response.cancelled")
    finding.failed = kind in ("error", "response.failed") or ("error" in data and "type" not in data)
    response = data.get("response")
    if isinstance(response, dict):
        finding.usage = read_responses_usage(response.get("usage"))
    return finding


def read_messages_event(name: str | None, data: Any) -> Finding:  # noqa: ANN401 - decoded JSON of any shape
    """One event of messages."""
    finding = Finding()
    if not isinstance(data, dict):
        return finding
    kind = data.get("type") or name
    if kind == "content_block_delta":
        delta = data.get("delta")
        if isinstance(delta, dict):
            finding.token = any(_has_text(delta.get(key)) for key in ("text", "thinking", "partial_json"))
    elif kind == "content_block_start":
        block = data.get("content_block")
        finding.token = isinstance(block, dict) and block.get("type") == "tool_use"
    elif kind == "message_delta":
        finding.usage = read_responses_usage(data.get("usage"))
    elif kind == "message_stop":
        finding.done = True
    finding.failed = kind == "error" or ("error" in data and "type" not in data)
    return finding
