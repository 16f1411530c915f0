"""The open-loop generator on real sockets: it keeps its own time, whatever the server does."""

import asyncio
import json
import subprocess
import sys
import time

import pytest
import uvloop

from loadtests.live.child import choose_free_ports, run_child, wait_until_answering
from loadtests.live.open_loop import Plan, run_plan
from loadtests.live.peers import REPOSITORY
from loadtests.live.traffic import Mix, Schedule, Shape, Targets
from loadtests.live.verdicts import Sighting

pytestmark = pytest.mark.integration

FIRST_PORT = 23800
MIX = Mix(
    "small",
    1,
    (Targets("hi", ((4096, 1.0),), 0.05), Targets("lo", ((4096, 5.0),), 0.1)),
    (Shape("hi", "hi", 0.5, 16, 4), Shape("lo", "lo", 0.5, 16, 8)),
)
EVENTS = (
    b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":8}}\n\ndata: [DONE]\n\n'
)
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: " + str(len(EVENTS)).encode() + b"\r\n\r\n" + EVENTS


def read_rows(result):
    return [Sighting(*row) for row in result["rows"]]


@pytest.fixture
def emulator(tmp_path):
    (port,) = choose_free_ports(FIRST_PORT, 1)
    argv = [sys.executable, "-m", "service.emulator", "--port", str(port), "--profile", "instant"]
    with run_child(argv, tmp_path / "log", cwd=REPOSITORY) as process:
        wait_until_answering(process, f"http://127.0.0.1:{port}/health", tmp_path / "log", 20, "key")
        yield port


def test_a_small_load_on_one_worker_is_all_good(emulator):
    plan = Plan((emulator,), MIX, Schedule(40.0, 1.5, 0.3, 0.2), keep_rows=True)
    done = subprocess.run(
        [sys.executable, "-m", "loadtests.live.open_loop"],
        input=plan.dump(),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    result = json.loads(done.stdout)
    assert result["offered"] < result["sent"] == len(result["rows"])
    assert result["tiers"]["hi"]["attainment"] == result["tiers"]["lo"]["attainment"] == 1.0
    assert result["goodput_rps"] == pytest.approx(result["offered"] / 1.5)
    rows = read_rows(result)
    assert all(row.tokens == MIX.shapes[row.shape].tokens for row in rows if row.counted)
    assert all(row.at_s <= row.first_s <= row.last_s <= row.end_s for row in rows if row.counted)
    assert result["client"]["send_lag_ms"]["p99"] is not None


def test_a_closed_loop_finds_a_rate(emulator):
    plan = Plan((emulator,), MIX, Schedule(1.0, 0.8, 0.3), concurrency=4)
    closed = uvloop.run(run_plan(plan))["closed"]
    assert closed["goodput_rps"] > 20.0
    assert closed["good_ratio"] == 1.0


def test_refusals_and_failures_are_told_apart(tmp_path):
    (port,) = choose_free_ports(FIRST_PORT, 1)
    argv = [sys.executable, "-m", "service.emulator", "--port", str(port), "--profile", "instant"]
    with run_child([*argv, "--fault", "429;delay_s=7"], tmp_path / "log", cwd=REPOSITORY) as process:
        wait_until_answering(process, f"http://127.0.0.1:{port}/health", tmp_path / "log", 20, "key")
        result = uvloop.run(run_plan(Plan((port,), MIX, Schedule(40.0, 0.5))))
    for tier in result["tiers"].values():
        assert tier["verdicts"] == {"refused": tier["offered"]}
        assert tier["retry_after_s"]["max"] == 7
    result = uvloop.run(run_plan(Plan((port,), MIX, Schedule(40.0, 0.5))))
    for tier in result["tiers"].values():
        assert tier["verdicts"] == {"failed": tier["offered"]}


async def offer_to(behaviour, schedule, **changes):
    """Offers to a server of the test's own; gives the result and when each request came in."""
    came_at = []
    writers = []

    async def serve(reader, writer):
        writers.append(writer)
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                await reader.readexactly(length)
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            came_at.append(asyncio.get_running_loop().time())
            await behaviour(writer, len(came_at))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=512)
    port = server.sockets[0].getsockname()[1]
    try:
        return await run_plan(Plan((port,), MIX, schedule, keep_rows=True, **changes)), came_at
    finally:
        server.close()
        for writer in writers:
            writer.close()
        await asyncio.sleep(0)


async def test_a_server_that_stalls_does_not_delay_later_sends():
    async def never(writer, number):
        await asyncio.Event().wait()

    result, came_at = await offer_to(never, Schedule(100.0, 1.0), limit_s=1.2)
    rows = read_rows(result)
    assert len(came_at) == len(rows) > 60
    assert result["client"]["connections_peak"] == len(rows)
    gaps = [round(row.at_s - rows[0].at_s, 3) for row in rows]
    assert all(abs((at - came_at[0]) - gap) < 0.25 for at, gap in zip(came_at, gaps, strict=True))
    assert [tier["good"] for tier in result["tiers"].values()] == [0, 0]


async def test_latency_counts_from_the_intended_moment_even_when_the_client_itself_was_late():
    async def answer(writer, number):
        if number == 10:
            time.sleep(1.3)  # noqa: ASYNC251 - the client shares this loop: it is held up, and must own up to it
        writer.write(ANSWER)

    result, _ = await offer_to(answer, Schedule(50.0, 2.0))
    rows = read_rows(result)
    held = [row for row in rows if row.sent_s - row.at_s > 1.0]
    assert held
    assert all(row.first_s - row.sent_s < 0.5 for row in held)  # by the clock of its sending it would look fine
    late = [row for row in rows if row.first_s - row.at_s > 1.0]
    assert len(late) >= len(held)
    assert result["tiers"]["hi"]["verdicts"]["late"] == sum(row.shape == 0 for row in late) > 0
    assert result["client"]["send_lag_ms"]["max"] > 1000.0
    assert result["client"]["lag_ms"]["max"] > 1000.0


async def test_connections_are_bounded():
    async def never(writer, number):
        await asyncio.Event().wait()

    result, came_at = await offer_to(never, Schedule(100.0, 0.5), limit_s=0.6, connections_max=5)
    assert len(came_at) == 5
    assert sum(tier["failures"].get("no connection left", 0) for tier in result["tiers"].values()) > 10
