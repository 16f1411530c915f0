"""D25 from the client's side, D27, and odd but legal HTTP: what crosses, what is guarded, what is answered."""

import asyncio
import json

import pytest

from service.gateway import app as app_module
from service.gateway import headers as headers_module
from service.gateway.app import Guard
from service.gateway.connection import ClientConnection
from service.gateway.cors import CorsPolicy
from service.gateway.edge import EdgeConfig
from service.gateway.routes import ROUTES
from service.gateway.server import EdgeProtocol
from tests.support.gateway import KEY, MODEL, SUSPENDED_KEY, running_gateway
from tests.support.raw_client import RawClient, chat
from tests.support.until import until
from tests.support.written_worker import (
    BARE_STREAM,
    DONE,
    HANG,
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
CHAT = "/v1/chat/completions"
AUTH = (f"authorization: Bearer {KEY}",)
BODY = json.dumps(chat(model=MODEL)).encode()
SIZE = len(BODY)


def head(method="POST", target=CHAT, *lines, auth=True, version="1.1", length=SIZE):
    own = [f"{method} {target} HTTP/{version}", "host: test", *(AUTH if auth else ())]
    own += [f"content-length: {length}"] if length is not None else []
    return "\r\n".join([*own, *lines, "", ""]).encode()


class Pair:
    """A worker and a gateway in front of it."""

    def __init__(self, script=(WHOLE,), **options):
        self.worker = ScriptedWorker(script)
        self.options = options

    async def __aenter__(self):
        await self.worker.__aenter__()
        self._running = running_gateway([self.worker.port], **self.options)
        self.gateway = await self._running.__aenter__()
        return self

    async def __aexit__(self, *_):
        await self._running.__aexit__(None, None, None)
        await self.worker.__aexit__(None, None, None)

    async def client(self):
        return await RawClient.connect(self.gateway.port)

    async def send(self, *pieces):
        async with await self.client() as client:
            for piece in pieces:
                client.writer.write(piece)
                await asyncio.sleep(0.01)
            return await client.answer()


# ------------------------------------------------------------------------------------------ D25, client to worker

PRIVATE = [
    "Connection: keep-alive, x-secret", "connection: traceparent", "x-secret: s", "TE: trailers", "Trailer: x-t",
    "Proxy-Authorization: Basic abc", "Cookie: session=1", "x-api-key: " + KEY, "Keep-Alive: 5", "x-vllm-priority: -9",
    "x_vllm_priority: -9", "X-Data-Parallel-Rank: 3", "x-forwarded-for: 1.1.1.1", "forwarded: for=1.1.1.1",
    "x-sluice-tier: gold", "traceparent: 00-aa-bb-01", "accept: text/event-stream", "user-agent: x", "range: bytes=0-",
    "accept-encoding: gzip", "origin: http://page", "x-request-id: mine", "tracestate: a=b",
]  # fmt: skip


def check_sent(request, gateway_port, worker_port):
    names = [name for name, _ in request.headers]
    assert sorted(names) == sorted(set(names))
    allowed = {"host", "content-type", "x-request-id", "content-length", "accept", "tracestate"}
    assert set(names) <= allowed, set(names) - allowed
    assert request.named["host"] == f"127.0.0.1:{worker_port}"
    assert request.named["x-request-id"] != "mine"
    assert int(request.named["content-length"]) == len(request.body)
    assert KEY not in repr(request)


async def test_d25_only_known_headers_reach_the_worker_and_the_length_is_computed_anew():
    async with Pair() as pair:
        chunks = b"".join(chunk(BODY[i : i + 10]) for i in range(0, len(BODY), 10)) + b"0\r\nx-t: trailer\r\n\r\n"
        answer = await pair.send(head("POST", CHAT, *PRIVATE, "transfer-encoding: chunked", length=None), chunks)
        assert answer.status == 200
        assert answer.headers["x-request-id"] == "mine"
        (request,) = pair.worker.received
        check_sent(request, pair.gateway.port, pair.worker.port)
        assert request.body.endswith(BODY[1:])


async def test_d25_fails_with_a_gateway_that_copies_headers(monkeypatch):
    copied = tuple(line.partition(":")[0].lower().encode() for line in PRIVATE)
    monkeypatch.setattr(headers_module, "_PASSED", copied)
    monkeypatch.setattr(headers_module, "read_connection_names", lambda headers: frozenset())
    async with Pair() as pair:
        await pair.send(head("POST", CHAT, *PRIVATE), BODY)
        with pytest.raises(AssertionError):
            check_sent(pair.worker.received[0], pair.gateway.port, pair.worker.port)


# ------------------------------------------------------------------------------------------ odd, but legal HTTP


@pytest.mark.parametrize("stream", [False, True])
async def test_http_1_0_gets_a_body_that_ends_with_the_connection(stream):
    steps = [stream_head(), *BARE_STREAM] if stream else [WHOLE]
    body = json.dumps(chat(model=MODEL, stream=stream)).encode()
    async with Pair(steps) as pair, await pair.client() as client:
        client.writer.write(head(version="1.0", length=len(body)) + body)
        status, headers = await client.head()
        rest = await client.closed()
    named = dict(headers)
    assert status == 200
    assert "transfer-encoding" not in named
    assert named["connection"] == "close"
    assert rest.endswith(DONE) if stream else len(rest) == int(named["content-length"])


async def test_pipelined_requests_are_answered_in_order():
    names = iter("abc")
    async with Pair(lambda _: [0.05, reply({"is": next(names)})]) as pair, await pair.client() as client:
        ordinary = head("GET", "/v1/models", length=0)
        client.writer.write((head() + BODY) * 2 + ordinary + head() + BODY[:20])
        await asyncio.sleep(0.02)
        client.writer.write(BODY[20:])
        said = [(await client.answer()).json() for _ in range(4)]
    assert [one.get("is") for one in said] == ["a", "b", None, "c"]
    assert said[2]["object"] == "list"


@pytest.mark.parametrize("politely", [False, True])
async def test_a_client_that_pipelined_and_left_is_noticed_for_every_request(politely):
    async with Pair([HANG]) as pair:
        async with await pair.client() as client:
            client.writer.write(head() + BODY + head() + BODY + head(length=50_000) + BODY[:30])
            await until(lambda: len(pair.worker.received) == 1)
            if politely:  # a FIN, and not a word of it while nobody reads
                client.writer.close()
            else:
                client.writer.transport.abort()
        settled = await pair.gateway.settled(3)
        assert sorted(one.outcome.label for one in settled) == ["client_gone", "client_gone_early", "client_gone_early"]
        pair.gateway.check_nothing_is_held()
        await until(lambda: pair.worker.open == 0)


async def test_a_leaver_was_missed_by_telling_the_newest_request_only(monkeypatch):
    def naive(self, exc):
        super(ClientConnection, self).connection_lost(exc)
        self.cycle.client_gone()

    monkeypatch.setattr(ClientConnection, "connection_lost", naive)
    async with Pair([HANG]) as pair:
        async with await pair.client() as client:
            client.writer.write(head() + BODY + head() + BODY)
            await until(lambda: len(pair.worker.received) == 1)
            client.writer.transport.abort()
        await until(lambda: not pair.gateway.connections)
        await asyncio.sleep(0.1)
        assert pair.worker.open == 1
        assert pair.gateway.ledger.settlements == []
        for passenger in pair.gateway.driver.passengers():
            passenger.on_client_gone()


async def test_pipelined_requests_behind_a_slow_one_are_not_late():
    edge = EdgeConfig(body_timeout_s=0.1, head_timeout_s=0.1)
    async with Pair([0.5, WHOLE], edge=edge) as pair, await pair.client() as client:
        client.writer.write(head() + BODY + head() + BODY[:10])
        first = await client.answer()
        assert (first.status, first.json()["id"]) == (200, "c1")
        client.writer.write(BODY[10:])
        assert (await client.answer()).status == 200


async def test_stray_line_ends_after_a_body_do_not_end_its_answer():
    async with Pair([0.4, WHOLE], edge=EdgeConfig(head_timeout_s=0.1)) as pair, await pair.client() as client:
        client.writer.write(head() + BODY)
        await asyncio.sleep(0.05)
        client.writer.write(b"\r\n")
        assert (await client.answer()).status == 200


async def test_rubbish_behind_a_request_does_not_end_its_answer():
    async with Pair([0.2, WHOLE]) as pair, await pair.client() as client:
        client.writer.write(head() + BODY + b"\x00\x01 rubbish\r\n\r\n")
        answer = await client.answer()
        assert answer.status == 200
        assert await client.closed() == b""


@pytest.mark.parametrize("rest", [b"", BODY[:30], BODY])
async def test_expect_100_continue_is_granted_to_who_may_send(rest):
    async with Pair() as pair, await pair.client() as client:
        client.writer.write(head("POST", CHAT, "Expect: 100-Continue") + rest)
        assert await client.line() == b"HTTP/1.1 100 Continue"
        assert await client.line() == b""
        client.writer.write(BODY[len(rest) :])
        assert (await client.answer()).status == 200


async def test_expect_100_continue_is_refused_to_others():
    async with Pair(edge=EdgeConfig(body_max_bytes=1000)) as pair:
        for lines, auth, length, status in (((), False, 10, 401), ((), True, 5000, 413)):
            async with await pair.client() as client:
                client.writer.write(head("POST", CHAT, "expect: 100-continue", *lines, auth=auth, length=length))
                answer = await client.answer()
                assert answer.status == status
                assert answer.headers["connection"] == "close"


async def test_expect_100_continue_waits_for_its_turn():
    async with Pair([0.1, WHOLE]) as pair, await pair.client() as client:
        client.writer.write(head() + BODY + head("POST", CHAT, "expect: 100-continue"))
        assert (await client.answer()).status == 200
        assert await client.line() == b"HTTP/1.1 100 Continue"
        await client.line()
        client.writer.write(BODY)
        assert (await client.answer()).status == 200


async def test_an_h2c_wish_is_ignored_and_the_connection_lives_on():
    """Java's client sends this with its first request; LangChain4j and Spring AI are built on it."""
    wish = (
        "Connection: Upgrade, HTTP2-Settings",
        "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
        "Upgrade: h2c",
    )
    async with Pair() as pair, await pair.client() as client:
        for body in (BODY, BODY, json.dumps(chat(model=MODEL, x="y" * 200_000)).encode()):
            client.writer.write(head("POST", CHAT, *wish, length=len(body)) + body[:50])
            await asyncio.sleep(0.01)
            client.writer.write(body[50:])
            assert (await client.answer()).status == 200
        assert [len(one.body) for one in pair.worker.received][:2] == [len(pair.worker.received[0].body)] * 2
        client.writer.write(head("GET", "/healthz", *wish, length=None))
        assert (await client.answer()).status == 200
        chunked = chunk(BODY) + LAST
        client.writer.write(head("POST", CHAT, *wish, "transfer-encoding: chunked", length=None) + chunked)
        assert (await client.answer()).status == 200


async def test_an_h2c_wish_ate_the_body_when_left_to_the_parser(monkeypatch):
    monkeypatch.setattr(EdgeProtocol, "_ignore_upgrade", lambda self, rest: None)
    async with Pair() as pair, await pair.client() as client:
        client.writer.write(head("POST", CHAT, "Connection: Upgrade", "Upgrade: h2c") + BODY)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await client.answer()


@pytest.mark.parametrize(
    "target", [f"http://test{CHAT}", f"HTTPS://u:p@test:99{CHAT}?a=b", f"{CHAT}?beta=true&x", f"{CHAT}?"]
)
async def test_other_forms_of_a_target_are_served(target):
    async with Pair() as pair:
        assert (await pair.send(head("POST", target), BODY)).status == 200
        assert pair.worker.received[0].target == f"POST {CHAT} HTTP/1.1"


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
        (b"GET / HTTP/1.1\r\nbroken\r\n\r\n", 400),
        (b"CONNECT a:443 HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        (b"GET /" + b"a" * 70_000, 431),
        (b"GET / HTTP/1.1\r\n" + b"x-a: " + b"b" * 70_000, 431),
        (head("POST", CHAT, "content-length: 4"), 400),
        (head("POST", CHAT, "transfer-encoding: chunked"), 400),
        (head("POST", CHAT, length="-1"), 400),
        (head("POST", CHAT, length="99999999999999999999999999"), 400),
        (head("POST", CHAT, length=2**64 - 1), 413),
        (head("POST", CHAT, "transfer-encoding: chunked", length=None) + b"zz\r\n", 400),
        (head("OPTIONS", "*", length=0), 404),
        (head("OPTIONS", "*", auth=False, length=0), 401),
    ],
)
async def test_what_is_not_http_hears_so_and_is_closed(raw, status):
    async with Pair() as pair, await pair.client() as client:
        client.writer.write(raw)
        answer = await client.answer()
        assert answer.status == status
        assert answer.json()["error"]["code"]
        if status in (400, 431, 413):
            assert await client.closed() == b""
        assert pair.worker.received == []


# ---------------------------------------------------------------------------------------------------------- D27

METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "PROPFIND"]
STORED = ["/v1/responses/resp_1", "/v1/responses/resp_1/cancel"]
TWISTED = [
    "/", "//v1/chat/completions", "//v1/models", "/v1//models", "/v1/../v1/models", "/./v1/models", "/v1%2fmodels",
    "/v1/%6dodels", "/v1/models/", "/v1/chat/completions/", "/v1/chat/completions%20", "/healthz/", "/healthz/..",
    "/%68ealthz", "/healthz/../v1/models", "//healthz", "/v1/models?x=/healthz", "/healthz;/v1/models", "/healthz%00",
    "/readyz/x", "/metrics", "/admin/v1/state", "/docs", "/openapi.json", "/redoc", "/ping", "/health", "/load",
    "/v1/models#/healthz", "/v1/models/x/../../../healthz", "http://h/v1/models", "/V1/Models", "/HEALTHZ",
]  # fmt: skip


def list_paths(rest):
    return [
        *(route.path.replace("{model_id:path}", MODEL) for route in rest.routes),
        *(p.decode() for p in ROUTES),
        *STORED,
    ]


def odd_places(key):
    """Requests that carry the key where it does not count."""
    for line in (
        f"authorization: {key}",
        f"authorization: Basic {key}",
        f"x-key: {key}",
        f"api-key: {key}",
        f"cookie: key={key}",
        f"proxy-authorization: Bearer {key}",
        f"x_api_key: {key}",
        f"authorization: Token {key}",
        f"x-goog-api-key: {key}",
        "authorization: Bearer",
        "authorization:",
        "x-api-key:",
        f"authorization: Bearer {key}x",
        f"authorization: Bearer{key}",
        f"x-forwarded-authorization: Bearer {key}",
    ):
        yield "", [line]
    yield f"?key={key}&api_key={key}&authorization=Bearer%20{key}", []


async def statuses(pair, targets, methods, *lines):
    found = {}
    for method in methods:
        for target in targets:
            async with await pair.client() as client:
                client.writer.write(head(method, target, *lines, "connection: close", auth=False, length=0))
                status, headers = await client.head()
                found[method, target] = status, dict(headers), await client.closed()
    return found


def check_guarded(found):
    for (method, target), (status, headers, body) in found.items():
        open_to_all = target in ("/healthz", "/readyz")
        assert status == 401 or (open_to_all and status in (200, 404)), (method, target, status)
        assert "location" not in headers
        if status == 401:
            assert headers["www-authenticate"] == "Bearer"
            assert method == "HEAD" or b"invalid_api_key" in body or b"authentication_error" in body
            assert KEY.encode() not in body


async def test_d27_every_route_and_method_needs_a_key(monkeypatch):
    apps = []
    monkeypatch.setattr(Guard, "__init__", _spy(Guard.__init__, apps))
    async with Pair() as pair:
        (rest,) = apps

        @rest.get("/v1/brand-new")
        async def brand_new():
            return {"secret": True}

        paths = list_paths(rest)
        assert len(paths) >= 14
        check_guarded(await statuses(pair, [*paths, *TWISTED], METHODS))
        with_key = await statuses(pair, ["/v1/brand-new"], ["GET"], *AUTH)
        assert with_key["GET", "/v1/brand-new"][0] == 200
        assert pair.worker.received == []


def _spy(init, apps):
    def spying(self, rest, directory, cors):
        apps.append(rest)
        init(self, rest, directory, cors)

    return spying


async def test_d27_a_key_in_an_odd_place_opens_nothing():
    async with Pair() as pair:
        for query, lines in odd_places(KEY):
            targets = [target + query for target in (CHAT, "/v1/models", "/v1/messages", *STORED)]
            check_guarded(await statuses(pair, targets, ["GET", "POST"], *lines))
        assert pair.worker.received == []
        assert all(one.outcome.label == "unauthenticated" for one in pair.gateway.ledger.settlements)


async def test_d27_fails_with_a_guard_of_v1_only(monkeypatch):
    call = Guard.__call__

    async def naive(self, scope, receive, send):
        if scope["raw_path"].startswith(b"/v1/"):
            await call(self, scope, receive, send)
        else:
            await self._rest(scope, receive, send)

    monkeypatch.setattr(Guard, "__call__", naive)
    async with Pair() as pair:
        found = await statuses(pair, TWISTED, ["GET"])
        with pytest.raises(AssertionError):
            check_guarded(found)


async def test_d27_with_a_key_nothing_redirects_and_nothing_odd_is_served():
    async with Pair() as pair:
        found = await statuses(pair, TWISTED, METHODS, *AUTH)
        for (method, target), (status, headers, _) in found.items():
            listing = method == "GET" and target in (
                "/v1%2fmodels", "/v1/%6dodels", "/v1/models?x=/healthz", "/v1/models#/healthz", "http://h/v1/models",
            )  # fmt: skip
            own = target.startswith("/v1/models/") or target == "/%68ealthz"
            assert status == 404 or listing or (own and status in (200, 404)), (method, target, status)
            assert "location" not in headers
        assert pair.worker.received == []


async def test_d27_a_wrong_method_hears_the_right_one():
    async with Pair() as pair:
        found = await statuses(pair, ["/v1/models", "/healthz", CHAT, "/v1/messages"], ["PUT"], *AUTH)
        for target, takes in (("/v1/models", "GET"), ("/healthz", "GET"), (CHAT, "POST"), ("/v1/messages", "POST")):
            status, headers, body = found["PUT", target]
            said = json.loads(body)
            assert status == 404
            assert takes in headers["allow"]
            assert target in said["error"]["message"]
            assert takes in said["error"]["message"]
            assert ("code" in said["error"]) is (target != "/v1/messages")


async def test_d27_a_suspended_key_opens_nothing_either():
    async with Pair() as pair:
        found = await statuses(
            pair, [CHAT, "/v1/models", "/v1/messages", STORED[0]], ["GET", "POST"], f"x-api-key: {SUSPENDED_KEY}"
        )
        assert {status for status, _, _ in found.values()} == {403}


async def test_d27_a_fault_of_ours_has_our_shape():
    async with Pair() as pair:

        def broken(scope, receive, send):
            raise RuntimeError("canary of the inside")

        (guard,) = {connection.app for connection in pair.gateway.connections} or {None}
        async with await pair.client() as client:
            await client.ask("GET", "/healthz")
            guard = next(iter(pair.gateway.connections)).app
            guard._rest.add_route("/v1/broken", broken)
            answer = await client.ask("GET", "/v1/broken", headers=AUTH)
    assert answer.status == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert b"canary" not in answer.body


ORIGIN = "origin: https://page.example"
PREFLIGHT = [ORIGIN, "access-control-request-method: POST", "access-control-request-headers: authorization"]
PAGES = CorsPolicy(frozenset({b"https://page.example"}))


@pytest.mark.parametrize("policy", [PAGES, CorsPolicy(frozenset({b"*"}))])
async def test_d27_preflight_is_answered_without_a_key_and_errors_can_be_read(policy):
    async with Pair([reply({"detail": "no"}, "404 X")], cors=policy) as pair:
        allowed = {"*", "https://page.example"}
        for target in (CHAT, "/v1/models", "/v1/unknown", "/v1/messages"):
            async with await pair.client() as client:
                client.writer.write(head("OPTIONS", target, *PREFLIGHT, auth=False, length=None))
                status, headers = await client.head()
                assert status == 204
                assert dict(headers)["access-control-allow-origin"] in allowed
                assert "POST" in dict(headers)["access-control-allow-methods"]
        for auth, method, target, body in (
            (False, "POST", CHAT, BODY), (False, "GET", "/v1/models", b""), (True, "GET", "/v1/unknown", b""),
            (True, "POST", CHAT, b"[]"), (True, "POST", CHAT, BODY), (True, "GET", CHAT, b""),
        ):  # fmt: skip
            answer = await pair.send(head(method, target, ORIGIN, auth=auth, length=len(body)), body)
            assert answer.status in (400, 401, 404)
            assert answer.headers["access-control-allow-origin"] in allowed
            assert "retry-after" in answer.headers["access-control-expose-headers"]


async def test_d27_without_configuration_no_page_may_read_anything():
    for policy in (CorsPolicy(), CorsPolicy(frozenset({b"https://other.example"}))):
        async with Pair(cors=policy) as pair:
            answer = await pair.send(head("OPTIONS", CHAT, *PREFLIGHT, auth=False, length=0))
            assert answer.status == 401
            assert "access-control-allow-origin" not in answer.headers
            answer = await pair.send(head("POST", CHAT, ORIGIN), BODY)
            assert "access-control-allow-origin" not in answer.headers


async def test_d27_fails_with_a_key_asked_before_cors(monkeypatch):
    monkeypatch.setattr(app_module.CorsPolicy, "preflight_for", lambda self, origin: None)
    async with Pair(cors=PAGES) as pair:
        assert (await pair.send(head("OPTIONS", CHAT, *PREFLIGHT, auth=False, length=0))).status == 401


async def test_keep_alive_carries_many_requests_and_an_idle_connection_ends():
    async with Pair(edge=EdgeConfig(keep_alive_s=0.2)) as pair, await pair.client() as client:
        for _ in range(3):
            assert (await client.ask("POST", CHAT, BODY, AUTH)).status == 200
        assert pair.worker.connections == 1
        assert await client.closed() == b""


async def test_a_stream_ends_with_the_last_chunk_and_the_connection_lives_on():
    steps = [stream_head(), chunk(event(delta("a"))), chunk(DONE), LAST]
    async with Pair(steps) as pair, await pair.client() as client:
        for _ in range(2):
            answer = await client.ask("POST", CHAT, chat(model=MODEL, stream=True), AUTH)
            assert answer.body.endswith(DONE)
