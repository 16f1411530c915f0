"""D05, D10 and D12: what a client and the ledger are told of an answer that breaks after its first byte."""

import asyncio
import json

import pytest

from service.gateway.responses import ApiDialect
from service.gateway.sse import EventTap
from service.runtime.journey import Journey
from tests.support.gateway import KEY, MODEL, running_gateway
from tests.support.raw_client import RawClient
from tests.support.scripted_worker import ABORT, ROLE, STOP, USAGE, ScriptedWorker, event, token

pytestmark = pytest.mark.integration
PATH = "/v1/chat/completions"
AUTH = [f"authorization: Bearer {KEY}"]
STREAM = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 9}
WHOLE = STREAM | {"stream": False}
ERROR = {"error": {"message": "engine dead", "type": "InternalServerError", "param": None, "code": 500}}


async def ask(script, body=STREAM, path=PATH, workers=2):
    """The answer, its settlement and the number of requests that workers saw."""
    async with ScriptedWorker(script) as one, ScriptedWorker(script) as two:
        ports = [one.port, two.port][:workers]
        async with running_gateway(ports) as gateway, await RawClient.connect(gateway.port) as client:
            answer = await client.ask("POST", path, body, AUTH)
            (settlement,) = await gateway.settled(1)
            gateway.check_nothing_is_held()
            again = await client.ask("POST", "/nothing", b"", AUTH)  # the connection is still in step
            assert again.status == 404
            return answer, settlement, len(one.seats) + len(two.seats)


def check_broken(answer, kept):
    events = answer.events()
    errors = [one for one in events if "error" in one]
    assert len(errors) == 1
    assert events[-1] is errors[0]
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert answer.body.count(b"[DONE]") == 1
    assert b"finish_reason" not in answer.body
    assert [one for one in events if "error" not in one] == kept


async def two_then(seat, how):
    seat.begin()
    seat.say(ROLE, token("a"), token("b"))
    await seat.flushed()
    how(seat)


def torn(seat):
    """Half an event, then the end of the world."""
    seat.chunk(event(token("lost"))[:30])
    asyncio.get_running_loop().call_later(0.03, seat.reset)


def own_error(seat):
    seat.say(ERROR)
    seat.done()


def own_error_without_mark(seat):
    seat.say(ERROR)
    seat.end()


def own_error_then_reset(seat):
    seat.say(ERROR)
    asyncio.get_running_loop().call_later(0.03, seat.reset)


def own_error_unterminated(seat):
    seat.chunk(event(ERROR)[:-1])
    seat.end()


BREAKS = {
    "reset": lambda seat: seat.reset(),
    "fin": lambda seat: seat.finish(),
    "clean end without DONE": lambda seat: seat.end(),
    "torn event": torn,
    "not http": lambda seat: seat.raw(b"zzz\r\n"),
    "own error": own_error,
    "own error, no DONE": own_error_without_mark,
    "own error, then reset": own_error_then_reset,
    "own error, no blank line": own_error_unterminated,
}


@pytest.mark.parametrize("how", BREAKS)
@pytest.mark.parametrize("usage", [True, False], ids=["usage asked", "not asked"])
async def test_d05_one_error_event_then_the_end(how, usage):
    async def script(seat):
        await two_then(seat, BREAKS[how])

    body = STREAM | ({"stream_options": {"include_usage": True}} if usage else {})
    answer, settlement, calls = await ask(script, body)
    assert answer.status == 200
    check_broken(answer, [ROLE, token("a"), token("b")])
    if how.startswith("own"):
        assert ERROR in answer.events()
    assert settlement.outcome.label == "stream_broken"
    assert calls == 1
    assert settlement.output_estimated
    assert settlement.output_tokens in (2, 3, 4)


async def test_d05_a_reset_after_done_is_no_failure():
    async def script(seat):
        seat.begin()
        seat.say(ROLE, token("a"), STOP, USAGE, "[DONE]")
        await seat.flushed()
        seat.reset()

    answer, settlement, _ = await ask(script)
    assert settlement.outcome.label == "completed"
    assert b"error" not in answer.body
    assert answer.body.count(b"[DONE]") == 1


async def test_d05_messages_end_with_an_error_event_of_their_own():
    async def script(seat):
        seat.begin()
        seat.say(
            event({"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 3}}}, "message_start")
        )
        delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}}
        seat.say(event(delta, "content_block_delta"))
        await seat.flushed()
        seat.reset()

    answer, settlement, _ = await ask(script, STREAM, "/v1/messages")
    last = answer.body.decode().split("\n\n")[-2]
    assert last.startswith("event: error\ndata: ")
    assert json.loads(last.split("data: ")[1])["type"] == "error"
    assert b"[DONE]" not in answer.body
    assert b"message_stop" not in answer.body
    assert settlement.outcome.label == "stream_broken"
    assert settlement.output_tokens == 1


@pytest.mark.parametrize(
    ("owner", "name", "naive"),
    [
        (ApiDialect, "build_error_events", lambda self, outcome: b""),
        (Journey, "on_broken", lambda self, outcome: self.on_complete(outcome, None)),
    ],
    ids=["silent", "passes for complete"],
)
async def test_d05_is_seen_to_fail_where_nothing_is_said(monkeypatch, owner, name, naive):
    async def script(seat):
        await two_then(seat, BREAKS["reset"])

    monkeypatch.setattr(owner, name, naive)
    answer, _, _ = await ask(script)
    with pytest.raises((AssertionError, IndexError)):
        check_broken(answer, [ROLE, token("a"), token("b")])


async def test_d05_is_seen_to_fail_where_a_torn_event_is_sent_on(monkeypatch):
    slowly = EventTap._feed_slowly
    monkeypatch.setattr(EventTap, "_feed_slowly", lambda self, data: (slowly(self, data) and data) or data)

    async def script(seat):
        await two_then(seat, torn)

    answer, _, _ = await ask(script)
    with pytest.raises((AssertionError, ValueError)):
        check_broken(answer, [ROLE, token("a"), token("b")])


async def test_d05_a_stream_aborted_without_a_token_after_its_head_counts_as_broken():
    async def script(seat):
        seat.begin()
        seat.say(ROLE)
        await asyncio.sleep(0.3)  # longer than a first event is held back
        seat.say(ABORT)
        seat.done()

    _, settlement, _ = await ask(script)
    assert settlement.outcome.label == "stream_broken"


async def test_d10_a_stream_without_usage_is_charged_by_its_events():
    async def script(seat):
        seat.begin()
        seat.say(ROLE, *[token()] * 20, STOP)
        seat.done()

    _, settlement, _ = await ask(script)
    assert settlement.outcome.label == "completed"
    assert settlement.output_estimated
    assert 20 <= settlement.output_tokens <= 22


async def test_d10_usage_stands_at_the_end_of_an_answer_too_long_to_be_kept():
    async def script(seat):
        text = 'long, and it quotes "usage":{"prompt_tokens":1} ' * 6000
        usage = {"prompt_tokens": 11, "completion_tokens": 4242, "total_tokens": 4253}
        seat.json(200, {"choices": [{"message": {"content": text}}], "usage": usage, "metrics": None})

    answer, settlement, _ = await ask(script, WHOLE)
    assert len(answer.json()["choices"][0]["message"]["content"]) > 200_000
    assert (settlement.prompt_tokens, settlement.output_tokens) == (11, 4242)


async def test_d10_a_long_answer_is_seen_to_be_free_where_its_end_is_not_kept(monkeypatch):
    monkeypatch.setattr("service.runtime.relay._TAIL", 8)
    with pytest.raises(AssertionError):
        await test_d10_usage_stands_at_the_end_of_an_answer_too_long_to_be_kept()


@pytest.mark.parametrize("dies", [False, True])
async def test_d12_stamps_of_a_stream(dies):
    async def script(seat):
        seat.begin()
        seat.chunk(b": ping\n\n")
        seat.say(ROLE)
        await asyncio.sleep(0.2)
        seat.say(token("a"))
        await asyncio.sleep(0.2)
        if dies:
            seat.reset()
            return
        seat.say(token("b"), token("c"), STOP, USAGE)
        seat.done()

    _, one, _ = await ask(script)
    assert one.arrived_at <= one.admitted_at <= one.dispatched_at < one.first_token_at <= one.last_token_at
    assert one.last_token_at <= one.settled_at
    assert one.queue_s < 0.1
    assert 0.2 <= one.ttft_s < 2.0
    if dies:
        assert one.outcome.label == "stream_broken"
        assert (one.output_tokens, one.output_estimated) == (1, True)
    else:
        assert one.outcome.label == "completed"
        assert (one.output_tokens, one.output_estimated) == (3, False)
        assert one.last_token_at - one.first_token_at >= 0.19
        assert one.tpot_s == (one.last_token_at - one.first_token_at) / 2


async def test_d12_is_seen_to_fail_where_the_first_byte_counts(monkeypatch):
    def early(self, headers, length, data):
        self._commit(200, headers, None)
        self._client.write(data)
        self.settlement.first_token_at = self._now()

    monkeypatch.setattr(Journey, "on_answer", early)
    monkeypatch.setattr(Journey, "on_first_token", lambda self: None)
    with pytest.raises(AssertionError):
        await test_d12_stamps_of_a_stream(False)
