"""Decides what a request body asks for, in the words of each API; says no as vLLM does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from service.emulator.bodies import read_int, require
from service.emulator.fields import Fields, as_fields, as_int, as_list, as_text
from service.emulator.refusals import Refusal, build_invalid, build_missing, build_validation
from service.emulator.template import count_tokens, flatten, render_chat

MAX_CHOICES = 16_384
"""vLLM's ``VLLM_MAX_N_SEQUENCES``."""


MAX_STOP_STRINGS = 4
"""vLLM's ``VLLM_MAX_STOP_STRINGS``."""


class Api(StrEnum):
    """The generating interfaces."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"


@dataclass(frozen=True, slots=True)
class Job:
    """One generating request, whatever API it came by."""

    api: Api
    model: str
    prompts: tuple[bytes, ...]
    text_key: bytes
    """What the text is derived from: the prompt without a partial answer to be continued."""
    is_text: bool = True
    """Whether the prompt came as text, not as token ids."""
    stream: bool = False
    choices: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    seed: int = 0
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    """Top alternatives wanted per token; ``None`` = no logprobs."""
    include_usage: bool = False
    continuous_usage: bool = False
    return_token_ids: bool = False
    echo: str = ""
    role: str = "assistant"
    wants_reasoning: bool = True
    continued_tokens: int = 0
    tools: tuple[object, ...] = ()
    tool_name: str = ""
    tool_required: bool = False
    tool_forbidden: bool = False
    last_text: str = ""
    priority: int = 0
    cache_salt: str = ""
    request_id: str = ""
    body: Fields | None = None
    """The request as written; the Responses API echoes parts of it."""


def read_choices(body: Fields) -> int:
    """``n``, 1 where it is absent; below 1 or above ``MAX_CHOICES`` it is refused."""
    asked = read_int(body, "n")
    choices = 1 if asked is None else asked
    if choices < 1:
        raise Refusal(400, f"n must be at least 1, got {choices}.")
    if choices > MAX_CHOICES:
        raise build_validation(f"n must be at most {MAX_CHOICES}, got {choices}.", "n", choices)
    return choices


def read_stop(body: Fields, name: str) -> tuple[str, ...]:
    """Stop strings from one string or a list; more than ``MAX_STOP_STRINGS`` are refused, other items skipped."""
    raw = body.get(name)
    if isinstance(raw, str):
        return (raw,)
    if len(as_list(raw)) > MAX_STOP_STRINGS:
        message = f"List should have at most {MAX_STOP_STRINGS} items after validation, not {len(as_list(raw))}"
        raise build_invalid("too_long", (name,), message, raw)
    return tuple(word for word in as_list(raw) if isinstance(word, str))


def read_tool_choice(raw: object) -> tuple[str, bool, bool]:
    """(name, required, forbidden)."""
    if isinstance(raw, str):
        return "", raw in ("required", "any"), raw == "none"
    fields = as_fields(raw)
    kind = as_text(fields.get("type"))
    name = as_text(as_fields(fields.get("function")).get("name")) or as_text(fields.get("name"))
    return name, kind in ("any", "required"), kind == "none"


def read_usage_options(body: Fields) -> tuple[bool, bool]:
    """(usage at the end of the stream, usage in each chunk); the second is nothing without the first."""
    options = as_fields(body.get("stream_options"))
    include = bool(options.get("include_usage"))
    return include, include and bool(options.get("continuous_usage_stats"))


def read_sampling(body: Fields) -> Fields:
    """The fields that chat and completions share, as arguments of ``Job``."""
    include, continuous = read_usage_options(body)
    temperature = body.get("temperature")
    if isinstance(temperature, float) and not math.isfinite(temperature):
        raise build_validation(f"temperature must be a finite number, got {temperature}.", "temperature", temperature)
    tools = as_list(body.get("tools"))
    choice = body.get("tool_choice", "auto" if tools else "none")
    name, required, forbidden = read_tool_choice(choice)
    return {
        "model": as_text(body.get("model")),
        "stream": bool(body.get("stream")),
        "choices": read_choices(body),
        "min_tokens": read_int(body, "min_tokens", 0) or 0,
        "ignore_eos": bool(body.get("ignore_eos")),
        "seed": read_int(body, "seed") or 0,
        "stop": read_stop(body, "stop"),
        "include_usage": include,
        "continuous_usage": continuous,
        "return_token_ids": bool(body.get("return_token_ids")),
        "tools": tuple(tools),
        "tool_name": name,
        "tool_required": required,
        "tool_forbidden": forbidden or not tools,
        "priority": read_int(body, "priority") or 0,
        "cache_salt": as_text(body.get("cache_salt")),
        "request_id": as_text(body.get("request_id")),
        "body": body,
    }


def read_chat(body: Fields) -> Job:
    """The job of a chat request; refused without messages, or if options contradict each other."""
    messages = require(body, "messages")
    if not isinstance(messages, list):
        raise build_invalid("list_type", ("messages",), "Input should be a valid list", messages)
    if not messages:
        message = "Cannot apply chat template to an empty conversation. Provide at least one message."
        raise Refusal(400, message)
    shared = read_sampling(body)
    if shared["tool_required"] and not shared["tools"]:
        raise build_validation("When using `tool_choice`, `tools` must be set.", "tool_choice")
    last = as_fields(messages[-1])
    last_text = flatten(last.get("content"))
    continued = bool(body.get("continue_final_message"))
    if continued and body.get("add_generation_prompt", True):
        message = (
            "continue_final_message and add_generation_prompt are not compatible. Use continue_final_message when you "
            "want the model to continue the final message, and add_generation_prompt when you want to add a header "
            "that will prompt it to start a new assistant message instead."
        )
        raise Refusal(400, message)
    tools = list(as_list(body.get("tools")))
    prompt = render_chat(messages, tools, open_last=continued)
    effort = as_text(body.get("reasoning_effort"))
    limit = read_int(body, "max_completion_tokens", 1)
    return _job(
        shared,
        api=Api.CHAT,
        prompts=(prompt,),
        text_key=render_chat(messages[:-1], tools, open_last=False) if continued else prompt,
        max_tokens=read_int(body, "max_tokens", 1) if limit is None else limit,
        logprobs=(read_int(body, "top_logprobs", 0) or 0) if body.get("logprobs") else None,
        role=as_text(last.get("role"), "assistant") if continued else "assistant",
        echo=last_text if continued and body.get("echo") else "",
        continued_tokens=count_tokens(last_text.encode("utf-8", "replace")) if continued else 0,
        wants_reasoning=effort != "none" and body.get("include_reasoning", True) is not False,
        last_text=last_text,
    )


def read_completion(body: Fields) -> Job:
    """The job of a completions request, all its prompts together; 16 tokens each unless it says otherwise."""
    raw = body.get("prompt")
    if raw is None or raw == "":
        raise build_validation("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    prompts = read_prompts(raw)
    limit = read_int(body, "max_tokens", 0)
    logprobs = read_int(body, "logprobs", 0)
    return _job(
        read_sampling(body) | {"tools": (), "tool_name": "", "tool_required": False},
        api=Api.COMPLETIONS,
        prompts=prompts,
        text_key=b"\n".join(prompts),
        is_text=isinstance(raw, str) or any(isinstance(item, str) for item in as_list(raw)),
        max_tokens=16 if limit is None else max(1, limit),
        logprobs=logprobs,
        wants_reasoning=False,
        echo=prompts[0].decode("utf-8", "replace") if body.get("echo") else "",
    )


def read_prompts(raw: object) -> tuple[bytes, ...]:
    """Text, token ids, or a list of either."""
    if isinstance(raw, str):
        return (raw.encode("utf-8", "replace"),)
    items = as_list(raw)
    if items and all(isinstance(item, int) for item in items):
        return (render_ids(items),)
    prompts = [
        item.encode("utf-8", "replace") if isinstance(item, str) else render_ids(as_list(item)) for item in items
    ]
    if not prompts:
        raise Refusal(400, "You must pass at least one prompt")
    return tuple(prompts)


def render_ids(ids: list[object]) -> bytes:
    """Any token id as four bytes: foreign ids keep their count, ids of this tokenizer their text."""
    return b"".join(((as_int(token) or 0) & 0xFFFFFFFF).to_bytes(4, "little") for token in ids)


def read_response(body: Fields) -> Job:
    """The job of a Responses request, instructions as a system message in front; refused without ``input``."""
    source = require(body, "input")
    items: list[object] = [{"role": "user", "content": source}] if isinstance(source, str) else list(as_list(source))
    instructions = as_text(body.get("instructions"))
    if instructions:
        items.insert(0, {"role": "system", "content": instructions})
    shared = read_sampling(body)
    prompt = render_chat(items, list(as_list(body.get("tools"))), open_last=False)
    return _job(
        shared,
        api=Api.RESPONSES,
        prompts=(prompt,),
        text_key=prompt,
        max_tokens=read_int(body, "max_output_tokens", 1),
        last_text=flatten(as_fields(items[-1]).get("content")) if items else "",
        wants_reasoning=as_fields(body.get("reasoning")).get("effort") != "none",
    )


def read_message(body: Fields, counting: bool = False) -> Job:
    """The job of a Messages request; one that only counts tokens (``counting``) needs no ``max_tokens``."""
    needed = ("model", "messages") if counting else ("model", "messages", "max_tokens")
    missing = [name for name in needed if name not in body]
    if missing:
        raise build_missing(missing, body)
    messages = as_list(body["messages"])
    limit = None if counting else as_int(body["max_tokens"])
    if not counting and (limit is None or limit <= 0):
        raise build_invalid(
            "value_error", ("max_tokens",), "Value error, max_tokens must be positive", body["max_tokens"]
        )
    system = body.get("system")
    items: list[object] = [{"role": "system", "content": system}, *messages] if system else messages
    prompt = render_chat(items, list(as_list(body.get("tools"))), open_last=False)
    thinking = as_text(as_fields(body.get("thinking")).get("type"))
    return _job(
        read_sampling(body),
        api=Api.MESSAGES,
        prompts=(prompt,),
        text_key=prompt,
        max_tokens=limit,
        stop=read_stop(body, "stop_sequences"),
        include_usage=True,
        continuous_usage=True,
        last_text=flatten(as_fields(messages[-1]).get("content")) if messages else "",
        wants_reasoning=thinking != "disabled",
    )


def _job(shared: Fields, **own: object) -> Job:
    return Job(**(shared | own))  # type: ignore[arg-type]  # the readers above give each field its type


READERS = {
    Api.CHAT: read_chat,
    Api.COMPLETIONS: read_completion,
    Api.RESPONSES: read_response,
    Api.MESSAGES: read_message,
}
