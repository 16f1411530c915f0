"""The corridor's less travelled ways: stored responses, deadlines, contracts, and connections above the limit."""

import asyncio
import json

import pytest

from service.domain.tenant import Tenant
from service.domain.units import TenantId, TierName
from service.gateway import corridor as corridor_module
from service.gateway.auth import hash_key
from service.gateway.edge import EdgeConfig
from service.gateway.exchange import Exchange
from service.gateway.server import EdgeProtocol
from service.runtime.journey import Journey
from tests.support.gateway import KEY, MODEL, OTHER_KEY, running_gateway
from tests.support.raw_client import RawClient, chat
from tests.support.until import until
from tests.support.written_worker import WHOLE, ScriptedWorker, reply

pytestmark = pytest.mark.integration
CHAT = "/v1/chat/completions"
AUTH = (f"authorization: Bearer {KEY}",)


class Pair:
    """A worker, a gateway and one client of it."""

    def __init__(self, script=(WHOLE,), **options):
        self.worker = ScriptedWorker(script)
        self.options = options

    async def __aenter__(self):
        await self.worker.__aenter__()
        self._running = running_gateway([self.worker.port], **self.options)
        self.gateway = await self._running.__aenter__()
        self.client = await RawClient.connect(self.gateway.port)
        return self

    async def __aexit__(self, *_):
        await self.client.__aexit__()
        await self._running.__aexit__(None, None, None)
        await self.worker.__aexit__(None, None, None)

    async def ask(self, path, body=b"", lines=AUTH, method="POST"):
        return await self.client.ask(method, path, body, lines)


def large(body):
    """A request whose head the corridor hears of before its body comes."""
    return b"POST %b HTTP/1.1\r\nhost: x\r\n%b\r\ncontent-length: 200000\r\n\r\n%b" % (
        CHAT.encode(), AUTH[0].encode(), body
    )  # fmt: skip


def respond(request):
    """A worker that keeps the id it was told for a response."""
    asked = json.loads(request.body) if request.body else {}
    return [reply({"id": asked.get("request_id"), "usage": {"input_tokens": 4, "output_tokens": 2}})]


async def test_a_stored_response_is_asked_for_at_its_worker_by_its_tenant_only():
    async with Pair(respond) as pair:
        made = (await pair.ask("/v1/responses", {"model": MODEL, "input": "x"})).json()["id"]
        assert made.startswith("resp_")
        for method, path in (
            ("GET", f"/v1/responses/{made}?stream=false&x=1"),
            ("POST", f"/v1/responses/{made}/cancel"),
        ):
            assert (await pair.ask(path, method=method)).status == 200
            assert pair.worker.received[-1].target == f"{method} {path} HTTP/1.1"
            other = await pair.ask(path, lines=(f"x-api-key: {OTHER_KEY}",), method=method)
            assert (other.status, other.json()["error"]["code"]) == (404, "response_not_found")
        assert (await pair.ask("/v1/responses/resp_none", method="GET")).status == 404
        follow = {"model": MODEL, "input": "x", "previous_response_id": made}
        assert (await pair.ask("/v1/responses", follow)).status == 200
        assert (await pair.ask("/v1/responses", {**follow, "previous_response_id": "resp_none"})).status == 404
        assert (await pair.ask(CHAT, {**chat(model=MODEL), "previous_response_id": "resp_none"})).status == 200
        pair.gateway.check_nothing_is_held()


async def test_a_stored_response_of_a_worker_that_is_gone_is_an_error():
    async with Pair(respond) as pair:
        made = (await pair.ask("/v1/responses", {"model": MODEL, "input": "x"})).json()["id"]
        pair.worker.script = ["reset"]
        assert (await pair.ask(f"/v1/responses/{made}", method="GET")).status == 502
        pair.worker.script = [reply({}, "503 X", ["retry-after: 3"])]
        answer = await pair.ask(f"/v1/responses/{made}", method="GET")
        assert answer.status == 503
        assert 3000 <= int(answer.headers["retry-after-ms"]) < 4000  # never sooner than the worker wished
        assert "location" not in answer.headers


@pytest.mark.parametrize("fields", [{}, {"store": True}, {"store": None}, {"store": False}], ids=str)
async def test_a_response_is_remembered_once_its_answer_begins_and_only_if_it_is_stored(fields):
    async with Pair(["reset"]) as pair:
        body = {"model": MODEL, "input": "x", **fields}
        assert (await pair.ask("/v1/responses", body)).status == 502
        assert len(pair.gateway.corridor._stored._made) == 0
        pair.worker.script = respond
        pair.gateway.add_worker(pair.worker.port, "fresh")
        made = (await pair.ask("/v1/responses", body)).json()["id"]
        kept = fields.get("store") is not False
        assert len(pair.gateway.corridor._stored._made) == kept
        assert (await pair.ask(f"/v1/responses/{made}", method="GET")).status == (200 if kept else 404)


async def test_the_clients_own_deadline_does_not_open_a_breaker():
    async def ask(pair, deadline_ms, **fields):
        async with await RawClient.connect(pair.gateway.port) as client:
            lines = (*AUTH, *([f"x-sluice-deadline-ms: {deadline_ms}"] if deadline_ms else ()))
            return await client.ask("POST", CHAT, chat(model=MODEL, **fields), lines)

    async with Pair([0.6, WHOLE]) as pair:
        for stream in (True, True, True, False, False, False):
            answer = await ask(pair, 50, stream=stream)
            assert (answer.status, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
            assert 1000 <= int(answer.headers["retry-after-ms"]) < 2000
        assert not pair.gateway.driver.stats().workers[0].resting
        assert (await ask(pair, None)).status == 200
        assert pair.gateway.ledger.outcomes == ["client_deadline"] * 6 + ["completed"]
        pair.gateway.check_nothing_is_held()


async def test_a_deadline_and_a_session_of_the_client(monkeypatch):
    seen = []
    start = Journey.start
    monkeypatch.setattr(Journey, "start", lambda self: seen.append(self) or start(self))
    async with Pair() as pair:
        for key in (KEY, OTHER_KEY, KEY):
            lines = (f"x-api-key: {key}", "x-sluice-deadline-ms: 1500", "x-sluice-session: s1")
            assert (await pair.ask(CHAT, chat(model=MODEL), lines)).status == 200
        for journey in seen:
            assert journey.request.deadline_at - journey.request.arrived_at == pytest.approx(1.5)
            assert journey.first_token_limit_at == pytest.approx(journey.request.arrived_at + 1.5)
            assert "s1" not in journey.request.session
        sessions = [journey.request.session for journey in seen]
        assert sessions[0] == sessions[2] != sessions[1]
        for bad in ("", "-5", "1.5", "soon", "9" * 20):
            answer = await pair.ask(CHAT, chat(model=MODEL), (*AUTH, f"x-sluice-deadline-ms: {bad}"))
            assert (answer.status, answer.json()["error"]["param"]) == (400, "x-sluice-deadline-ms")


async def test_a_model_outside_the_contract_is_refused():
    async with Pair() as pair:
        tenant = Tenant(TenantId("narrow"), TierName("default"), models=frozenset({"another"}))
        pair.gateway.corridor._directory.replace([(hash_key(b"narrow"), tenant, None)])
        answer = await pair.ask(CHAT, chat(model=MODEL), ("x-api-key: narrow",))
        assert (answer.status, answer.json()["error"]["param"]) == (403, "model")
        assert (await pair.ask(CHAT, chat(model="x" * 1000), ("x-api-key: narrow",))).status == 404
        listed = await pair.ask("/v1/models", lines=("x-api-key: narrow",), method="GET")
        assert listed.json()["data"] == []
        shown = await pair.ask(f"/v1/models/{MODEL}", lines=("x-api-key: narrow",), method="GET")
        assert (shown.status, shown.json()["error"]["code"]) == (404, "model_not_found")


async def test_a_fault_of_ours_ends_one_request_and_gives_everything_back(monkeypatch):
    async with Pair() as pair:
        with monkeypatch.context() as patch:
            patch.setattr(corridor_module, "peek", lambda *_: 1 / 0)
            assert (await pair.ask(CHAT, chat(model=MODEL))).status == 500
        with monkeypatch.context() as patch:
            patch.setattr(pair.gateway.pool, "open", lambda *_: 1 / 0)
            assert (await pair.ask(CHAT, chat(model=MODEL))).status == 500
        assert (await pair.ask(CHAT, chat(model=MODEL))).status == 200
        assert pair.gateway.ledger.outcomes == ["gateway_fault", "gateway_fault", "completed"]
        pair.gateway.check_nothing_is_held()


@pytest.mark.parametrize(
    ("place", "name", "outcomes"),
    [
        (EdgeProtocol, "_follow", []),
        (corridor_module.Corridor, "find_route", []),
        (Exchange, "expect_body", ["gateway_fault"]),
        (Exchange, "take_body", ["gateway_fault"]),
        (corridor_module.Corridor, "_authenticate", ["gateway_fault"]),
        (corridor_module.Corridor, "on_request", ["gateway_fault"]),
    ],
)
async def test_a_fault_of_ours_while_a_request_is_read_is_told_as_ours(place, name, outcomes, monkeypatch, caplog):
    async with Pair() as pair:
        with monkeypatch.context() as patch:
            once = [getattr(place, name)]

            def explode(self, *args):
                if len(once) == 1 and (name != "take_body" or len(args[0]) > 0):
                    once.append(None)
                    raise RuntimeError("injected")
                return once[0](self, *args)

            patch.setattr(place, name, explode)
            pair.client.writer.write(large(b"{" * 1000))
            if name == "on_request":
                pair.client.writer.write(b"{" * 199_000)
            answer = await pair.client.answer()
            assert (answer.status, answer.json()["error"]["code"]) == (500, "internal_error")
            assert answer.headers["x-request-id"]
            assert answer.headers["connection"] == "close"
            assert await pair.client.closed() == b""
        faults = [record for record in caplog.records if record.exc_info]
        assert [str(record.exc_info[1]) for record in faults] == ["injected"]
        assert pair.gateway.ledger.outcomes == outcomes
        pair.gateway.check_nothing_is_held()


@pytest.mark.parametrize("late", [True, False], ids=["late", "gone"])
async def test_a_fault_of_ours_in_a_request_that_never_comes(late, monkeypatch, caplog):
    edge = EdgeConfig(body_timeout_s=0.1 if late else 60.0)
    async with Pair(edge=edge) as pair:
        end = corridor_module.Corridor._end

        def explode(self, *args):
            monkeypatch.setattr(corridor_module.Corridor, "_end", end)
            raise RuntimeError("injected")

        monkeypatch.setattr(corridor_module.Corridor, "_end", explode)
        pair.client.writer.write(large(b"{"))
        await until(lambda: any(one.cycle is not None for one in pair.gateway.connections))
        if late:
            assert (await pair.client.answer()).status == 500
        else:
            pair.client.writer.transport.abort()
        await pair.gateway.settled(1)
        assert pair.gateway.ledger.outcomes == ["gateway_fault"]
        assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["injected"]


async def test_a_request_served_before_a_fault_of_ours_has_its_answer(monkeypatch):
    async with Pair([0.1, WHOLE]) as pair:
        pair.client.send("POST", CHAT, chat(model=MODEL), AUTH)
        await until(lambda: pair.gateway.driver.travelling)
        monkeypatch.setattr(corridor_module.Corridor, "find_route", lambda *_: 1 / 0)
        pair.client.send("POST", CHAT, chat(model=MODEL), AUTH)
        assert (await pair.client.answer()).status == 200
        assert await pair.client.closed() == b""


async def test_every_answer_has_an_id():
    edge = EdgeConfig(connections_max=2, connections_reserve=0)
    async with Pair(edge=edge) as pair:
        ids = []
        for method, path, lines in (
            ("GET", "/healthz", ()), ("GET", "/readyz", ()), ("GET", "/v1/models", AUTH), ("GET", "/v1/models", ()),
            ("GET", "/nothing", AUTH), ("GET", CHAT, AUTH), ("POST", CHAT, ()),
        ):  # fmt: skip
            ids.append((await pair.ask(path, b"", lines, method)).headers["x-request-id"])
            told = await pair.ask(path, b"", (*lines, "x-request-id: mine-1"), method)
            assert told.headers["x-request-id"] == "mine-1"
            assert (await pair.ask(path, b"", (*lines, "x-request-id: not sane"), method)).headers[
                "x-request-id"
            ] != "not sane"
        async with await RawClient.connect(pair.gateway.port) as client:
            async with await RawClient.connect(pair.gateway.port) as third:
                ids.append((await third.answer()).headers["x-request-id"])
            client.writer.write(b"\x00\x01\r\n\r\n")
            ids.append((await client.answer()).headers["x-request-id"])
        assert len(set(ids)) == len(ids)


async def test_advice_to_come_again_is_spread():
    edge = EdgeConfig(connections_max=1, connections_reserve=2)
    advice = {"refused": set(), "guard": set(), "dismissed": set()}
    async with Pair(edge=edge) as pair:
        await pair.ask("/healthz", method="GET")
        for _ in range(4):
            for kind, method, path in (("refused", "POST", CHAT), ("guard", "GET", "/v1/models")):
                async with await RawClient.connect(pair.gateway.port) as client:
                    advice[kind].add((await client.ask(method, path, b"", AUTH)).headers["retry-after-ms"])
        silent = [await RawClient.connect(pair.gateway.port) for _ in range(5)]
        for client in silent[:3]:
            advice["dismissed"].add((await client.answer()).headers["retry-after-ms"])
        for client in silent:
            await client.__aexit__()
    for kind, said in advice.items():
        assert len(said) > 1, kind
        assert all(1000 <= int(one) < 2000 for one in said)


async def test_a_gateway_that_is_not_ready_says_when_to_ask_again():
    async with running_gateway(ready=lambda: "draining") as gateway, await RawClient.connect(gateway.port) as client:
        answer = await client.ask("GET", "/readyz")
        assert (answer.status, answer.json()["reason"]) == (503, "draining")
        assert answer.headers["retry-after"] in ("1", "2")
        assert 1000 <= int(answer.headers["retry-after-ms"]) < 2000


async def test_above_the_limit_only_health_is_answered_and_the_silent_make_room():
    edge = EdgeConfig(connections_max=1, connections_reserve=2)
    async with Pair(edge=edge) as pair:
        assert (await pair.ask(CHAT, chat(model=MODEL))).status == 200
        for path, status in (("/healthz", 200), (CHAT, 503), ("/v1/models", 503), ("/v1/messages", 503)):
            async with await RawClient.connect(pair.gateway.port) as client:
                answer = await client.ask("GET" if path in ("/healthz", "/v1/models") else "POST", path, b"", AUTH)
                assert answer.status == status
                assert status == 200 or answer.headers["retry-after"]
                await client.closed()
        silent = [await RawClient.connect(pair.gateway.port) for _ in range(4)]
        for client in silent[:2]:  # dismissed to make room
            assert (await client.answer()).json()["error"]["code"] == "server_overloaded"
            assert await client.closed() == b""
        await until(lambda: len(pair.gateway.connections) == 3)
        async with await RawClient.connect(pair.gateway.port) as client:
            assert (await client.ask("GET", "/healthz")).status == 200
        for client in silent:
            await client.__aexit__()
        await until(lambda: len(pair.gateway.connections) == 1)
        (connection,) = pair.gateway.connections
        assert connection._reserve == {}


async def test_above_the_reserve_with_nobody_to_dismiss_the_newcomer_goes():
    edge = EdgeConfig(connections_max=1, connections_reserve=0)
    async with Pair(edge=edge) as pair:
        await pair.ask("/healthz", method="GET")
        async with await RawClient.connect(pair.gateway.port) as client:
            assert (await client.answer()).status == 503


@pytest.mark.parametrize("start", [b"", b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-a: "])
async def test_a_head_that_does_not_come_ends_the_connection(start):
    async with (
        running_gateway(edge=EdgeConfig(head_timeout_s=0.1)) as gateway,
        await RawClient.connect(gateway.port) as client,
    ):
        client.writer.write(start)
        assert await client.closed() == b""


async def test_a_slow_body_on_another_path_is_not_read_for_ever():
    async with (
        running_gateway(edge=EdgeConfig(body_timeout_s=0.1)) as gateway,
        await RawClient.connect(gateway.port) as client,
    ):
        client.writer.write(b"POST /v1/models HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\nabc")
        assert (await client.answer()).status == 401
        assert await client.closed() == b""


async def test_a_reader_that_stops_holds_the_worker_back_and_is_cut():
    async with Pair([reply(b"x" * 30_000_000)]) as pair:
        pair.client.writer.transport.pause_reading()
        pair.client.send("POST", CHAT, chat(model=MODEL), AUTH)
        await until(lambda: any(one.paused_at is not None for one in pair.gateway.driver.passengers()))
        pair.client.writer.transport.resume_reading()
        assert len((await pair.client.answer()).body) == 30_000_000
        pair.client.writer.transport.pause_reading()
        pair.client.send("POST", CHAT, chat(model=MODEL), AUTH)
        await until(lambda: any(one.paused_at is not None for one in pair.gateway.driver.passengers()))
        for journey in pair.gateway.driver.passengers():
            journey.on_sweep(journey.paused_at + 1000)
        assert (await pair.gateway.settled(2))[-1].outcome.label == "client_stalled"
        pair.gateway.check_nothing_is_held()


async def test_readiness_models_and_unknown_models():
    async with Pair() as pair:
        assert (await pair.ask("/readyz", lines=(), method="GET")).json() == {"status": "ready"}
        assert (await pair.ask(f"/v1/models/{MODEL}", method="GET")).json()["id"] == MODEL
        answer = await pair.ask("/v1/models/none", method="GET")
        assert (answer.status, answer.json()["error"]["code"]) == (404, "model_not_found")
        await asyncio.sleep(0)
