"""D17: a gateway that is told to go loses nothing, and what must be cut hears so."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.support.service_process import KEY, TOKEN, Process, read_stream, request_body, run_gateway, run_worker

pytestmark = pytest.mark.integration
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
HEADERS = {"authorization": f"Bearer {KEY}"}


async def stream(client: httpx.AsyncClient, gateway: Process, tokens: int) -> str:
    answer = await client.post(
        f"{gateway.url}/v1/chat/completions", json=request_body(tokens), headers=HEADERS, timeout=60
    )
    assert answer.status_code == 200, answer.text
    return answer.text


async def begin(client: httpx.AsyncClient, gateway: Process, tokens: int) -> httpx.Response:
    """A stream whose answer has begun; read the rest of it with ``aread``."""
    url = f"{gateway.url}/v1/chat/completions"
    request = client.build_request("POST", url, json=request_body(tokens), headers=HEADERS, timeout=60)
    answer = await client.send(request, stream=True)
    assert answer.status_code == 200, await answer.aread()
    return answer


async def wait_for_streams(gateway: Process, count: int) -> None:
    for _ in range(100):
        state = await asyncio.to_thread(gateway.admin, "GET", "/admin/v1/drain")
        if state.json()["under_way"] >= count:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the streams did not start")


async def test_streams_finish_and_new_requests_are_served_while_leaving(tmp_path):
    limits = {"requests_per_worker": 64, "drain_delay_s": 2.0, "grace_s": 25.0}
    with (
        run_worker(tmp_path) as one,
        run_worker(tmp_path) as two,
        run_gateway(tmp_path, [one, two], limits=limits) as gateway,
    ):
        async with httpx.AsyncClient(trust_env=False, limits=httpx.Limits(max_connections=None)) as client:
            long = [asyncio.ensure_future(stream(client, gateway, 800)) for _ in range(20)]
            await wait_for_streams(gateway, 20)
            gateway.signal(signal.SIGTERM)
            began_at = time.monotonic()
            while (await client.get(f"{gateway.url}/readyz")).status_code != 503:
                assert time.monotonic() - began_at < 1.0, "readiness must fall within a second"
            served = 0
            while time.monotonic() - began_at < 1.5:  # a balancer that has not heard yet opens fresh connections
                async with httpx.AsyncClient(trust_env=False) as fresh:
                    text = await stream(fresh, gateway, 2)
                    assert text.endswith("data: [DONE]\n\n")
                    served += 1
            assert served > 0
            texts = await asyncio.gather(*long)
        assert all(text.endswith("data: [DONE]\n\n") and '"error"' not in text for text in texts)
        assert all(read_stream(text)[-1]["choices"][0]["finish_reason"] == "length" for text in texts)
        assert await asyncio.to_thread(gateway.process.wait, 20) == 0
        assert time.monotonic() - began_at < 25.0
        with pytest.raises(OSError):  # noqa: PT011 - refused, whatever the loop calls it
            await asyncio.open_connection("127.0.0.1", gateway.port)


async def test_who_keeps_a_connection_is_sent_elsewhere_before_it_is_closed_under_his_hands(tmp_path):
    limits = {"requests_per_worker": 64, "drain_delay_s": 20.0, "grace_s": 30.0}
    with run_worker(tmp_path, "instant") as worker, run_gateway(tmp_path, [worker], limits=limits) as gateway:
        async with httpx.AsyncClient(trust_env=False, base_url=gateway.url, headers=HEADERS) as client:
            body = request_body(2, stream=False)
            answers = [await client.post("/v1/chat/completions", json=body), await client.get("/v1/models")]
            assert ["close" in answer.headers.get("connection", "") for answer in answers] == [False, False]
            gateway.admin("POST", "/admin/v1/drain")
            answers = [await client.post("/v1/chat/completions", json=body) for _ in range(3)]
            answers += [await client.get("/v1/models"), await client.get("/readyz")]
            assert [answer.status_code for answer in answers] == [200, 200, 200, 200, 503]
            assert all(answer.headers["connection"] == "close" for answer in answers)
            assert gateway.admin("GET", "/admin/v1/drain").json()["connections"] == 0
        gateway.signal(signal.SIGTERM)
        gateway.signal(signal.SIGTERM)


async def test_what_outlives_the_grace_gets_an_error_event(tmp_path):
    limits = {"requests_per_worker": 64, "drain_delay_s": 0.0, "grace_s": 0.7}
    with run_worker(tmp_path) as worker, run_gateway(tmp_path, [worker], limits=limits) as gateway:
        async with httpx.AsyncClient(trust_env=False) as client:
            long = await begin(client, gateway, 5000)
            gateway.signal(signal.SIGTERM)
            text = (await long.aread()).decode()
        events = read_stream(text)
        assert events[-1]["error"]["code"] == "draining"
        assert text.endswith("data: [DONE]\n\n")
        assert await asyncio.to_thread(gateway.process.wait, 10) == 0


async def test_a_second_signal_does_not_wait(tmp_path):
    limits = {"requests_per_worker": 64, "drain_delay_s": 30.0, "grace_s": 60.0}
    with run_worker(tmp_path) as worker, run_gateway(tmp_path, [worker], limits=limits) as gateway:
        async with httpx.AsyncClient(trust_env=False) as client:
            long = await begin(client, gateway, 5000)
            gateway.signal(signal.SIGTERM)
            while (await client.get(f"{gateway.url}/readyz")).status_code != 503:
                assert gateway.process.poll() is None
            gateway.signal(signal.SIGINT)
            assert read_stream((await long.aread()).decode())[-1]["error"]["code"] == "draining"
        assert await asyncio.to_thread(gateway.process.wait, 5) == 0


async def test_a_drained_worker_keeps_its_streams_and_gets_no_new_work(tmp_path):
    with (
        run_worker(tmp_path) as one,
        run_worker(tmp_path) as two,
        run_gateway(tmp_path, [one, two]) as gateway,
    ):
        async with httpx.AsyncClient(trust_env=False) as client:
            long = [asyncio.ensure_future(stream(client, gateway, 600)) for _ in range(8)]
            await wait_for_streams(gateway, 8)
            worker_id = f"127.0.0.1:{one.port}"
            held = {one["id"]: one for one in gateway.admin("GET", "/admin/v1/workers").json()["workers"]}
            assert held[worker_id]["in_flight_requests"] > 0
            assert gateway.admin("POST", f"/admin/v1/workers/{worker_id}/drain").json()["draining"] is True
            used = set()
            for _ in range(6):
                answer = await client.post(
                    f"{gateway.url}/v1/chat/completions", json=request_body(2, stream=False), headers=HEADERS
                )
                used.add(answer.headers["x-sluice-worker"])
            assert used == {held[f"127.0.0.1:{two.port}"]["opaque"]}
            assert all('"error"' not in text for text in await asyncio.gather(*long))
            assert gateway.admin("POST", f"/admin/v1/workers/{worker_id}/undrain").json()["draining"] is False
            with contextlib.suppress(KeyError):
                now = {one["id"]: one for one in gateway.admin("GET", "/admin/v1/workers").json()["workers"]}
                assert now[worker_id]["draining"] is False


def run_command(*words: str) -> "subprocess.CompletedProcess[str]":
    """A command as a pod's hook runs it: no shell, nothing on its standard input."""
    return subprocess.run(
        [sys.executable, "-m", "service", *words],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "SLUICE_ADMIN_TOKEN": TOKEN},
    )  # fmt: skip


def test_the_hook_of_a_gateway_returns_at_once_or_after_its_own_bound(tmp_path):
    limits = {"requests_per_worker": 64, "drain_delay_s": 60.0, "grace_s": 90.0}
    with run_worker(tmp_path, "instant") as worker, run_gateway(tmp_path, [worker], limits=limits) as gateway:
        for words in ((), ("--wait-s", "0.2")):
            said = run_command("drain", "--admin", gateway.admin_url, *words)
            assert (said.returncode, said.stdout) == (0, "the gateway is leaving: 0 requests under way\n")
        gateway.signal(signal.SIGTERM)  # the platform's: it hurries nobody
        assert gateway.admin("GET", "/admin/v1/drain").json()["phase"] == "leaving"
        gateway.signal(signal.SIGTERM)
        assert gateway.process.wait(10) == 0


async def test_the_hook_of_a_gateway_may_wait_until_it_is_gone(tmp_path):
    limits = {"requests_per_worker": 64, "drain_delay_s": 0.5, "grace_s": 60.0}
    with run_worker(tmp_path) as worker, run_gateway(tmp_path, [worker], limits=limits) as gateway:
        async with httpx.AsyncClient(trust_env=False) as client:
            long = await begin(client, gateway, 4000)
            waiting = asyncio.create_task(
                asyncio.to_thread(run_command, "drain", "--admin", gateway.admin_url, "--wait-s", "50")
            )
            while (await asyncio.to_thread(gateway.admin, "GET", "/admin/v1/drain")).json()["phase"] == "serving":
                assert not waiting.done()
            text = (await long.aread()).decode()
            assert text.endswith("data: [DONE]\n\n")
            assert '"error"' not in text
        said = await waiting
        assert (said.returncode, said.stdout) == (0, "the gateway is ended: 0 requests under way\n")
        assert await asyncio.to_thread(gateway.process.wait, 10) == 0


def test_waiting_is_for_a_gateway():
    said = run_command("drain", "w-0", "--wait-s", "3")
    assert said.returncode == 2
    assert "sluice worker drain" in said.stderr


async def test_the_hook_of_a_worker_waits_for_its_streams_and_the_engine_ends_the_rest(tmp_path):
    with (
        run_worker(tmp_path, "m3.1-flash", "--shutdown-timeout", "30") as worker,
        run_gateway(tmp_path, [worker]) as gateway,
    ):
        async with httpx.AsyncClient(trust_env=False) as client:
            short = await begin(client, gateway, 300)
            words = ("worker", "drain", "--url", worker.url, "--delay-s", "0")
            said = await asyncio.to_thread(run_command, *words, "--deadline-s", "40")
            assert said.returncode == 0
            assert " is empty after " in said.stdout
            assert (await short.aread()).decode().endswith("data: [DONE]\n\n")
            long = await begin(client, gateway, 4000)
            said = await asyncio.to_thread(run_command, *words, "--deadline-s", "0.5")
            assert said.returncode == 0
            assert " still has 1 requests after " in said.stdout
            worker.signal(signal.SIGTERM)
            text = (await long.aread()).decode()
            assert text.endswith("data: [DONE]\n\n")
            assert '"error"' not in text
        assert await asyncio.to_thread(worker.process.wait, 10) == 0
        said = await asyncio.to_thread(run_command, *words)
        assert said.stdout.endswith("nobody listens there\n")


@contextlib.asynccontextmanager
async def begin_upload(gateway: Process, body: bytes) -> AsyncIterator[Streams]:
    """Half of ``body`` has been sent, and the gateway has begun to take it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nauthorization: Bearer {KEY}\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body[: len(body) // 2])
    await writer.drain()
    try:
        await wait_for_streams(gateway, 1)
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def large_body() -> bytes:
    body = request_body(2, stream=False)
    body["padding"] = "x" * 2_000_000
    return json.dumps(body).encode()


async def test_an_upload_under_way_is_taken_to_its_end_and_served(tmp_path):
    limits = {"requests_per_worker": 64, "drain_delay_s": 0.0, "grace_s": 30.0}
    body = large_body()
    with run_worker(tmp_path, "instant") as worker, run_gateway(tmp_path, [worker], limits=limits) as gateway:
        async with begin_upload(gateway, body) as (reader, writer):
            gateway.signal(signal.SIGTERM)
            await asyncio.sleep(4)
            assert gateway.process.poll() is None
            assert gateway.admin("GET", "/admin/v1/drain").json()["under_way"] == 1
            writer.write(body[len(body) // 2 :])
            answer = await asyncio.wait_for(reader.read(), 15)
            assert answer.startswith(b"HTTP/1.1 200 "), answer[:400]
        assert await asyncio.to_thread(gateway.process.wait, 5) == 0
        assert "client_gone_early" not in gateway.text()


async def test_an_upload_that_outlives_the_grace_is_told_so(tmp_path):
    limits = {"requests_per_worker": 64, "drain_delay_s": 0.0, "grace_s": 5.0}
    with run_worker(tmp_path, "instant") as worker, run_gateway(tmp_path, [worker], limits=limits) as gateway:
        async with begin_upload(gateway, large_body()) as (reader, _):
            gateway.signal(signal.SIGTERM)
            began_at = time.monotonic()
            answer = await asyncio.wait_for(reader.read(), 10)
            assert answer.startswith(b"HTTP/1.1 503 "), answer[:400]
            assert b"retry-after: " in answer
            assert b'"code":"draining"' in answer
            assert time.monotonic() - began_at > 2.0
        assert await asyncio.to_thread(gateway.process.wait, 10) == 0
        assert time.monotonic() - began_at <= 5.0
        assert "client_gone_early" not in gateway.text()


async def test_the_process_is_gone_within_the_grace_whoever_still_reads(tmp_path):
    limits = {"requests_per_worker": 64, "drain_delay_s": 0.0, "grace_s": 6.0, "write_buffer_bytes": 4096}
    with run_worker(tmp_path, "instant") as worker, run_gateway(tmp_path, [worker], limits=limits) as gateway:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", gateway.port))
        body = json.dumps(request_body(100_000)).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nauthorization: Bearer {KEY}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        slow.sendall(head.encode() + body)
        with slow, socket.create_connection(("127.0.0.1", gateway.admin_port)):
            await wait_for_streams(gateway, 1)
            await asyncio.sleep(0.5)
            gateway.signal(signal.SIGTERM)
            began_at = time.monotonic()
            assert await asyncio.to_thread(gateway.process.wait, 15) == 0
            took_s = time.monotonic() - began_at
        assert 2.0 < took_s <= 6.0, "the stream has most of the grace, and all of it is enough for the process"
