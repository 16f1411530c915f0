"""Sends one probe and judges it."""

import asyncio
import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass

import httpx

_PROMPT = "Reply with one word."
_TOKENS = 8
_TOKEN_FIELDS = ("content", "reasoning", "reasoning_content", "tool_calls")


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """Where one tier is probed. ``ttft_target_s`` is promised for short prompts; ``None``: only ``limit_s`` counts, the
    seconds after which an answer that has not ended is bad. ``trust`` says which certificates are believed."""

    tier: str
    url: str
    model: str
    key: str
    ttft_target_s: float | None
    limit_s: float
    trust: ssl.SSLContext | bool = True


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """``fault`` is empty for a good probe; ``ttft_s`` is ``None`` if no token came."""

    fault: str
    ttft_s: float | None


async def send_probe(target: ProbeTarget, now: Callable[[], float]) -> ProbeResult:
    """One streamed request on a connection of its own, as a customer's first; never raises for what a gateway or the
    network does."""
    began_at = now()
    reading = _Reading()
    body = {
        "model": target.model,
        "stream": True,
        "max_tokens": _TOKENS,
        "messages": [{"role": "user", "content": _PROMPT}],
    }
    headers = {"authorization": f"Bearer {target.key}"}
    try:
        async with (
            asyncio.timeout(target.limit_s),
            httpx.AsyncClient(verify=target.trust, trust_env=False, timeout=2 * target.limit_s) as client,
            client.stream("POST", f"{target.url}/v1/chat/completions", json=body, headers=headers) as answer,
        ):
            if answer.status_code != httpx.codes.OK:
                return ProbeResult(f"status {answer.status_code}", None)
            async for line in answer.aiter_lines():
                reading.take(line, now() - began_at)
    except TimeoutError:
        return ProbeResult(f"not over after {target.limit_s:g} s", reading.ttft_s)
    except httpx.HTTPError as error:
        return ProbeResult(f"{type(error).__name__}: {error}".rstrip(": "), reading.ttft_s)
    return ProbeResult(_judge(reading, target.ttft_target_s), reading.ttft_s)


class _Reading:
    """What has been seen of a stream."""

    def __init__(self) -> None:
        self.ttft_s: float | None = None
        self.ended = False
        self.fault = ""

    def take(self, line: str, after_s: float) -> None:
        if not line.startswith("data:"):
            return
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            self.ended = True
            return
        try:
            event = json.loads(data)
        except ValueError:
            self.fault = "an event that is not JSON"
            return
        if not isinstance(event, dict):
            self.fault = "an event that is no object"
        elif "error" in event:
            self.fault = "an error event"
        elif self.ttft_s is None and _has_token(event):
            self.ttft_s = after_s


def _has_token(event: dict[str, object]) -> bool:
    choices = event.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        delta = choice.get("delta") if isinstance(choice, dict) else None
        if isinstance(delta, dict) and any(delta.get(name) for name in _TOKEN_FIELDS):
            return True
    return False


def _judge(reading: _Reading, target_s: float | None) -> str:
    if reading.fault:
        return reading.fault
    if reading.ttft_s is None:
        return "no token"
    if not reading.ended:
        return "the stream broke off"
    if target_s is not None and reading.ttft_s > target_s:
        return f"first token after {reading.ttft_s:.2f} s, promised within {target_s:g} s"
    return ""
