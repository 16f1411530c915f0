"""Every fault the emulated worker offers, as a client meets it."""

import asyncio
import json
from pathlib import Path

import pytest

from service.emulator.config import EmulatorConfig
from service.emulator.faults import FaultKind
from service.emulator.server import start_worker
from tests.support.raw_client import RawClient, chat, until

pytestmark = pytest.mark.integration
CHAT = "/v1/chat/completions"
QUIET_S = 0.1
"""How long nothing must come for a stall to count as one."""


@pytest.fixture
async def running():
    async with await start_worker(EmulatorConfig(port=0, profile="instant")) as worker:
        yield worker


@pytest.fixture
async def client(running):
    async with await RawClient.connect(running.port) as one:
        yield one


def ask(client, fault, **fields):
    client.send("POST", CHAT, chat(**fields), [f"x-emulator-fault: {fault}"])


async def is_quiet(client):
    try:
        await asyncio.wait_for(client.reader.readexactly(1), QUIET_S)
    except TimeoutError:
        return True
    return False


async def set_faults(running, *faults):
    async with await RawClient.connect(running.port) as one:
        return await one.ask("POST", "/emulator/faults", {"faults": list(faults)})


async def test_stall_before_the_first_token(running, client):
    ask(client, "stall-first", stream=True)
    assert (await client.head())[0] == 200
    assert await is_quiet(client)
    assert len(running.worker.generations) == 1


async def test_stall_of_a_plain_answer(client):
    ask(client, "stall-first")
    assert await is_quiet(client)


async def test_stall_after_some_tokens_leaves_the_socket_open(running, client):
    ask(client, "stall;after=3", stream=True, max_tokens=50)
    await client.head()
    said = ""
    while len(said) < 3 * 4:
        data = json.loads((await client.chunk())[6:])
        said += data["choices"][0]["delta"]["content"]
    assert len(said) == 12
    assert await is_quiet(client)
    client.writer.close()
    await until(lambda: not running.worker.generations)


@pytest.mark.parametrize("kind", ["die", "cut"])
async def test_death_in_the_middle_of_a_stream(running, client, kind):
    ask(client, f"{kind};after=3", stream=True, max_tokens=500)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await client.answer()
    await until(lambda: running.worker.engine.stats().running == 0)
    assert not running.worker.generations


@pytest.mark.parametrize("kind", ["die", "cut"])
async def test_death_before_the_first_byte(client, kind):
    ask(client, kind)
    with pytest.raises(ConnectionError):
        await client.head()


async def test_death_right_after_the_head(running, client):
    ask(client, "cut;after=0", stream=True, max_tokens=500)
    await client.head()
    assert await client.closed() == b""
    await until(lambda: running.worker.engine.stats().running == 0)


@pytest.mark.parametrize(
    ("fault", "status", "header"),
    [("503", 503, None), ("429;delay_s=7", 429, ("retry-after", "7")), ("400", 400, None), ("502", 502, None)],
)
async def test_answers_that_are_errors(client, fault, status, header):
    ask(client, fault)
    answer = await client.answer()
    assert answer.status == status
    if header:
        assert answer.headers[header[0]] == header[1]
    if status == 502:
        assert answer.headers["content-type"] == "text/html"


async def test_garbage(client):
    ask(client, "garbage")
    assert not (await client.closed()).startswith(b"HTTP")


async def test_unknown_faults_are_refused(running, client):
    ask(client, "zap")
    assert (await client.answer()).status == 400
    assert (await set_faults(running, {"kind": "zap"})).status == 400


async def test_abort_finish_has_no_tokens(client):
    ask(client, "abort-finish", stream=True, stream_options={"include_usage": True})
    events = (await client.answer()).events()
    assert [event["choices"][0]["finish_reason"] for event in events if event["choices"]] == [None, "abort"]
    assert events[-1]["usage"]["completion_tokens"] == 0
    ask(client, "abort-finish")
    answer = (await client.answer()).json()
    assert answer["choices"][0]["finish_reason"] == "abort"


async def test_error_event_in_the_stream(client):
    ask(client, "error-event;after=2", stream=True, max_tokens=50)
    body = (await client.answer()).body
    assert body.endswith(b"data: [DONE]\n\n")
    assert b'data: {"error": {"message": "Internal server error"' in body


async def test_flood_stops_while_the_reader_does(running, client):
    ask(client, "flood", stream=True)
    await client.head()
    await until(lambda: any(connection.paused for connection in running.worker.connections))
    log = running.worker.log.show()["requests"]
    assert log[0]["chunks"] > 100
    for _ in range(log[0]["chunks"]):
        await client.chunk()
    assert running.worker.log.show()["requests"][0]["chunks"] > log[0]["chunks"]


async def test_a_bounded_flood_ends(running, client):
    ask(client, "flood;after=200", stream=True)
    answer = await client.answer()
    assert len(answer.chunks) == 201
    assert not running.worker.generations
    assert answer.body.endswith(b"[DONE]\n\n")


async def test_connection_tokens(client):
    ask(client, "connection-tokens", stream=True)
    headers = (await client.answer()).headers
    assert headers["connection"] == "keep-alive, x-hop"
    assert "x-hop" in headers


@pytest.mark.parametrize(
    ("kind", "mark"),
    [
        ("sse-crlf", b"\r\n\r\n"),
        ("sse-cr", b"\r\r"),
        ("sse-comments", b": note\ndata: "),
        ("sse-multiline", b',\ndata: "choices"'),
        ("sse-bom", b"\xef\xbb\xbfdata"),
        ("odd-fields", b'"refusal":null'),
    ],
)
async def test_event_forms(client, kind, mark):
    ask(client, kind, stream=True)
    body = (await client.answer()).body
    assert mark in body
    assert body.count(b"\xef\xbb\xbf") <= 1


async def test_chunks_of_one_byte(client):
    ask(client, "sse-bytes", stream=True, max_tokens=2)
    answer = await client.answer()
    assert {len(chunk) for chunk in answer.chunks} == {1}
    assert answer.body.endswith(b"data: [DONE]\n\n")


async def test_worker_faults_at_run_time(running, client):
    shown = await set_faults(running, {"kind": "503", "path": CHAT, "times": 1})
    assert shown.json()["faults"][0]["met"] == 0
    assert (await client.ask("POST", CHAT, chat())).status == 503
    assert (await client.ask("POST", CHAT, chat())).status == 200
    assert (await client.ask("GET", "/emulator/faults")).json()["faults"][0]["met"] == 1


async def test_health_faults(running, client):
    await set_faults(running, {"kind": "delay-health", "delay_s": 0.05})
    assert (await client.ask("GET", "/health")).status == 200
    await set_faults(running, {"kind": "engine-dead"})
    assert (await client.ask("GET", "/health")).status == 503
    assert (await client.ask("POST", CHAT, chat())).status == 500
    await set_faults(running, {"kind": "freeze-health"})
    assert (await client.ask("POST", CHAT, chat())).status == 200
    client.send("GET", "/health")
    assert await is_quiet(client)


async def test_close_at_reuse(running, client):
    await set_faults(running, {"kind": "close-at-reuse"})
    assert (await client.ask("GET", "/version")).status == 200
    client.send("GET", "/version")
    with pytest.raises(ConnectionError):
        await client.head()


async def test_a_frozen_engine_accepts_and_serves_later(running, client):
    await set_faults(running, {"kind": "freeze-engine"})
    client.send("POST", CHAT, chat(stream=True))
    await client.head()
    assert await is_quiet(client)
    assert running.worker.engine.stats().waiting == 1
    await set_faults(running)
    chunks = []
    while data := await client.chunk():
        chunks.append(data)
    assert chunks[-1] == b"data: [DONE]\n\n"


async def test_slow_lengthens_steps_while_its_request_runs(running, client):
    before = running.worker.loop.time()
    ask(client, "slow;factor=100", max_tokens=8)
    assert (await client.answer()).status == 200
    assert running.worker.loop.time() - before > 8 * 0.0002 * 100 * 0.9
    before = running.worker.loop.time()
    assert (await client.ask("POST", CHAT, chat())).status == 200
    assert running.worker.loop.time() - before < 8 * 0.0002 * 100


async def test_lost_blocks_show_in_the_metrics(running, client):
    await set_faults(running, {"kind": "lose-kv", "factor": 0.5})
    stats = running.worker.engine.stats()
    assert stats.kv_blocks_total == running.worker.profile.kv_blocks / 2


async def test_a_request_that_cannot_fit_is_aborted_by_the_engine():
    config = EmulatorConfig(port=0, profile="instant", kv_blocks=2)
    async with await start_worker(config) as worker, await RawClient.connect(worker.port) as one:
        answer = await one.ask("POST", "/v1/completions", {"prompt": "x" * 4000, "max_tokens": 2})
        assert answer.json()["choices"][0]["finish_reason"] == "abort"


async def test_faults_from_the_command_line():
    config = EmulatorConfig(port=0, profile="instant", fault="503;times=1")
    async with await start_worker(config) as worker, await RawClient.connect(worker.port) as one:
        assert (await one.ask("POST", CHAT, chat())).status == 503
        assert (await one.ask("POST", CHAT, chat())).status == 200


def test_every_fault_is_met_in_this_file():
    text = Path(__file__).read_text(encoding="utf-8")
    untested = {str(kind) for kind in FaultKind if f'"{kind}' not in text} - {"accept", "die", "cut", "stall"}
    assert not untested
