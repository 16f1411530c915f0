"""D04 and the worker's side of D25: real statuses before the first byte, and no framing or private header crosses."""

import json

import pytest

from service.gateway.responses import ApiDialect
from service.runtime import relay as relay_module
from service.runtime.relay import Relay
from tests.support.gateway import KEY, MODEL, running_gateway
from tests.support.raw_client import RawClient
from tests.support.written_worker import (
    BARE_STREAM,
    LAST,
    WHOLE,
    ScriptedWorker,
    chunk,
    delta,
    event,
    reply,
    stream_head,
)

pytestmark = pytest.mark.integration
AUTH = (f"authorization: Bearer {KEY}",)
OPENAI_PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/responses"]
PATHS = [*OPENAI_PATHS, "/v1/messages"]
HTML = "<html><body><h1>502 Bad Gateway</h1></body></html>"


def body_for(path, **fields):
    return {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "input": "x", "prompt": "x",
            "max_tokens": 5, **fields}  # fmt: skip


async def through(steps, path, **fields):
    async with ScriptedWorker(steps) as worker, running_gateway([worker.port]) as gateway:
        async with await RawClient.connect(gateway.port) as client:
            answer = await client.ask("POST", path, body_for(path, **fields), AUTH)
        (settlement,) = await gateway.settled(1)
        gateway.check_nothing_is_held()
        return answer, settlement


def check_shape(answer, path):
    """An error of the API's own shape, and no event stream."""
    assert answer.headers["content-type"] == "application/json"
    assert "transfer-encoding" not in answer.headers
    said = answer.json()
    if path.startswith("/v1/messages"):
        assert set(said) == {"type", "error"}
        assert said["type"] == "error"
        assert set(said["error"]) >= {"type", "message"}
    else:
        assert set(said) == {"error"}
        assert set(said["error"]) >= {"message", "type", "param", "code"}
    return said["error"]


OWN = {"error": {"message": "too long", "type": "BadRequestError", "param": "input_tokens", "code": 400}}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", PATHS)
async def test_d04_the_workers_own_refusal_is_untouched(path, stream):
    own = OWN if path != "/v1/messages" else {"type": "error", "error": {"type": "NotFoundError", "message": "no"}}
    raw = json.dumps(own, indent=2).encode()
    for status in (400, 404, 413, 422):
        answer, settlement = await through([reply(raw, f"{status} X")], path, stream=stream)
        assert (answer.status, answer.body) == (status, raw)
        check_shape(answer, path)
        assert settlement.outcome.label == "worker_refused"
        assert settlement.status == status


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("line", "status"), [("429 Too Many Requests", 429), ("503 Service Unavailable", 503)])
async def test_d04_a_busy_worker_keeps_its_status_and_retry_after(path, stream, line, status):
    answer, settlement = await through([reply(OWN, line, ["retry-after: 7"])], path, stream=stream)
    assert answer.status == status
    assert 5 <= int(answer.headers["retry-after"]) <= 12  # the worker's 7 s, spread by the core
    assert 5000 <= int(answer.headers["retry-after-ms"]) <= 12_000
    check_shape(answer, path)
    assert settlement.outcome.label == "worker_busy"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "steps",
    [
        [reply(HTML.encode(), "502 Bad Gateway", kind="text/html")],
        [reply(HTML.encode(), "500 X", kind="text/html")],
        [reply(b'{"error":"Unauthorized"}', "401 Unauthorized", ["www-authenticate: Bearer"])],
        [reply(b'{"error":"no"}', "403 Forbidden")],
        [reply(b"", "302 Found", ["location: http://elsewhere/"])],
        [reply(b"", "204 No Content")],
        [b"not http at all\r\n\r\n"],
        ["reset"],
    ],
    ids=["502 html", "500 html", "401", "403", "302", "204", "garbage", "reset"],
)
async def test_d04_what_is_our_fault_is_a_502_of_ours(steps, path, stream):
    answer, settlement = await through(steps, path, stream=stream)
    assert answer.status == 502
    error = check_shape(answer, path)
    assert "html" not in error["message"]
    assert "www-authenticate" not in answer.headers
    assert "location" not in answer.headers
    assert settlement.outcome.label == "worker_failed"
    assert settlement.outcome.fault.value == "us"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b'{"detail":"Not Found"}', "Not Found"),
        (b'{"message":"who?"}', "who?"),
        (b'{"error":"plain"}', "plain"),
        (HTML.encode(), "The worker refused the request."),
        (b"", "The worker refused the request."),
        (b"\xff\xfe", "The worker refused the request."),
        (b"[1]", "The worker refused the request."),
    ],
)
async def test_d04_a_refusal_of_another_shape_is_wrapped(raw, words, path, stream):
    answer, _ = await through([reply(raw, "404 Not Found", kind="text/html")], path, stream=stream)
    assert answer.status == 404
    assert check_shape(answer, path)["message"] == words


async def test_d04_fails_with_a_relay_that_commits_at_the_workers_head(monkeypatch):
    on_head = Relay.on_head

    def commit_at_once(self, status, headers):
        on_head(self, status, headers)
        self._error = None
        self._start(b"")
        self._live = True

    monkeypatch.setattr(Relay, "on_head", commit_at_once)
    answer, _ = await through([reply(HTML.encode(), "502 Bad Gateway", kind="text/html")], PATHS[0], stream=True)
    assert answer.status == 200


async def test_d04_fails_with_a_dialect_that_passes_any_error_body(monkeypatch):
    monkeypatch.setattr(
        ApiDialect, "adopt_error", lambda self, status, kind, body: (b"content-type: %b\r\n" % kind, body)
    )
    answer, _ = await through([reply(HTML.encode(), "404 Not Found", kind="text/html")], PATHS[0], stream=True)
    with pytest.raises((AssertionError, ValueError)):
        check_shape(answer, PATHS[0])


# ------------------------------------------------------------------------------------------ D25, worker to client

PRIVATE = [
    "connection: keep-alive, x-secret", "Connection: X-Other", "x-secret: s", "x-other: o", "keep-alive: timeout=5",
    "proxy-authenticate: Basic", "trailer: x-t", "te: trailers", "upgrade: h2c", "server: uvicorn", "date: now",
    "set-cookie: a=b", "set-cookie: c=d", "x-request-id: theirs", "alt-svc: h3=\":9\"", "x-sluice-tier: gold",
    "access-control-allow-origin: *", "proxy-connection: keep-alive",
]  # fmt: skip
KEPT = ["x-kept: 1", "x-kept: 2", "x-empty:", "openai-processing-ms: 12"]


def check_headers(raw_headers):
    names = [name for name, _ in raw_headers]
    for barred in ("x-secret", "x-other", "keep-alive", "proxy-authenticate", "trailer", "te", "upgrade", "server",
                   "date", "set-cookie", "alt-svc", "access-control-allow-origin", "proxy-connection"):  # fmt: skip
        assert barred not in names, barred
    assert [value for name, value in raw_headers if name == "x-kept"] == ["1", "2"]
    assert ("openai-processing-ms", "12") in raw_headers
    for once in ("content-length", "transfer-encoding", "content-type", "x-request-id", "x-sluice-tier"):
        assert names.count(once) <= 1, once
    assert dict(raw_headers)["x-sluice-tier"] == "priority"


async def headers_of(steps, stream):
    async with (
        ScriptedWorker(steps) as worker,
        running_gateway([worker.port]) as gateway,
        await RawClient.connect(gateway.port) as client,
    ):
        client.send("POST", PATHS[0], body_for(PATHS[0], stream=stream), AUTH)
        return await client.head()


@pytest.mark.parametrize("stream", [True, False])
async def test_d25_nothing_of_the_workers_connection_reaches_the_client(stream):
    steps = [stream_head([*PRIVATE, *KEPT]), *BARE_STREAM] if stream else [reply({"a": 1}, headers=[*PRIVATE, *KEPT])]
    status, headers = await headers_of(steps, stream)
    assert status == 200
    check_headers(headers)


async def test_d25_fails_with_a_relay_that_copies_headers(monkeypatch):
    monkeypatch.setattr(relay_module, "_HOP_BY_HOP", frozenset())
    monkeypatch.setattr(relay_module, "_OURS", frozenset())
    _, headers = await headers_of([stream_head([*PRIVATE, *KEPT]), *BARE_STREAM], True)
    with pytest.raises(AssertionError):
        check_headers(headers)


async def test_d25_a_whole_answer_sent_in_chunks_gets_a_length():
    steps = [stream_head(kind="application/json"), chunk(b'{"a":'), 0.01, chunk(b"1}"), LAST]
    answer, _ = await through(steps, PATHS[0])
    assert answer.headers["content-length"] == "7"
    assert answer.body == b'{"a":1}'


async def test_d25_a_large_whole_answer_keeps_its_bytes():
    big = json.dumps({"x": "y" * 500_000}).encode()
    answer, settlement = await through([reply(big)], PATHS[0])
    assert answer.body == big
    answer, settlement = await through(
        [b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n" + big, "close"], PATHS[0]
    )
    assert answer.body == big
    assert settlement.outcome.label == "completed"


async def test_d25_an_encoded_answer_keeps_its_encoding():
    answer, _ = await through([reply(b"\x1f\x8b\x08junk", headers=["content-encoding: gzip"])], PATHS[0])
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.body == b"\x1f\x8b\x08junk"


SURPLUS = [
    WHOLE + b'{"stale": "content-length"}',
    WHOLE + reply({"stolen": True}),
    WHOLE + b"HTTP/1.1 200 OK\r\ncontent-le",
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}" + b"x" * 5000,
]


@pytest.mark.parametrize("first", SURPLUS)
async def test_d25_surplus_of_one_answer_is_never_the_next_ones(first):
    """Two requests wait for a worker that takes one at a time over one kept connection."""
    scripts = [[first], [0.01, reply({"mine": True})]]
    async with (
        ScriptedWorker(lambda _: scripts.pop(0)) as worker,
        running_gateway([worker.port]) as gateway,
        await RawClient.connect(gateway.port) as client,
    ):
        one = await client.ask("POST", PATHS[0], body_for(PATHS[0]), AUTH)
        two = await client.ask("POST", PATHS[0], body_for(PATHS[0]), AUTH)
    assert one.status == 200
    assert two.json() == {"mine": True}
    assert worker.connections == 2


async def test_d25_both_framings_from_a_worker_are_its_fault():
    both = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n" + chunk(b"{}") + LAST
    answer, settlement = await through([both], PATHS[0])
    assert answer.status == 502
    assert settlement.outcome.label == "worker_failed"


async def test_d25_a_worker_that_answers_more_than_it_announced_ends_at_its_length():
    data = event(delta("a"))
    answer, _ = await through(
        [stream_head(), chunk(data), chunk(event("[DONE]")), LAST + b"junk"], PATHS[0], stream=True
    )
    assert answer.body == data + event("[DONE]")
