"""D27: every route and every way to write it needs a key; only health does not."""

import asyncio

import httpx
import pytest

from service.gateway.app import OPEN_PATHS, build_rest
from service.gateway.routes import ROUTES
from tests.support.service_process import KEY, run_gateway, run_worker

pytestmark = pytest.mark.integration

WRITTEN = (
    "/", "/v1", "/v1/", "//v1/models", "/v1//models", "/v1/../v1/models", "/v1/%2e%2e/models", "/v1%2fmodels",
    "/V1/models", "/v1/models/", "/v1/models?x=1", "/healthz/", "//healthz", "/healthz/../v1/models", "/healthz%2f",
    "/healthz?x=1&/v1", "/docs", "/redoc", "/openapi.json", "/metrics", "/admin/v1/state", "/v1/responses/resp_1",
    "/v1/responses/resp_1/cancel", "/v1/chat/completions/", "/v1/chat/completions?stream=true",
    "/inference/v1/generate",
    "/v1/load_lora_adapter", "/pause", "/collective_rpc", "*", "/%00", "/.well-known/x",
)  # fmt: skip
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    folder = tmp_path_factory.mktemp("routes")
    with (
        run_worker(folder, "instant") as worker,
        run_gateway(folder, [worker], cors_origins=["https://app.example.com"]) as gateway,
    ):
        yield gateway


async def ask(port: int, method: str, path: str, *headers: str) -> tuple[int, str]:
    """Send the path as it is written: clients of libraries tidy it up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [f"{method} {path} HTTP/1.1", "host: x", "content-length: 0", "connection: close", *headers]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
    answer = (await asyncio.wait_for(reader.read(), 10)).decode()
    writer.close()
    await writer.wait_closed()
    head = answer.partition("\r\n\r\n")[0]
    return int(head.split()[1]), head.lower()


def all_paths() -> list[str]:
    rest = {route.path for route in build_rest(list, lambda: None).routes}
    return sorted({*rest, *(path.decode() for path in ROUTES), *WRITTEN} - {path.decode() for path in OPEN_PATHS})


async def test_nothing_but_health_without_a_key(gateway):
    for path in all_paths():
        if path.startswith("/healthz?"):
            continue
        for method in METHODS:
            for headers in ((), ("authorization: Bearer sk-sluice-no",), ("x-api-key:",)):
                status, head = await ask(gateway.port, method, path, *headers)
                assert status in (400, 401), (method, path, status)
                assert "location:" not in head
    for path in OPEN_PATHS:
        for method in ("GET", "HEAD"):
            assert (await ask(gateway.port, method, path.decode()))[0] == 200


async def test_with_a_key_odd_ways_of_writing_find_nothing(gateway):
    key = f"authorization: Bearer {KEY}"
    for path in (
        "//v1/models",
        "/v1/../v1/models",
        "/v1%2fmodels",
        "/v1/models/",
        "/docs",
        "/openapi.json",
        "/metrics",
    ):
        status, head = await ask(gateway.port, "GET", path, key)
        assert status in (200, 404), path
        assert "location:" not in head
    assert (await ask(gateway.port, "GET", "/v1/models", key))[0] == 200
    assert (await ask(gateway.port, "GET", "/v1/chat/completions", key))[0] == 404


async def test_a_browser_may_ask_first_and_may_read_errors(gateway):
    origin = "origin: https://app.example.com"
    for path in ("/v1/chat/completions", "/v1/models"):
        status, head = await ask(gateway.port, "OPTIONS", path, origin, "access-control-request-method: POST")
        assert status == 204
        assert "access-control-allow-origin: https://app.example.com" in head
        status, head = await ask(gateway.port, "POST", path, origin)
        assert status == 401
        assert "access-control-allow-origin: https://app.example.com" in head
        status, _ = await ask(
            gateway.port, "OPTIONS", path, "origin: https://evil.example", "access-control-request-method: POST"
        )
        assert status == 401


def test_the_library_client_sees_the_same(gateway):
    assert httpx.get(f"{gateway.url}/v1/models", trust_env=False).status_code == 401
