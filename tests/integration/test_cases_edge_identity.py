"""D24 and D26: who somebody is follows from the key alone, and keys appear nowhere. With the ways a key may be sent."""

import hashlib
import itertools
import json
import logging

import pytest

from service.domain.tenant import Tenant
from service.domain.units import TenantId, TierName
from service.gateway import corridor as corridor_module
from service.gateway.auth import hash_key
from service.gateway.directory import Directory
from service.runtime.journey import Journey
from tests.support.gateway import KEY, MODEL, OTHER_KEY, SUSPENDED_KEY, running_gateway
from tests.support.raw_client import RawClient, chat
from tests.support.written_worker import RESET, WHOLE, ScriptedWorker, reply

pytestmark = pytest.mark.integration
CHAT = "/v1/chat/completions"

WORDS = [
    "tier",
    "service-tier",
    "tenant",
    "tenant-id",
    "org",
    "organization",
    "project",
    "user",
    "user-id",
    "customer",
    "priority",
    "fairness-id",
    "rank",
    "slo",
    "sla",
    "class",
    "weight",
    "objective",
    "model",
    "route",
    "worker",
    "target",
    "upstream",
    "destination",
    "api-base",
    "base-url",
    "host",
    "backend",
    "pod",
]
PREFIXES = ["", "x-", "x-sluice-", "x-vllm-", "x-gateway-", "openai-", "x-llm-d-", "x-envoy-", "X-LiteLLM-"]
CLAIMS = [prefix + word for prefix, word in itertools.product(PREFIXES, WORDS) if prefix + word != "host"]
FIELDS = {
    "tier": "priority",
    "tenant": "acme",
    "tenant_id": "acme",
    "priority": -100,
    "rank": 0,
    "user": "root",
    "weight": 99,
    "api_base": "http://evil/",
    "base_url": "http://evil/",
    "api_key": "sk-evil",
    "extra_headers": {"x": "y"},
    "extra_body": {"priority": -1},
    "headers": {"host": "evil"},
    "host": "evil",
    "cache_salt": "mine",
    "request_id": "chosen",
    "kv_transfer_params": {"remote_host": "evil"},
    "ec_transfer_params": {},
    "vllm_xargs": {"a": 1},
    "metadata": {"tenant": "acme", "api_base": "http://evil/"},
    "custom_llm_provider": "evil",
    "deployment": "evil",
}
STRIPPED = {
    "priority",
    "api_base",
    "base_url",
    "extra_headers",
    "extra_body",
    "request_id",
    "kv_transfer_params",
    "ec_transfer_params",
    "vllm_xargs",
}


@pytest.fixture
def requests(monkeypatch):
    """Every Request that becomes a journey."""
    seen = []
    start = Journey.start

    def note(self):
        seen.append(self.request)
        start(self)

    monkeypatch.setattr(Journey, "start", note)
    return seen


def spellings(name):
    return [name, name.upper(), name.title(), name.replace("-", "_")]


def check_identity(request):
    assert (request.tenant_id, request.tier, request.rank, request.pinned_to) == ("umbra", "default", 1, None)


def check_outbound(received, port, salt):
    named = received.named
    assert named["host"] == f"127.0.0.1:{port}"
    assert named["x-vllm-priority"] == "10"
    assert set(named) <= {"host", "content-type", "x-request-id", "content-length", "x-vllm-priority"}
    assert received.target == f"POST {CHAT} HTTP/1.1"
    assert received.json()["cache_salt"] == salt


async def test_d24_no_header_changes_who_asks_or_where_it_goes(requests):
    async with (
        ScriptedWorker([WHOLE]) as worker,
        running_gateway([worker.port]) as gateway,
        await RawClient.connect(gateway.port) as client,
    ):
        own = [f"Authorization: Bearer {OTHER_KEY}"]
        await client.ask("POST", CHAT, chat(model=MODEL), own)
        salt = worker.received[0].json()["cache_salt"]
        for values in (("priority", "acme"), ("-100", "0"), ("http://evil/", "evil:80")):
            for part in range(0, len(CLAIMS), 40):
                lines = [
                    f"{form}: {value}"
                    for name in CLAIMS[part : part + 40]
                    for form in spellings(name)
                    for value in values
                ]
                answer = await client.ask("POST", CHAT, chat(model=MODEL), own + lines)
                assert answer.status == 200
                assert answer.headers["x-sluice-tier"] == "default"
        for request in requests:
            check_identity(request)
        for received in worker.received:
            check_outbound(received, worker.port, salt)


async def test_d24_no_field_changes_who_asks_or_where_it_goes(requests):
    async with (
        ScriptedWorker([WHOLE]) as worker,
        running_gateway([worker.port]) as gateway,
        await RawClient.connect(gateway.port) as client,
    ):
        own = [f"Authorization: Bearer {OTHER_KEY}"]
        await client.ask("POST", CHAT, chat(model=MODEL), own)
        salt = worker.received[0].json()["cache_salt"]
        await client.ask("POST", CHAT, chat(model=MODEL, **FIELDS), own)
        escaped = json.dumps(chat(model=MODEL, **FIELDS))
        for name in STRIPPED | {"cache_salt"}:
            escaped = escaped.replace(f'"{name}"', f'"\\u{ord(name[0]):04x}{name[1:]}"')
        await client.ask("POST", CHAT, escaped.encode(), own)
        for request in requests:
            check_identity(request)
        for received in worker.received[1:]:
            check_outbound(received, worker.port, salt)
            said = received.json()
            assert STRIPPED.isdisjoint(said)
            kept = {name: value for name, value in FIELDS.items() if name not in STRIPPED | {"cache_salt"}}
            assert {name: said[name] for name in kept} == kept
            assert received.body.count(b'"cache_salt"') == 1


async def test_d24_salt_and_priority_are_ours_by_tenant_and_tier(requests):
    async with (
        ScriptedWorker([WHOLE]) as worker,
        running_gateway([worker.port]) as gateway,
        await RawClient.connect(gateway.port) as client,
    ):
        for path, fields in (
            (CHAT, chat(model=MODEL)),
            ("/v1/messages", chat(model=MODEL)),
            ("/v1/completions", {"model": MODEL}),
        ):
            for key in (KEY, OTHER_KEY, KEY):
                await client.ask("POST", path, fields, [f"x-api-key: {key}"])
        salts = [one.json()["cache_salt"] for one in worker.received]
        assert len(set(salts)) == 2
        assert salts[0::3] == salts[2::3] == [salts[0]] * 3
        assert "acme" not in salts[0]
        assert [one.named.get("x-vllm-priority") for one in worker.received] == [None, "10", None] * 3
        await client.ask("POST", "/v1/embeddings", {"model": MODEL, "input": "x"}, [f"x-api-key: {KEY}"])
        assert "cache_salt" not in worker.received[-1].json()


async def test_d24_fails_with_a_gateway_that_believes_headers(requests, monkeypatch):
    authenticate = corridor_module.Corridor._authenticate

    def naive(self, exchange, settlement):
        tenant = authenticate(self, exchange, settlement)
        claimed = exchange.named.get(b"x-sluice-tier", tenant.tier.encode()).decode()
        return type(tenant)(tenant.tenant_id, claimed)

    monkeypatch.setattr(corridor_module.Corridor, "_authenticate", naive)
    async with ScriptedWorker([WHOLE]) as worker, running_gateway([worker.port]) as gateway:
        async with await RawClient.connect(gateway.port) as client:
            await client.ask("POST", CHAT, chat(model=MODEL), [f"x-api-key: {OTHER_KEY}", "X-Sluice-Tier: priority"])
        with pytest.raises(AssertionError):
            check_identity(requests[0])


# ---------------------------------------------------------------------------------------------------------- keys

LONG = "k" * 60_000
ACCEPTED = [
    [f"authorization: Bearer {KEY}"],
    [f"authorization: bearer {KEY}"],
    [f"AUTHORIZATION: BEARER   {KEY}  "],
    [f"Authorization: bEaReR {KEY}"],
    [f"x-api-key: {KEY}"],
    [f"X-API-KEY:  {KEY} "],
    [f"authorization: Bearer {KEY}", f"x-api-key: {KEY}"],
    [f"x-api-key: {KEY}", f"x-api-key: {KEY}"],
    [f"authorization: Bearer {KEY}", f"authorization: bearer {KEY}"],
]
REFUSED = [
    [],
    [f"authorization: Bearer {KEY}", f"x-api-key: {OTHER_KEY}"],
    [f"x-api-key: {OTHER_KEY}", f"authorization: Bearer {KEY}"],
    [f"x-api-key: {KEY}", f"x-api-key: {OTHER_KEY}"],
    [f"authorization: Bearer {KEY}", f"authorization: Bearer {OTHER_KEY}"],
    [f"authorization: Basic {KEY}", f"x-api-key: {KEY}"],
    [f"authorization: Bearer {KEY}", "x-api-key:"],
    [f"authorization: Bearer {KEY[:-1]}"],
    [f"authorization: Bearer {KEY} {KEY}"],
    [f"authorization: Bearer {KEY},{KEY}"],
    [f"authorization: Bearer\t{KEY}"],
    [f"authorization: Bearer {KEY.upper()}"],
    [f'authorization: Bearer "{KEY}"'],
    [f"authorization: Bearer {LONG}"],
    [f"x-api-key: {LONG}"],
    ["authorization: Bearer \xfc\xff\x80"],
    ["x-api-key: \xe9"],
    ["authorization: "],
    ["authorization: Bearer "],
    ["x-api-key: "],
    [f"authorization: {hash_key(KEY.encode()).hex()}"],
]


async def ask_raw(port, target, lines, body=b""):
    async with await RawClient.connect(port) as client:
        own = [f"POST {target} HTTP/1.1", "host: t", f"content-length: {len(body)}", "connection: close", *lines]
        client.writer.write("\r\n".join([*own, "", ""]).encode("latin-1") + body)
        return await client.answer()


@pytest.mark.parametrize("target", [CHAT, "/v1/nothing"])
async def test_keys_are_taken_in_every_lawful_form_and_in_no_other(target):
    async with running_gateway() as gateway:
        for lines in ACCEPTED:
            answer = await ask_raw(gateway.port, target, lines, b"{}")
            assert answer.status in (400, 404), lines
        bodies = set()
        for lines in REFUSED:
            answer = await ask_raw(gateway.port, target, lines, b"{}")
            assert answer.status == 401, lines
            bodies.add(answer.body)
        assert len(bodies) == 1


async def test_keys_are_looked_up_by_their_hash_whatever_comes(monkeypatch):
    """One hash and one look-up for each key, right or wrong, near or far: no comparison of secrets byte by byte."""
    looked_up = []

    class Table(dict):
        def get(self, key, default=None):
            looked_up.append(key)
            return super().get(key, default)

    directory = Directory(lambda: 0.0)
    directory._written = Table()
    for key in (b"", b"a", KEY.encode(), KEY.encode()[:-1], b"\xff" * 100):
        assert directory.find(key) is None
    assert [len(key) for key in looked_up] == [32] * 5


CANARY = "sk-sluice-canary-4f1b"


async def test_a_key_is_judged_with_each_request_of_a_connection(requests):
    """What is remembered of the last request holds for the same words and for as long as the keys are the same."""
    async with (
        ScriptedWorker([WHOLE]) as worker,
        running_gateway([worker.port]) as gateway,
        await RawClient.connect(gateway.port) as client,
    ):

        async def ask(*lines):
            return (await client.ask("POST", CHAT, chat(model=MODEL), lines)).status

        ours, others = f"authorization: Bearer {KEY}", f"authorization: Bearer {OTHER_KEY}"
        assert [await ask(ours), await ask(ours), await ask(others)] == [200, 200, 200]
        assert [await ask(f"{others}x"), await ask(others), await ask()] == [401, 200, 401]
        assert [await ask(others, f"x-api-key: {KEY}"), await ask(others, others)] == [401, 200]
        assert [await ask(f"x-api-key: {KEY}"), await ask(f"x-api-key: {KEY}")] == [200, 200]
        assert [await ask(f"authorization: Bearer {SUSPENDED_KEY}") for _ in range(2)] == [403, 403]
        tenants = [request.tenant_id for request in requests]
        assert tenants == ["acme", "acme", "umbra", "umbra", "umbra", "acme", "acme"]
        assert await ask(others) == 200
        gateway.corridor._directory.replace(
            [(hash_key(KEY.encode()), Tenant(TenantId("new"), TierName("default")), None)]
        )
        assert [await ask(others), await ask(ours), await ask(ours)] == [401, 200, 200]
        assert [request.tenant_id for request in requests[-2:]] == ["new", "new"]


@pytest.mark.parametrize("level", [logging.DEBUG])
async def test_d26_keys_appear_nowhere(caplog, level, monkeypatch):
    caplog.set_level(level)
    for known in (KEY, SUSPENDED_KEY):
        monkeypatch.setattr(
            "tests.support.gateway." + ("KEY" if known is KEY else "SUSPENDED_KEY"), f"{CANARY}-{known[-5:]}"
        )
    good, suspended = f"{CANARY}-{KEY[-5:]}", f"{CANARY}-{SUSPENDED_KEY[-5:]}"
    body = json.dumps(chat(model=MODEL)).encode()
    answers = []
    async with ScriptedWorker([WHOLE]) as worker, running_gateway([worker.port]) as gateway:
        for lines in (
            [f"x-api-key: {good}"],
            [f"x-api-key: {suspended}"],
            [f"x-api-key: {CANARY}"],
            [f"authorization: {CANARY}"],
            [f"authorization: Basic {CANARY}"],
            [f"x-api-key: {good}", f"x-api-key: {CANARY}"],
        ):
            for target in (CHAT, "/v1/messages", "/v1/models", f"/v1/nothing?key={CANARY}", f"{CHAT}?api_key={CANARY}"):
                answers += [await ask_raw(gateway.port, target, lines, raw) for raw in (body, b"[", b"")]
        for script in (
            [reply({"error": "x"}, "401 X")],
            [reply(b"x", "500 X")],
            [RESET],
            [reply({"detail": "y"}, "404 X")],
        ):
            worker.script = script
            answers.append(await ask_raw(gateway.port, CHAT, [f"authorization: Bearer {good}"], body))
        monkeypatch.setattr(Journey, "start", lambda self: 1 / 0)
        answers.append(await ask_raw(gateway.port, CHAT, [f"authorization: Bearer {good}"], body))
        assert answers[-1].status == 500
        told = [repr(vars(one)) for one in gateway.ledger.settlements]
        sent = [repr(one) for one in worker.received]
    secrets = [CANARY, *(hashlib.sha256(key.encode()).hexdigest() for key in (good, suspended, CANARY))]
    places = [caplog.text, *told, *sent, *(repr(vars(one)) for one in answers)]
    assert caplog.text
    for secret in secrets:
        assert not any(secret in place for place in places)


async def test_d26_fails_with_a_refusal_that_quotes_the_key(monkeypatch):
    class Naive(Directory):
        def find(self, key):
            raise corridor_module.Refused(corridor_module.Outcome.UNAUTHENTICATED, f"Unknown key {key.decode()}")

    monkeypatch.setattr("tests.support.gateway.Directory", Naive)
    async with running_gateway() as gateway:
        answer = await ask_raw(gateway.port, CHAT, [f"x-api-key: {CANARY}"], b"{}")
        assert CANARY in answer.body.decode()
