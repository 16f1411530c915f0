"""D06, D07, D08 and D12 at the edge: event streams cross it untouched and are understood in every framing."""

import asyncio
import json

import msgspec
import pytest

from service.gateway import sse
from service.gateway.sse import EventTap
from service.runtime.limits import RelayConfig
from service.runtime.relay import Relay
from tests.support.gateway import KEY, MODEL, running_gateway
from tests.support.raw_client import RawClient, chat
from tests.support.written_worker import (
    DONE,
    LAST,
    RESET,
    USAGE,
    WHOLE,
    ScriptedWorker,
    chunk,
    delta,
    event,
    stream,
    stream_head,
)

pytestmark = pytest.mark.integration
CHAT = "/v1/chat/completions"
AUTH = (f"authorization: Bearer {KEY}",)
TEXT = '这是 😀 "usage" and "error" and [DONE], é'
PLAIN = event(delta("", role="assistant")) + event(delta(TEXT)) + event(delta(" end")) + event(USAGE) + DONE
BARE = event(USAGE)


def lines_end(data, end):
    return data.replace(b"\n", end)


def in_two_lines(data):
    """Every JSON object over two ``data:`` lines."""
    return data.replace(b'"choices":', b'\ndata: "choices":')


COMMENTED = b": hello\n\n" + PLAIN.replace(b"data:", b"event: message\nid: 7\nretry: 10\ndata:")
VARIANTS = {
    "lf": (PLAIN, BARE),
    "crlf": (lines_end(PLAIN, b"\r\n"), lines_end(BARE, b"\r\n")),
    "cr": (lines_end(PLAIN, b"\r"), lines_end(BARE, b"\r")),
    "bom": (b"\xef\xbb\xbf" + PLAIN, BARE),
    "comments, event and id": (COMMENTED, BARE.replace(b"data:", b"event: message\nid: 7\nretry: 10\ndata:")),
    "multi-line": (in_two_lines(PLAIN), in_two_lines(BARE)),
    "multi-line crlf": (lines_end(in_two_lines(PLAIN), b"\r\n"), lines_end(in_two_lines(BARE), b"\r\n")),
    "no space": (PLAIN.replace(b"data: ", b"data:"), BARE.replace(b"data: ", b"data:")),
    "no last blank line": (PLAIN[:-1], BARE),
    "no last line end": (PLAIN[:-2], BARE),
}


async def ask(gateway, body, path=CHAT, headers=AUTH):
    async with await RawClient.connect(gateway.port) as client:
        return await client.ask("POST", path, body, headers)


async def through(steps, **fields):
    """What a client gets of the worker's ``steps``, and the settlement."""
    async with ScriptedWorker(steps) as worker, running_gateway([worker.port]) as gateway:
        answer = await ask(gateway, chat(model=MODEL, stream=True, **fields))
        (settlement,) = await gateway.settled(1)
        gateway.check_nothing_is_held()
        return answer, settlement, worker.received


def check_settlement(settlement):
    assert settlement.outcome.label == "completed"
    assert (settlement.prompt_tokens, settlement.output_tokens) == (7, 3)
    assert settlement.first_token_at is not None


@pytest.mark.parametrize("size", [1, 7, None])
@pytest.mark.parametrize("variant", VARIANTS)
async def test_d06_bytes_are_untouched_when_the_client_asked_for_usage(variant, size):
    data, _ = VARIANTS[variant]
    answer, settlement, _ = await through(stream(data, size=size), stream_options={"include_usage": True})
    assert answer.body == data
    check_settlement(settlement)


@pytest.mark.parametrize("size", [1, 7, None])
@pytest.mark.parametrize("variant", VARIANTS)
async def test_d06_only_the_usage_chunk_is_taken_out_when_it_did_not(variant, size):
    data, bare = VARIANTS[variant]
    assert data.count(bare) == 1
    answer, settlement, _ = await through(stream(data, size=size))
    assert answer.body == data.replace(bare, b"")
    check_settlement(settlement)


@pytest.mark.parametrize("variant", ["crlf", "cr", "multi-line crlf"])
async def test_d06_fails_with_a_tap_that_splits_at_two_line_feeds_only(variant, monkeypatch):
    monkeypatch.setattr(sse, "_BLANK", __import__("re").compile(rb"\n\n"))
    _, settlement, _ = await through(stream(VARIANTS[variant][0]))
    with pytest.raises(AssertionError):
        check_settlement(settlement)


async def test_d06_fails_with_a_tap_that_decodes_each_read_by_itself(monkeypatch):
    def feed(self, data):
        for block in data.split(b"\n\n"):
            if block:
                self._look(block)
        return data

    monkeypatch.setattr(EventTap, "feed", feed)
    _, settlement, _ = await through(stream(PLAIN, size=7))
    with pytest.raises(AssertionError):
        check_settlement(settlement)


async def test_d06_an_error_inside_a_stream_is_a_failure_and_a_text_about_errors_is_none():
    broken = event(delta("a")) + event({"error": {"message": "boom", "type": "x", "code": 500}}) + DONE
    answer, settlement, _ = await through(stream(broken))
    assert answer.body == broken
    assert settlement.outcome.label == "stream_broken"
    spoken = event(delta('{"error": {"message": "boom"}} data: [DONE]\n\n"usage"')) + event(USAGE) + DONE
    answer, settlement, _ = await through(stream(spoken))
    check_settlement(settlement)


async def test_d06_an_event_larger_than_what_is_read_of_one_passes(monkeypatch):
    monkeypatch.setattr(sse, "_PARTIAL_MAX", 10_000)
    body = {"type": "response.completed", "response": {"output": "x" * 300_000, "usage": None}}
    whole = (
        b"event: response.output_text.delta\n" + event({"type": "response.output_text.delta", "delta": "x"})
        + b"event: response.completed\n" + event(body)
    )  # fmt: skip
    async with ScriptedWorker(stream(whole, size=3000)) as worker, running_gateway([worker.port]) as gateway:
        answer = await ask(gateway, {"model": MODEL, "input": "x", "stream": True}, "/v1/responses")
        (settlement,) = await gateway.settled(1)
    assert answer.body == whole
    assert settlement.outcome.label == "completed"


# ------------------------------------------------------------------------------------------------------------- D07

OPTIONS = {
    "absent": ({}, False),
    "null": ({"stream_options": None}, False),
    "empty": ({"stream_options": {}}, False),
    "true": ({"stream_options": {"include_usage": True}}, True),
    "false": ({"stream_options": {"include_usage": False}}, False),
    "null inside": ({"stream_options": {"include_usage": None}}, False),
    "other keys": ({"stream_options": {"a": 10**30, "b": "\U0001f600", "c": {"d": [None]}}}, False),
    "other keys and true": ({"stream_options": {"x": 1.0, "include_usage": True}}, True),
    "continuous only": ({"stream_options": {"continuous_usage_stats": True}}, False),
}


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@pytest.mark.parametrize("name", OPTIONS)
async def test_d07_usage_is_learned_and_shown_only_to_who_asked(name, path):
    fields, asked = OPTIONS[name]
    async with ScriptedWorker(stream(PLAIN)) as worker, running_gateway([worker.port]) as gateway:
        answer = await ask(gateway, chat(model=MODEL, stream=True, **fields), path)
        (settlement,) = await gateway.settled(1)
    sent = worker.received[0].json()["stream_options"]
    assert sent["include_usage"] is True
    kept = {k: v for k, v in (fields.get("stream_options") or {}).items() if k != "include_usage"}
    kept.pop("continuous_usage_stats", None)  # it would take effect only because we ask for usage
    assert {k: v for k, v in sent.items() if k != "include_usage"} == kept
    assert (BARE in answer.body) is asked
    check_settlement(settlement)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses", "/v1/messages"])
async def test_d07_nothing_is_asked_for_when_nothing_streams(path):
    for fields in ({}, {"stream": False}, {"stream": None}):
        async with ScriptedWorker([WHOLE]) as worker, running_gateway([worker.port]) as gateway:
            await ask(gateway, chat(model=MODEL, **fields), path)
            (settlement,) = await gateway.settled(1)
        assert "stream_options" not in worker.received[0].json()
        assert settlement.output_tokens == 3


async def test_d07_fails_with_a_gateway_that_forces_the_option(monkeypatch):
    """Seen with the naive way: the option is overwritten for everybody and its chunk is passed to all."""
    take = EventTap._take
    monkeypatch.setattr(EventTap, "_take", lambda self, finding: take(self, finding) and False)
    answer, _, _ = await through(stream(PLAIN))
    assert BARE in answer.body  # a client that never asked crashes on ``choices[0]`` of this chunk


# ------------------------------------------------------------------------------------------------------------- D08


async def test_d08_fields_nobody_knows_reach_the_client_in_order():
    chunks = [
        b'data: {"id":"c","choices":[{"index":1,"delta":{"reasoning":"hm"},"logprobs":null,"token_ids":[1,2]}]}\n\n',
        b'data: {"choices":[{"delta":{"invented":{"a":[null,{}]}},"index":0}],"created":1.0,"x":1e400}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":null,"tool_calls":[]},"finish_reason":null}],"id":"c"}\n\n',
        b'data: {"choices":[{"index":1,"delta":{"content":"b"},"logprobs":{"content":[{"top_logprobs":[]}]}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":"a"},"stop_reason":null}],"b":NaN}\n\n',
    ]
    answer, settlement, _ = await through(stream([*chunks, BARE, DONE]), n=2)
    assert answer.body == b"".join(chunks) + DONE
    check_settlement(settlement)


async def test_d08_a_chunk_with_only_reasoning_is_a_first_token():
    head = [stream_head(), chunk(event(delta("", role="assistant"))), 0.15, chunk(event(delta(None, reasoning="hm")))]
    _, settlement, _ = await through([*head, 0.15, chunk(BARE + DONE), LAST])
    assert 0.13 < settlement.first_token_at - settlement.dispatched_at < 0.29


async def test_d08_fails_with_a_gateway_that_models_chunks():
    class Delta(msgspec.Struct, omit_defaults=True):
        content: str | None = None

    class Choice(msgspec.Struct):
        index: int
        delta: Delta

    class Chunk(msgspec.Struct):
        choices: list[Choice]

    sent = {"choices": [{"index": 0, "delta": {"content": None, "reasoning": "hm"}, "logprobs": None}]}
    modelled = msgspec.json.encode(msgspec.json.decode(json.dumps(sent), type=Chunk))
    assert json.loads(modelled) != sent


WEIRD = (
    b'{ "model" : "' + MODEL.encode() + b'",\n "messages":[{"role":"user","content":"\\u00e9\\ud83d\\ude00"}],'
    b'"big":123456789012345678901234567890,"f":1.0e+2,"n":null,"nested":{"a":{"priority":1},"b":[1, 2 ,3]},'
    b'"seed":-0,"\\u0061\\u0062":"x","max_tokens": 5 }'
)


async def test_d08_unknown_request_fields_go_on_byte_for_byte():
    async with ScriptedWorker([WHOLE]) as worker, running_gateway([worker.port]) as gateway:
        await ask(gateway, WEIRD)
    body = worker.received[0].body
    ours, rest = body.split(b",", 1)
    assert ours.startswith(b'{"cache_salt":"')
    assert rest == WEIRD[1:]


# ------------------------------------------------------------------------------------------------------------- D12


async def test_d12_the_first_token_is_content_and_the_end_is_the_last_byte():
    steps = [stream_head(), chunk(b": ping\n\n"), chunk(event(delta("", role="assistant"))), 0.4,
             chunk(event(delta("a"))), 0.3, chunk(event(delta("b")) + BARE + DONE), LAST]  # fmt: skip
    _, settlement, _ = await through(steps)
    assert 0.38 < settlement.first_token_at - settlement.dispatched_at < 0.65
    assert 0.68 < settlement.last_token_at - settlement.dispatched_at < 1.2
    assert settlement.settled_at - settlement.dispatched_at > 0.68
    assert settlement.queue_s < 0.2
    check_settlement(settlement)


async def test_d12_a_stream_that_dies_is_no_success():
    _, settlement, _ = await through([stream_head(), chunk(event(delta("a"))), 0.1, RESET])
    assert settlement.outcome.label == "stream_broken"
    assert settlement.outcome.fault.value == "us"
    assert settlement.output_tokens == 1
    assert settlement.output_estimated


async def test_d12_fails_with_a_relay_that_takes_the_first_byte_for_the_first_token(monkeypatch):
    def feed_early(self, tap, data):
        tap.first_token = True
        self._start(tap.feed(data))
        self._live = True
        self._traveller.on_first_token()

    monkeypatch.setattr(Relay, "_feed_early", feed_early)
    steps = [
        stream_head(),
        chunk(event(delta("", role="assistant"))),
        0.3,
        chunk(event(delta("a")) + BARE + DONE),
        LAST,
    ]
    _, settlement, _ = await through(steps)
    assert settlement.first_token_at - settlement.dispatched_at < 0.25


async def test_heartbeats_keep_a_silent_stream_open_and_change_no_event():
    relay = RelayConfig(heartbeat_after_s=0.1, heartbeat_every_s=0.1)
    async with ScriptedWorker([0.45, *stream(PLAIN)]) as worker, running_gateway([worker.port], relay=relay) as gateway:
        answer = await ask(gateway, chat(model=MODEL, stream=True, stream_options={"include_usage": True}))
    assert answer.body.startswith(b": waiting\n\n")
    assert answer.body.replace(b": waiting\n\n", b"") == PLAIN


async def test_a_slow_reader_gets_every_byte():
    pieces = [event(delta("x" * 5000)) for _ in range(400)]
    async with ScriptedWorker(stream([*pieces, BARE, DONE])) as worker, running_gateway([worker.port]) as gateway:
        async with await RawClient.connect(gateway.port, limit=4096) as client:
            client.send("POST", CHAT, chat(model=MODEL, stream=True), AUTH)
            await client.head()
            await asyncio.sleep(0.3)
            assert b"".join(await client.rest()) == b"".join(pieces) + DONE
        await gateway.settled(1)
        gateway.check_nothing_is_held()
