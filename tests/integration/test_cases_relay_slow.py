"""Back-pressure: a client that does not read holds its worker back, costs little memory, and is not waited for long."""
# ruff: noqa: SIM117 - a worker, its gateway, a client: each opened in front of the one before

import asyncio
import socket
import subprocess
import sys
import textwrap

import pytest

from service.runtime.journey import Journey
from service.runtime.limits import RelayConfig
from tests.support.gateway import KEY, MODEL, running_gateway
from tests.support.raw_client import RawClient, until
from tests.support.scripted_worker import ROLE, STOP, ScriptedWorker, drip, event, serve, token

pytestmark = pytest.mark.integration
PATH = "/v1/chat/completions"
AUTH = [f"authorization: Bearer {KEY}"]
STREAM = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 9}
PIECE = event(token("z" * 900))
BUFFER_MAX = 512 * 1024


def flood(pieces):
    """``pieces`` events as fast as the socket takes them; keeps count of what it got rid of."""

    async def script(seat):
        if b'"flood"' not in seat.body:
            await (drip if b'"drip"' in seat.body else serve)(seat)
            return
        seat.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        seat.begin()
        seat.say(ROLE)
        for number in range(pieces):
            seat.chunk(PIECE)
            seat.sent = number
            await seat.writer.drain()
        seat.say(STOP)
        seat.done()

    return script


async def slow_reader(pieces=20_000, **limits):
    """A client that does not read for a while, then reads all."""
    async with ScriptedWorker(flood(pieces)) as worker:
        async with running_gateway([worker.port], relay=RelayConfig(**limits)) as gateway:
            async with (
                await RawClient.connect(gateway.port, limit=1024) as slow,
                await RawClient.connect(gateway.port) as other,
            ):
                slow.send("POST", PATH, STREAM | {"user": "flood"}, AUTH)
                seat = await worker.seat()
                (connection,) = [one for one in gateway.connections if one.cycle is not None]
                await until(lambda: connection.flow.write_paused)
                sent = -1
                while sent != seat.sent:  # until nothing moves any more
                    sent = seat.sent
                    assert (await other.ask("POST", PATH, STREAM, AUTH)).status == 200
                    await asyncio.sleep(0.1)
                assert sent < pieces - 1
                assert connection.transport.get_write_buffer_size() <= BUFFER_MAX
                if limits:
                    return gateway, connection, seat, slow
                answer = await slow.answer()
                assert answer.body == event(ROLE) + PIECE * pieces + event(STOP) + b"data: [DONE]\n\n"
            await until(lambda: gateway.ledger.outcomes.count("completed") == len(gateway.ledger.outcomes))
            gateway.check_nothing_is_held()
    return None


async def test_a_slow_reader_holds_its_worker_back_and_loses_nothing():
    await slow_reader()


async def test_a_slow_reader_is_seen_to_fill_the_memory_where_nobody_listens(monkeypatch):
    monkeypatch.setattr(Journey, "on_client_paused", lambda self: None)
    with pytest.raises(AssertionError):
        await slow_reader()


async def test_a_client_that_stalls_is_cut_and_its_worker_freed():
    async with ScriptedWorker(flood(20_000)) as worker:
        async with running_gateway([worker.port], relay=RelayConfig(client_stall_s=0.3)) as gateway:
            async with (
                await RawClient.connect(gateway.port, limit=1024) as slow,
                await RawClient.connect(gateway.port) as good,
            ):
                good.send("POST", PATH, STREAM | {"user": "drip"}, AUTH)
                await good.head()
                slow.send("POST", PATH, STREAM | {"user": "flood"}, AUTH)
                seat = await worker.seat(1)
                await gateway.settled(1)
                assert gateway.ledger.outcomes == ["client_stalled"]
                await asyncio.wait_for(seat.closed.wait(), 2.0)
                for _ in range(10):
                    assert await good.chunk()
                settlement = gateway.ledger.settlements[0]
                assert settlement.output_tokens > 0
                assert settlement.output_estimated
            await gateway.settled(2)
            gateway.check_nothing_is_held()


async def test_a_connection_that_was_paused_at_its_last_byte_is_read_again():
    """The last piece fills the client's buffer, so the worker's connection is idle and paused at once."""

    async def script(seat):
        if len(worker.seats) > 1:
            await serve(seat)
            return
        seat.json(200, {"text": "x" * 6_000_000})

    async with ScriptedWorker(script) as worker, running_gateway([worker.port]) as gateway:
        async with (
            await RawClient.connect(gateway.port, limit=1024) as slow,
            await RawClient.connect(gateway.port) as other,
        ):
            whole = STREAM | {"stream": False}
            slow.send("POST", PATH, whole, AUTH)
            await worker.seat()
            await asyncio.sleep(0.2)
            while True:  # read by hand, so that the client stays behind to the last byte
                try:
                    async with asyncio.timeout(0.3):
                        if not await slow.reader.read(65536):
                            break
                except TimeoutError:
                    break
            for _ in range(3):
                assert (await asyncio.wait_for(other.ask("POST", PATH, whole, AUTH), 2.0)).status == 200


async def connect_narrow(port):
    """A client whose own kernel takes little, so that fifty do not fill the machine instead of the gateway."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    return RawClient(*await asyncio.open_connection(sock=sock, limit=1024))


CHILD = """
import asyncio, os, sys
from tests.integration.test_cases_relay_slow import *

def rss():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

async def main(worker_port, count):
    async with running_gateway([worker_port], relay=RelayConfig(client_stall_s=60.0)) as gateway:
        print(gateway.port, flush=True)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, sys.stdin.readline)
        before = rss()
        print("ready", flush=True)
        await loop.run_in_executor(None, sys.stdin.readline)
        sizes = [one.transport.get_write_buffer_size() for one in gateway.connections]
        print((rss() - before) // count, max(sizes), len(sizes), flush=True)
        await loop.run_in_executor(None, sys.stdin.readline)

asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
"""


async def test_memory_of_fifty_slow_readers():
    count = 50
    async with ScriptedWorker(flood(14_000)) as worker:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            textwrap.dedent(CHILD),
            str(worker.port),
            str(count),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            port = int(await process.stdout.readline())
            async with await RawClient.connect(port) as warm:
                assert (await warm.ask("POST", PATH, STREAM, AUTH)).status == 200
            process.stdin.write(b"\n")
            assert await process.stdout.readline() == b"ready\n"
            clients = [await connect_narrow(port) for _ in range(count)]
            for client in clients:
                client.send("POST", PATH, STREAM | {"user": "flood"}, AUTH)
            await worker.seat(count)
            sent = None
            while sent != (now := [getattr(seat, "sent", 0) for seat in worker.seats[1:]]):
                sent = now
                await asyncio.sleep(0.5)
            assert max(sent) < 13_999
            process.stdin.write(b"\n")
            each, largest, connections = map(int, (await process.stdout.readline()).split())
            assert connections == count
            assert largest <= BUFFER_MAX
            assert each <= BUFFER_MAX
            for client in clients:
                client.writer.transport.abort()
        finally:
            process.kill()
            await process.wait()
