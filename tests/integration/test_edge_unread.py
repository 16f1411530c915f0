"""A client that leaves whole answers unread: nothing more is begun for it, little is kept, and not for ever."""

import asyncio
import json
import socket

import pytest

from service.gateway.edge import EdgeConfig
from service.gateway.server import EdgeProtocol
from service.runtime.limits import RelayConfig
from tests.support.gateway import KEY, MODEL, running_gateway
from tests.support.raw_client import RawClient, chat, until
from tests.support.written_worker import DONE, LAST, ScriptedWorker, chunk, delta, event, reply, stream_head

pytestmark = pytest.mark.integration
CHAT = "/v1/chat/completions"
AUTH = (f"authorization: Bearer {KEY}",)
PIECE = chunk(event(delta("z" * 8000)))
PIECES = 2000
ANSWER = 60_000
KEPT_MAX = 512 * 1024


def play(request):
    if json.loads(request.body).get("stream"):
        return [stream_head(), *[PIECE] * PIECES, chunk(DONE), LAST]
    return [reply(b"w" * ANSWER)]


async def narrow(port):
    """A client whose own kernel takes little."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    client = RawClient(*await asyncio.open_connection(sock=sock, limit=1024))
    client.writer.transport.pause_reading()
    return client


async def quiet(worker, gateway):
    """Until nothing more happens; the largest number of bytes that were kept for the client."""
    (connection,) = gateway.connections
    kept, last, since = 0, None, 0
    async with asyncio.timeout(20):
        while since < 30:
            size = connection.transport.get_write_buffer_size()
            kept = max(kept, size)
            now = (len(worker.received), size, connection.flow.write_paused)
            last, since = now, since + 1 if now == last else 0
            await asyncio.sleep(0.01)
    return kept


async def leave_unread(pipelined, answers=150):
    """150 whole answers unread, then a stream: what is kept, and whether all comes once the client reads."""
    async with ScriptedWorker(play) as worker, running_gateway([worker.port]) as gateway:
        client = await narrow(gateway.port)
        async with client:
            for number in range(answers):
                client.send("POST", CHAT, chat(model=MODEL), AUTH)
                if not pipelined:
                    await client.writer.drain()
                    (connection,) = gateway.connections
                    await until(
                        lambda: connection.flow.write_paused or len(gateway.ledger.settlements) > number  # noqa: B023
                    )
            client.send("POST", CHAT, chat(model=MODEL, stream=True), AUTH)
            kept = await quiet(worker, gateway)
            begun = len(worker.received)
            client.writer.transport.resume_reading()
            for _ in range(answers):
                assert len((await client.answer()).body) == ANSWER
            assert len((await client.answer()).body) > PIECES * 8000
            assert (await client.ask("GET", "/healthz")).status == 200
        await gateway.settled(answers + 1)
        gateway.check_nothing_is_held()
        assert set(gateway.ledger.outcomes) == {"completed"}
        return kept, begun


@pytest.mark.parametrize("pipelined", [False, True])
async def test_unread_answers_bound_what_is_kept_and_what_is_begun(pipelined):
    kept, begun = await leave_unread(pipelined)
    assert kept < KEPT_MAX
    assert begun < 100


async def test_it_is_seen_to_fail_with_an_edge_that_begins_whatever_it_reads(monkeypatch):
    monkeypatch.setattr(EdgeProtocol, "_hold", EdgeProtocol._go_on)
    monkeypatch.setattr("service.gateway.exchange.Exchange.paused", False)

    def begin(self, cycle):
        existing, self.cycle = self.cycle, cycle
        if existing is not None and not existing.response_complete:
            self.pipeline.appendleft((cycle, self.app))

    def complete(self):
        self._in_head, self._due_at, self.cycle.more_body = True, None, False
        if not self._waits(self.cycle):
            self._corridor.on_request(self.cycle)

    monkeypatch.setattr(EdgeProtocol, "_follow", begin)
    monkeypatch.setattr(EdgeProtocol, "on_message_complete", complete)
    monkeypatch.setattr(EdgeProtocol, "_serve_waited", lambda self, cycle: self._corridor.on_request(cycle))
    async with ScriptedWorker(play) as worker, running_gateway([worker.port]) as gateway:
        client = await narrow(gateway.port)
        for _ in range(150):
            client.send("POST", CHAT, chat(model=MODEL), AUTH)
        client.send("POST", CHAT, chat(model=MODEL, stream=True), AUTH)
        kept = await quiet(worker, gateway)
        client.writer.transport.abort()
    assert kept > 4 * KEPT_MAX


@pytest.mark.parametrize("last", [(), ("connection: close",)], ids=["kept", "closing"])
async def test_a_client_that_never_reads_its_answers_is_closed_in_the_end(last):
    limits = RelayConfig(client_stall_s=0.4)
    async with ScriptedWorker(play) as worker, running_gateway([worker.port], relay=limits) as gateway:
        client = await narrow(gateway.port)
        (connection,) = gateway.connections
        while not connection.transport.get_write_buffer_size():
            client.send("POST", CHAT, chat(model=MODEL), AUTH)
            await client.writer.drain()
            count = len(gateway.ledger.settlements)
            await until(lambda: len(gateway.ledger.settlements) > count)  # noqa: B023
        if last:
            client.send("POST", CHAT, chat(model=MODEL), (*AUTH, *last))
            await until(connection.transport.is_closing)
        else:
            for _ in range(10):
                client.send("POST", CHAT, chat(model=MODEL), AUTH)
            await until(lambda: connection.flow.write_paused)
        await until(lambda: not gateway.connections, 3.0)
        client.writer.transport.abort()
        gateway.check_nothing_is_held()


async def test_a_client_that_reads_slowly_is_kept():
    limits = RelayConfig(client_stall_s=0.4)
    edge = EdgeConfig(keep_alive_s=0.3, head_timeout_s=0.3, body_timeout_s=0.3)
    async with ScriptedWorker(play) as worker, running_gateway([worker.port], relay=limits, edge=edge) as gateway:
        client = await narrow(gateway.port)
        async with client:
            for _ in range(150):
                client.send("POST", CHAT, chat(model=MODEL), AUTH)
            (connection,) = gateway.connections
            await until(lambda: connection.flow.write_paused)
            for _ in range(6):
                await asyncio.sleep(0.2)
                client.writer.transport.resume_reading()
                for _ in range(25):
                    assert len((await client.answer()).body) == ANSWER
                client.writer.transport.pause_reading()
        await gateway.settled(150)


async def test_what_is_not_inference_waits_too():
    async with ScriptedWorker(play) as worker, running_gateway([worker.port]) as gateway:
        client = await narrow(gateway.port)
        async with client:
            for _ in range(150):
                client.send("POST", CHAT, chat(model=MODEL), AUTH)
            (connection,) = gateway.connections
            await until(lambda: connection.flow.write_paused)
            client.send("GET", "/v1/models", b"", AUTH)
            await quiet(worker, gateway)
            client.writer.transport.resume_reading()
            for _ in range(150):
                await client.answer()
            assert (await client.answer()).json()["object"] == "list"
