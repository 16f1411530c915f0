"""The corridor's less travelled ways: stored responses, deadlines, contracts, and connections above the limit."""

import asyncio
import json

import pytest

from service.domain.tenant import Tenant
from service.domain.units import TenantId, TierName
from service.gateway import corridor as corridor_module
from service.gateway.auth import hash_key
from service.gateway.edge import EdgeConfig
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
        assert (answer.status, answer.headers["retry-after"]) == (503, "3")
        assert "location" not in answer.headers


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
        pair.gateway.corridor._directory.replace([(hash_key(b"narrow"), tenant)])
        answer = await pair.ask(CHAT, chat(model=MODEL), ("x-api-key: narrow",))
        assert (answer.status, answer.json()["error"]["param"]) == (403, "model")
        assert (await pair.ask(CHAT, chat(model="x" * 1000), ("x-api-key: narrow",))).status == 404


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
