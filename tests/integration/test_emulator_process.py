"""The emulated worker as a process: start, SIGTERM with and without draining, the command of the project."""

import asyncio
import signal
import sys

import pytest
import typer
from typer.testing import CliRunner

from service.cli import emulate as command
from service.emulator.config import EmulatorConfig
from service.emulator.server import serve, start_worker
from tests.support.raw_client import RawClient, chat, until

pytestmark = pytest.mark.integration
CHAT = "/v1/chat/completions"


async def start_process(*options):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "service.emulator", "--port", "0", *options, stdout=asyncio.subprocess.PIPE
    )
    line = (await asyncio.wait_for(process.stdout.readline(), 20)).decode()
    assert line.startswith("emulated worker ready: http://127.0.0.1:")
    return process, int(line.split()[3].rpartition(":")[2])


async def test_sigterm_cuts_what_is_in_flight_by_default():
    process, port = await start_process("--profile", "cpu-small")
    async with await RawClient.connect(port) as client:
        client.send("POST", CHAT, chat(stream=True, max_tokens=3000))
        await client.head()
        await client.chunk()
        process.send_signal(signal.SIGTERM)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await client.rest()
    assert await asyncio.wait_for(process.wait(), 10) == 0


async def test_sigterm_with_a_timeout_lets_the_stream_finish():
    process, port = await start_process("--profile", "cpu-small", "--shutdown-timeout", "20")
    async with await RawClient.connect(port) as client:
        client.send("POST", CHAT, chat(stream=True, max_tokens=200))
        await client.head()
        await client.chunk()
        process.send_signal(signal.SIGTERM)
        last = b""
        while data := await client.chunk():
            last = data
        assert last == b"data: [DONE]\n\n"
    assert await asyncio.wait_for(process.wait(), 10) == 0


async def test_a_second_signal_cuts():
    process, port = await start_process("--profile", "cpu-small", "--shutdown-timeout", "60")
    async with await RawClient.connect(port) as client:
        client.send("POST", CHAT, chat(stream=True, max_tokens=3500))
        await client.head()
        process.send_signal(signal.SIGINT)
        async with await RawClient.connect(port) as other:
            await until(lambda: True)
            while (await other.ask("POST", CHAT, chat())).status != 500:
                pass
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 10) == 0


@pytest.mark.parametrize("version", ["0.32", "0.33"])
async def test_requests_while_draining(version):
    config = EmulatorConfig(port=0, profile="cpu-small", shutdown_timeout=20, engine_version=version)
    running = await start_worker(config)
    async with await RawClient.connect(running.port) as busy, await RawClient.connect(running.port) as client:
        busy.send("POST", CHAT, chat(stream=True, max_tokens=100))
        await busy.head()
        stopping = asyncio.ensure_future(running.stop())
        await until(lambda: running.worker.draining)
        answer = await client.ask("POST", CHAT, chat())
        health = await client.ask("GET", "/health")
        assert health.status == 200
        if version == "0.32":
            assert answer.status == 500
            assert answer.json()["error"]["message"] == "cannot schedule new futures after shutdown"
        else:
            assert answer.status == 200
            assert answer.json()["choices"][0]["finish_reason"] == "abort"
            assert answer.json()["usage"]["completion_tokens"] == 0
        while await busy.chunk():
            pass
        await asyncio.wait_for(stopping, 10)


async def test_a_signal_ends_a_delayed_start(capsys):
    serving = asyncio.ensure_future(serve(EmulatorConfig(port=0, profile="instant", startup_delay=60)))
    await asyncio.wait([serving], timeout=0.05)
    signal.raise_signal(signal.SIGTERM)
    await asyncio.wait_for(serving, 10)
    assert "ready" not in capsys.readouterr().out


async def test_serve_runs_until_a_signal(capsys):
    serving = asyncio.ensure_future(serve(EmulatorConfig(port=0, profile="instant", startup_delay=0.01)))
    out = ""

    def is_ready():
        nonlocal out
        out += capsys.readouterr().out
        return "ready" in out

    await until(is_ready)
    signal.raise_signal(signal.SIGTERM)
    await asyncio.wait_for(serving, 10)
    assert "model=MiniMax-M3.1-Flash" in out


def build_app():
    app = typer.Typer()
    app.command()(command.emulate)
    return app


def test_the_command_shows_every_option():
    shown = CliRunner().invoke(build_app(), ["--help"], terminal_width=200)
    assert shown.exit_code == 0
    for name in ("--port", "--profile", "--shutdown-timeout", "--fault", "--enable-per-request-metrics"):
        assert name in shown.output


def test_the_command_runs_the_worker_and_refuses_bad_options(monkeypatch):
    seen = []
    monkeypatch.setattr(command, "run", seen.append)
    done = CliRunner().invoke(build_app(), ["--port", "0", "--profile", "instant", "--enable-prompt-tokens-details"])
    assert done.exit_code == 0, done.output
    assert seen == [EmulatorConfig(port=0, profile="instant", enable_prompt_tokens_details=True)]
    refused = CliRunner().invoke(build_app(), ["--profile", "nope", "--port", "99999"])
    assert refused.exit_code == 2
    assert "profile" in refused.output
    assert "port" in refused.output
