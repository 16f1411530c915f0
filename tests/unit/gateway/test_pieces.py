"""The small pieces of the edge: keys, origins, stored responses, header lines, targets, byte budget."""

import pytest

from service.domain.tenant import Tenant
from service.domain.units import TenantId, TierName, WorkerId
from service.gateway.auth import KEY_PREFIX, hash_key, new_key, read_key
from service.gateway.cors import CorsPolicy
from service.gateway.directory import Directory
from service.gateway.exchange import ByteBudget
from service.gateway.headers import is_sane_id, read_connection_names, read_deadline_s, render_outbound
from service.gateway.routes import ROUTES
from service.gateway.stored import StoredResponses, read_response_path
from service.gateway.target import build_scope, strip_authority

ACME = Tenant(TenantId("acme"), TierName("default"))


def test_keys_are_found_by_hash_and_replaced_at_once():
    key = new_key()
    assert key.startswith(KEY_PREFIX)
    assert len(key) > 50
    assert key != new_key()
    directory = Directory(lambda: 0.0)
    directory.replace([(hash_key(key.encode()), ACME, None)])
    assert directory.find(key.encode()) is ACME
    assert key not in repr(vars(directory))
    directory.replace([])
    assert directory.find(key.encode()) is None


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ([(b"authorization", b"Bearer k")], b"k"),
        ([(b"authorization", b"BEARER  k ")], b"k"),
        ([(b"x-api-key", b" k ")], b"k"),
        ([(b"x-api-key", b"k"), (b"authorization", b"bearer k")], b"k"),
        ([(b"x-api-key", b"k"), (b"authorization", b"bearer other")], None),
        ([(b"authorization", b"Basic k")], None),
        ([(b"authorization", b"Bearer")], None),
        ([(b"x-api-key", b"")], None),
        ([(b"x-api-key", b"\xff\x00")], b"\xff\x00"),
        ([(b"cookie", b"k")], None),
    ],
)
def test_a_key_is_read_from_one_story_only(headers, key):
    assert read_key(headers) == key


def test_origins():
    off, all_, one = CorsPolicy(), CorsPolicy(frozenset({b"*"})), CorsPolicy(frozenset({b"https://a"}))
    assert off.headers_for(b"https://a") == b""
    assert off.preflight_for(b"https://a") is None
    assert all_.headers_for(None) == b""
    assert all_.headers_for(b"https://b").startswith(b"access-control-allow-origin: *\r\n")
    assert one.headers_for(b"https://a").startswith(b"access-control-allow-origin: https://a\r\nvary: origin\r\n")
    assert one.headers_for(b"https://b") == b"vary: origin\r\n"
    assert one.preflight_for(b"https://b") is None
    assert b"access-control-allow-methods" in one.preflight_for(b"https://a")


def test_a_stored_response_is_its_tenants_own():
    stored = StoredResponses()
    stored.remember("resp_1", TenantId("acme"), WorkerId("w"))
    assert stored.worker_of("resp_1", ACME) == "w"
    assert stored.worker_of("resp_1", Tenant(TenantId("other"), TierName("default"))) is None
    assert stored.worker_of("resp_2", ACME) is None


def test_one_tenants_responses_are_bounded_and_so_are_all(monkeypatch):
    monkeypatch.setattr("service.gateway.stored._KEPT_PER_TENANT", 3)
    monkeypatch.setattr("service.gateway.stored._KEPT", 5)
    stored = StoredResponses()
    other = Tenant(TenantId("other"), TierName("default"))
    stored.remember("mine", ACME.tenant_id, WorkerId("w"))
    for i in range(100):
        stored.remember(f"resp_{i}", other.tenant_id, WorkerId("w"))
    assert stored.worker_of("mine", ACME) == "w"
    assert [i for i in range(100) if stored.worker_of(f"resp_{i}", other)] == [97, 98, 99]
    for i in range(3):
        stored.remember(f"third_{i}", TenantId("third"), WorkerId("w"))
    assert stored.worker_of("mine", ACME) is None
    assert stored.worker_of("resp_97", other) is None
    assert stored.worker_of("resp_98", other) == "w"
    assert len(stored._made) == 5
    assert set(stored._of) == {"other", "third"}


@pytest.mark.parametrize(
    ("method", "path", "found"),
    [
        (b"GET", b"/v1/responses/resp_1-a", ("resp_1-a", b"")),
        (b"POST", b"/v1/responses/resp_1/cancel", ("resp_1", b"/cancel")),
        (b"POST", b"/v1/responses/resp_1", None),
        (b"GET", b"/v1/responses/resp_1/cancel", None),
        (b"GET", b"/v1/responses/", None),
        (b"GET", b"/v1/responses/..", None),
        (b"GET", b"/v1/responses/a%2fb", None),
        (b"GET", b"/v1/responses/\xc3\xa9", None),
        (b"POST", b"/v1/responses/a/cancel/", None),
        (b"DELETE", b"/v1/responses/a", None),
    ],
)
def test_paths_of_stored_responses(method, path, found):
    assert read_response_path(method, path) == found


def test_lines_for_the_worker():
    headers = [(b"accept", b"a/b"), (b"connection", b"close, Accept"), (b"traceparent", b"t")]
    lines = render_outbound(dict(headers), headers, "id", 5, 20, b"wk")
    assert lines == (
        b"content-type: application/json\r\nx-request-id: id\r\ncontent-length: 5\r\nx-vllm-priority: 20\r\n"
        b"authorization: Bearer wk\r\ntraceparent: t\r\n\r\n"
    )
    twice = [(b"connection", b"accept"), (b"connection", b"keep-alive"), (b"accept", b"a/b")]
    assert b"accept" not in render_outbound(dict(twice), twice, "id", 0, 0, b"")
    plain = [(b"connection", b"keep-alive"), (b"accept", b"a/b"), (b"content-type", b"x/y")]
    assert render_outbound(dict(plain), plain, "id", 0, 0, b"").startswith(b"content-type: x/y\r\n")
    assert b"accept: a/b" in render_outbound(dict(plain), plain, "id", 0, 0, b"")
    assert read_connection_names(twice) == {b"accept", b"keep-alive"}


def test_ids_and_deadlines_of_clients():
    assert is_sane_id(b"abc-1.2_3:4")
    assert not any(map(is_sane_id, (b"", b"a b", b"a" * 129, b"a\n", b"\xe9", b"a;b")))
    assert read_deadline_s(b"1500") == 1.5
    assert [read_deadline_s(one) for one in (b"", b"-1", b"1.5", b"1e3", b"1" * 13, "٣".encode())] == [None] * 6


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"/a?b", b"/a?b"),
        (b"http://h/a?b", b"/a?b"),
        (b"HTTP://u:p@h:1", b"/"),
        (b"http://h?q=/x", b"/?q=/x"),
        (b"*", b"*"),
        (b"//h/a", b"//h/a"),
        (b"/x://h/a", b"/x://h/a"),
        (b"a+b.c-d://h/e", b"/e"),
    ],
)
def test_absolute_targets(target, path):
    assert strip_authority(target) == path


def test_a_scope_keeps_the_path_as_it_was_sent():
    scope = build_scope("GET", b"/a%2Fb/../c?x=%20#f", [], "1.1", "http", None, ("h", 1), True)
    assert scope["raw_path"] == b"/a%2Fb/../c"
    assert scope["path"] == "/a/b/../c"
    assert scope["query_string"] == b"x=%20"
    assert scope["extensions"]["sluice.over_limit"] == {"value": True}
    assert build_scope("GET", b"/\xff#a?b", [], "1.1", "http", None, None, False)["query_string"] == b""


def test_the_byte_budget_never_goes_below_nothing():
    budget = ByteBudget(10)
    assert budget.take(10)
    assert not budget.take(1)
    budget.give(4)
    assert budget.take(4)
    assert budget.left == 0


def test_every_route_says_what_bounds_its_answer():
    assert {route.kind for route in ROUTES.values()} == {
        "chat_completions",
        "completions",
        "responses",
        "messages",
        "messages_count_tokens",
        "embeddings",
        "tokenize",
        "detokenize",
    }
    for path, route in ROUTES.items():
        assert route.target == b"POST " + path
    assert ROUTES[b"/v1/chat/completions"].bounds == ("max_completion_tokens", "max_tokens")
    assert ROUTES[b"/v1/completions"].bounds == ("max_tokens",)
    assert ROUTES[b"/v1/responses"].bounds == ("max_output_tokens",)
