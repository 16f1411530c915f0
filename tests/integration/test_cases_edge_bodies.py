"""D28: bad, big, slow and lying bodies. Whatever comes, the answer is plain and nothing is kept."""

import asyncio
import json

import pytest

from service.domain.event import WorkerHealthChanged
from service.gateway import corridor as corridor_module
from service.gateway.edge import EdgeConfig
from service.gateway.exchange import Exchange
from service.gateway.peek import Peeked
from service.runtime.turnstile import PIECE_BYTES, Turnstile
from tests.support.gateway import KEY, MODEL, running_gateway
from tests.support.raw_client import RawClient, chat
from tests.support.until import until
from tests.support.written_worker import HANG, LAST, WHOLE, ScriptedWorker, chunk, reply

pytestmark = pytest.mark.integration
CHAT = "/v1/chat/completions"
AUTH = (f"authorization: Bearer {KEY}",)
M = f'"model":"{MODEL}"'.encode()
ROUTES = [
    CHAT,
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/tokenize",
    "/detokenize",
]
SMALL = EdgeConfig(body_max_bytes=100_000, bodies_max_bytes=150_000, body_timeout_s=0.3)


def budget_of(gateway):
    return next(iter(gateway.connections))._budget


def head(length=None, *lines, target=CHAT, auth=True):
    own = [f"POST {target} HTTP/1.1", "host: test", *(AUTH if auth else ())]
    own += [f"content-length: {length}"] if length is not None else []
    return "\r\n".join([*own, *lines, "", ""]).encode()


MALFORMED = {
    "array": (b"[]", None),
    "null": (b"null", None),
    "string": (b'"x"', None),
    "number": (b"1", None),
    "empty": (b"", None),
    "blank": (b" \r\n ", None),
    "truncated": (b"{" + M + b',"messages":[{"role"', None),
    "two objects": (b"{" + M + b"}{}", None),
    "comma at the end": (b"{" + M + b",}", None),
    "single quotes": (b"{'model':1}", None),
    "invalid utf-8": (b"{" + M + b',"x":"\xff\xfe"}', None),
    "overlong utf-8": (b"{" + M + b',"x":"\xc0\x80"}', None),
    "surrogate in utf-8": (b"{" + M + b',"x":"\xed\xa0\x80"}', None),
    "utf-16": (b"{" + M + b"}", None),
    "half a surrogate pair": (b"{" + M + b',"x":"\\ud83d"}', None),
    "nan": (b"{" + M + b',"x":NaN}', None),
    "infinity": (b"{" + M + b',"x":-Infinity}', None),
    "control character": (b"{" + M + b',"x":"a\nb"}', None),
    "too deep": (b"{" + M + b',"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}", None),
    "key twice": (b"{" + M + b',"x":1,' + M + b"}", "model"),
    "key twice, one escaped": (b"{" + M + b',"mod\\u0065l":"other"}', "model"),
    "unread key twice": (b'{"x":1,' + M + b',"\\u0078":1}', "x"),
    "model a number": (b'{"model":5}', "model"),
    "model an object": (b'{"model":{"a":1}}', "model"),
    "model half a pair": (b'{"model":"\\ude00"}', None),
    "stream a string": (b"{" + M + b',"stream":"yes"}', "stream"),
    "stream a number": (b"{" + M + b',"stream":1}', "stream"),
    "stream a list": (b"{" + M + b',"stream":[true]}', "stream"),
    "tier a number": (b"{" + M + b',"service_tier":1}', "service_tier"),
    "previous a list": (b"{" + M + b',"previous_response_id":["a"]}', "previous_response_id"),
}
BOUNDS = {
    CHAT: ("max_completion_tokens", "max_tokens"),
    "/v1/completions": ("max_tokens",),
    "/v1/messages": ("max_tokens",),
    "/v1/responses": ("max_output_tokens",),
}
WRONG_BOUNDS = [
    b'"5"',
    b"1.5",
    b"true",
    b"[]",
    b"{}",
    b"9223372036854775808",
    b"1" + b"0" * 400,
    b"1" * 5000,
    b"1e400",
    b"1e30",
]
WRONG_OPTIONS = [
    b'"x"',
    b"[]",
    b"1",
    b"true",
    b'{"include_usage":1}',
    b'{"include_usage":"true"}',
    b'{"a":1,"a":2}',
    b'{"include_usage":true,"include\\u005fusage":false}',
    b'{"a":' + b"[" * 70 + b"]" * 70 + b"}",
]


async def check_refused(client, target, body, param):
    answer = await client.ask("POST", target, body, AUTH)
    assert answer.status == 400, (target, body[:80])
    said = answer.json()
    assert answer.headers["content-type"] == "application/json"
    if target.startswith("/v1/messages"):
        assert (said["type"], said["error"]["type"]) == ("error", "invalid_request_error")
        assert param is None or param in said["error"]["message"]
    else:
        assert said["error"]["type"] == "invalid_request_error"
        assert said["error"]["code"] == "invalid_request"
        assert said["error"]["param"] == param
    assert said["error"]["message"]


@pytest.mark.parametrize("target", ROUTES)
async def test_d28_every_malformed_body_is_a_400_that_names_the_field(target):
    async with (
        ScriptedWorker([WHOLE]) as worker,
        running_gateway([worker.port]) as gateway,
        await RawClient.connect(gateway.port) as client,
    ):
        for name, (body, param) in MALFORMED.items():
            await check_refused(client, target, body.decode().encode("utf-16") if name == "utf-16" else body, param)
        if target not in ("/tokenize", "/detokenize"):
            await check_refused(client, target, b'{"messages":[]}', "model")
            await check_refused(client, target, b'{"model":null}', "model")
        for field in BOUNDS.get(target, ()):
            for value in WRONG_BOUNDS:
                await check_refused(client, target, b"{" + M + b',"%b":%b}' % (field.encode(), value), field)
        if target in (CHAT, "/v1/completions"):
            for value in WRONG_OPTIONS:
                await check_refused(
                    client, target, b"{" + M + b',"stream":true,"stream_options":%b}' % value, "stream_options"
                )
        settled = gateway.ledger.settlements
        assert {one.outcome.label for one in settled} == {"malformed"}
        assert {one.status for one in settled} == {400}
        assert worker.received == []
        assert budget_of(gateway).left == EdgeConfig().bodies_max_bytes


@pytest.mark.parametrize(
    "body",
    [
        b"\xef\xbb\xbf{" + M + b"}",
        b" \n{" + M + b"}\r\n\t ",
        b"{" + M + b',"max_tokens":16.0}',
        b"{" + M + b',"stream":null}',
        b"{" + M + b',"max_tokens":null}',
        b"{" + M + b',"x":1e400,"y":' + b"9" * 4000 + b"}",
        b"{" + M + b',"x":' + b"[" * 500 + b"]" * 500 + b"}",
        b"{" + M + b',"":{"a":1,"a":2}}',
        b"{" + M + b',"max_tokens":-5,"x":"\\ud83d\\ude00"}',
        '{"ключ":"значение",'.encode() + M + b"}",
        b"{" + M + b',"' + b"k" * 20_000 + b'" : 1}',
        b'{ "a\\"b" : 1 , ' + M + b"}",
    ],
)
async def test_d28_the_gateway_is_not_stricter_than_the_worker(body):
    async with (
        ScriptedWorker([WHOLE]) as worker,
        running_gateway([worker.port]) as gateway,
        await RawClient.connect(gateway.port) as client,
    ):
        assert (await client.ask("POST", CHAT, body, AUTH)).status == 200
    sent = json.loads(worker.received[0].body)
    assert sent.pop("cache_salt")
    assert sent == json.loads(body)


async def test_d28_fails_with_a_peek_by_json_loads(monkeypatch):
    def naive(body, usage_on_request, extra, model_required=True, bounds=()):
        fields = json.loads(body)
        return Peeked(
            fields["model"], bool(fields.get("stream")), fields.get("max_tokens"), None, None, False, (bytes(body),), {}
        )

    monkeypatch.setattr(corridor_module, "peek", naive)
    async with running_gateway() as gateway, await RawClient.connect(gateway.port) as client:
        statuses = {
            (await client.ask("POST", CHAT, body, AUTH)).status for body in (b"[]", b"{", b"{}", b'"x"', b"\xff")
        }
        assert statuses == {500}
        assert (await client.ask("POST", CHAT, b"{" + M + b"," + M + b',"max_tokens":NaN}', AUTH)).status != 400


# ------------------------------------------------------------------------------------------------- big, slow, lying


async def read_to_end(reader):
    try:
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionError:
        return b""


async def test_d28_a_body_without_length_is_refused_as_soon_as_the_limit_is_crossed():
    """The client goes on sending and must still be able to read the answer."""
    piece = chunk(b"x" * 65536)
    async with running_gateway(edge=EdgeConfig(body_max_bytes=1_000_000)) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(head(None, "transfer-encoding: chunked"))
        sent, answered = 0, None
        for _ in range(16_000):  # 1 GB
            try:
                writer.write(piece)
                await writer.drain()
            except ConnectionError:
                break
            sent += 65536
            if answered is None and gateway.ledger.settlements:
                answered = sent
        (settlement,) = await gateway.settled(1)
        answer = await read_to_end(reader)
        assert settlement.outcome.label == "too_large"
        assert answered is not None
        assert answered < 12_000_000  # what fits in the sockets' buffers
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_too_large"
        writer.close()


async def test_d28_fails_with_a_close_that_does_not_linger(monkeypatch):
    monkeypatch.setattr(Exchange, "_linger", lambda self: self._transport.abort())
    async with running_gateway(edge=EdgeConfig(body_max_bytes=100_000)) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(head(None, "transfer-encoding: chunked"))
        seen = b""
        try:
            for _ in range(200):
                writer.write(chunk(b"x" * 65536))
                await writer.drain()
            seen = await read_to_end(reader)
        except ConnectionError:
            pass
        assert b"413" not in seen
        writer.close()


async def test_d28_a_declared_size_is_refused_before_a_byte_is_read():
    async with (
        running_gateway(edge=SMALL) as gateway,
        await RawClient.connect(gateway.port) as one,
        await RawClient.connect(gateway.port) as two,
        await RawClient.connect(gateway.port) as three,
    ):
        one.writer.write(head(100_001))
        answer = await one.answer()
        assert (answer.status, answer.json()["error"]["code"]) == (413, "request_too_large")
        assert await one.closed() == b""
        two.writer.write(head(90_000_000, auth=False))
        assert (await two.answer()).status == 401
        three.writer.write(head(99_000_000, target="/v1/messages"))
        assert (await three.answer()).json()["error"]["type"] == "request_too_large"
        assert budget_of(gateway).left == SMALL.bodies_max_bytes


async def test_d28_bodies_of_all_requests_together_are_bounded():
    async with (
        ScriptedWorker([HANG]) as worker,
        running_gateway([worker.port], edge=EdgeConfig(body_max_bytes=100_000, bodies_max_bytes=150_000)) as gateway,
        await RawClient.connect(gateway.port) as one,
        await RawClient.connect(gateway.port) as two,
        await RawClient.connect(gateway.port) as three,
    ):
        one.writer.write(head(100_000) + b"{")
        await until(lambda: budget_of(gateway).left == 50_000)
        answer = await two.ask("POST", CHAT, b"x" * 60_000, AUTH)
        assert (answer.status, answer.json()["error"]["code"]) == (503, "server_overloaded")
        assert "retry-after" in answer.headers
        three.writer.write(head(100_000))
        assert (await three.answer()).status == 503
        one.writer.transport.abort()
        settled = await gateway.settled(3)
        assert sorted(s.outcome.label for s in settled) == ["bytes_exhausted", "bytes_exhausted", "client_gone_early"]
        await until(lambda: all(c._budget.left == 150_000 for c in gateway.connections))


async def test_d28_a_length_that_is_too_short_cuts_the_body_and_the_rest_is_no_request():
    body = json.dumps(chat(model=MODEL)).encode()
    async with ScriptedWorker([WHOLE]) as worker, running_gateway([worker.port]) as gateway:
        async with await RawClient.connect(gateway.port) as client:
            client.writer.write(head(len(body) - 5) + body)
            assert (await client.answer()).status == 400
            await client.closed()
        async with await RawClient.connect(gateway.port) as client:
            client.writer.write(head(len(body)) + body + b"\n\n}")
            assert (await client.answer()).status == 200
        assert len(worker.received) == 1


@pytest.mark.parametrize("start", [b"", b'{"model"', b"{" + b" " * 30_000])
@pytest.mark.parametrize("length", [40_000, 99_999])
async def test_d28_a_body_that_does_not_come_is_a_408(start, length):
    async with running_gateway(edge=SMALL) as gateway, await RawClient.connect(gateway.port) as client:
        client.writer.write(head(length) + start[:length])
        answer = await client.answer()
        assert (answer.status, answer.json()["error"]["code"]) == (408, "request_timeout")
        (settlement,) = await gateway.settled(1)
        assert settlement.outcome.label == "body_timeout"
        assert settlement.outcome.fault.value == "client"
        assert budget_of(gateway).left == SMALL.bodies_max_bytes


async def test_d28_one_byte_at_a_time_does_not_hold_a_connection_for_ever():
    async with running_gateway(edge=SMALL) as gateway, await RawClient.connect(gateway.port) as client:
        client.writer.write(head(None, "transfer-encoding: chunked"))
        for _ in range(100):
            client.writer.write(chunk(b" "))
            await asyncio.sleep(0.01)
            if gateway.ledger.settlements:
                break
        assert (await client.answer()).status == 408


@pytest.mark.parametrize("announce", [head(90_000), head(None, "transfer-encoding: chunked"), head(5_000)])
async def test_d28_a_client_that_leaves_in_its_body_is_settled(announce):
    async with running_gateway(edge=SMALL) as gateway:
        budget = None
        async with await RawClient.connect(gateway.port) as client:
            client.writer.write(announce + (chunk(b"{" * 900) if b"chunked" in announce else b"{" * 900))
            await until(lambda: gateway.connections and budget_of(gateway).left < SMALL.bodies_max_bytes)
            budget = budget_of(gateway)
        (settlement,) = await gateway.settled(1)
        assert settlement.outcome.label == "client_gone_early"
        assert budget.left == SMALL.bodies_max_bytes


async def test_d28_the_budget_is_whole_after_every_way_out():
    big = json.dumps(chat(model=MODEL, x="y" * 60_000)).encode()
    unknown = json.dumps(chat(model="no", x="y" * 60_000)).encode()
    scripts = {
        "ok": [WHOLE],
        "stream": [b"HTTP/1.1 200 OK\r\n\r\n{}", "close"],
        "400": [reply({"error": {"message": "x"}}, "400 X")],
        "503": [reply({}, "503 X")],
        "502": [reply(b"x", "500 X")],
        "reset": ["reset"],
        "garbage": [b"nonsense\r\n\r\n"],
    }
    async with ScriptedWorker([WHOLE]) as worker, running_gateway([worker.port], edge=SMALL) as gateway:
        keeper = await RawClient.connect(gateway.port)
        await keeper.ask("GET", "/healthz")
        for script in scripts.values():
            worker.script = script
            async with await RawClient.connect(gateway.port) as client:
                await client.ask("POST", CHAT, big, AUTH)
            await until(lambda: budget_of(gateway).left == SMALL.bodies_max_bytes)
        for body, lines in ((unknown, AUTH), (big, ()), (big, ("content-encoding: gzip", *AUTH)), (b"[" + big, AUTH)):
            async with await RawClient.connect(gateway.port) as client:
                assert (await client.ask("POST", CHAT, body, lines)).status >= 400
            assert budget_of(gateway).left == SMALL.bodies_max_bytes
        worker.script = [HANG]
        async with await RawClient.connect(gateway.port) as client:
            client.send("POST", CHAT, big, AUTH)
            await until(lambda: gateway.driver.travelling == 1)
            assert budget_of(gateway).left < SMALL.bodies_max_bytes
        await until(lambda: budget_of(gateway).left == SMALL.bodies_max_bytes)
        for worker_id in list(gateway.pool._lanes):
            gateway.driver.submit(WorkerHealthChanged(worker_id, False))
        async with await RawClient.connect(gateway.port) as client:
            assert (await client.ask("POST", CHAT, big, AUTH)).status == 503
        assert budget_of(gateway).left == SMALL.bodies_max_bytes
        gateway.check_nothing_is_held()
        keeper.writer.close()


async def test_d28_a_body_is_let_go_when_its_answer_begins_and_not_kept_by_an_idle_connection():
    big = json.dumps(chat(model=MODEL, stream=True, x="y" * 60_000)).encode()
    begun = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    first = chunk(b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n')
    steps = [begun + first, 0.3, chunk(b"data: [DONE]\n\n"), LAST]
    async with (
        ScriptedWorker(steps) as worker,
        running_gateway([worker.port], edge=SMALL) as gateway,
        await RawClient.connect(gateway.port) as client,
    ):
        client.send("POST", CHAT, big, AUTH)
        await client.head()
        assert budget_of(gateway).left == SMALL.bodies_max_bytes
        (journey,) = gateway.driver.passengers()
        assert journey._out is None
        await client.rest()
        (connection,) = gateway.connections
        assert len(connection.cycle.body) == 0


async def test_d28_a_compressed_body_is_refused():
    async with running_gateway() as gateway, await RawClient.connect(gateway.port) as client:
        answer = await client.ask("POST", CHAT, b"\x1f\x8b", (*AUTH, "content-encoding: gzip"))
        assert answer.status == 400
        assert "Compressed" in answer.json()["error"]["message"]
        assert (await client.ask("POST", CHAT, b"{}", (*AUTH, "content-encoding: Identity"))).json()["error"][
            "param"
        ] == "model"


async def test_d28_stored_responses_obey_the_same_limits():
    async with running_gateway(edge=SMALL) as gateway, await RawClient.connect(gateway.port) as client:
        client.writer.write(head(200_000, target="/v1/responses/resp_1/cancel"))
        assert (await client.answer()).status == 413


# ---------------------------------------------------------------------------- large bodies wait for their turn


LARGE = json.dumps(chat(model=MODEL, messages=[{"role": "user", "content": "x" * 700_000}])).encode()


@pytest.fixture
def in_line(monkeypatch):
    """Bodies that are complete and wait for their turn, which does not come by itself."""
    steps, enter = [], Turnstile.enter

    def hold(self, size, step):
        if size > PIECE_BYTES:
            steps.append(step)
        else:
            enter(self, size, step)

    monkeypatch.setattr(Turnstile, "enter", hold)
    return steps


async def test_d28_a_large_body_and_one_behind_it_are_answered_in_order():
    async with ScriptedWorker([WHOLE]) as worker, running_gateway([worker.port]) as gateway:
        async with await RawClient.connect(gateway.port) as client:
            client.send("POST", CHAT, LARGE, AUTH)
            client.send("POST", CHAT, {"model": "nope"}, AUTH)
            client.send("POST", CHAT, LARGE, AUTH)
            assert [(await client.answer()).status for _ in range(3)] == [200, 404, 200]
        sizes = [len(request.body) for request in worker.received]
        assert sizes[0] == sizes[1] > 700_000
        gateway.check_nothing_is_held()


async def test_d28_a_client_that_leaves_while_its_body_waits_for_its_turn_is_settled_once(in_line):
    async with ScriptedWorker([WHOLE]) as worker, running_gateway([worker.port]) as gateway:
        client = await RawClient.connect(gateway.port)
        client.send("POST", CHAT, LARGE, AUTH)
        await until(lambda: in_line)
        budget = budget_of(gateway)
        assert budget.taken > 700_000
        client.writer.transport.abort()
        await gateway.settled(1)
        in_line.pop()()
        assert gateway.ledger.outcomes == ["client_gone_early"]
        assert (budget.taken, len(worker.received)) == (0, 0)


async def test_d28_a_body_that_waits_for_its_turn_keeps_the_house_open_until_the_end_of_its_grace(in_line):
    async with ScriptedWorker([WHOLE]) as worker, running_gateway([worker.port]) as gateway:
        async with await RawClient.connect(gateway.port) as client:
            client.send("POST", CHAT, LARGE, AUTH)
            await until(lambda: in_line)
            (connection,) = gateway.connections
            assert connection.arriving
            connection.cut_arriving()
            assert (await client.answer()).status == 503
            in_line.pop()()
            assert not connection.arriving
        assert gateway.ledger.outcomes == ["draining"]


async def test_d28_a_connection_that_is_closed_in_the_middle_of_a_flood_is_not_read_on(monkeypatch):
    steps = []
    monkeypatch.setattr(Turnstile, "enter", lambda self, size, step: steps.append(step))
    async with running_gateway() as gateway, await RawClient.connect(gateway.port) as client:
        client.writer.write(head(9_000_000) + b"x" * 2_000_000)
        await until(lambda: steps)
        (connection,) = gateway.connections
        connection.transport.abort()
        steps.pop()()
        await gateway.settled(1)
        assert gateway.ledger.outcomes == ["client_gone_early"]
        assert not steps
