"""Connections to a worker and the calls on them, between a transport and a sink made of nothing."""

import asyncio
import gc
from ssl import CERT_REQUIRED

import pytest

from service.domain.event import FailureCause
from service.workers.addresses import WorkerAddress
from service.workers.call import PooledCall
from service.workers.client import WorkerConnection
from service.workers.lane import Lane, PoolConfig, build_worker_tls
from service.workers.pool import WorkerPool
from tests.support.loop import FakeLoop

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


class Transport:
    """A socket that keeps what is written."""

    def __init__(self):
        self.sent = b""
        self.closing = False
        self.reading = True

    def write(self, data):
        self.sent += data

    def writelines(self, parts):
        self.sent += b"".join(parts)

    def is_closing(self):
        return self.closing

    def abort(self):
        self.closing = True

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True


class Sink:
    """Writes down what it is told; ``fails`` names what raises."""

    def __init__(self, fails=None, then=None):
        self.log = []
        self.fails = fails
        self.then = then

    def on_head(self, status, headers):
        self.log.append(status)
        if self.fails == "head":
            raise RuntimeError("injected")

    def on_body(self, data):
        self.log.append(data)
        if self.fails == "body":
            raise RuntimeError("injected")

    def on_end(self):
        self.log.append("end")
        if self.then is not None:
            self.then()

    def on_failure(self, cause):
        self.log.append(cause)

    def on_fault(self, error):
        self.log.append(str(error))


class Stand:
    """A pool with one worker, whose connections are made by hand."""

    def __init__(self, **config):
        self.clock = FakeLoop()
        self.turns = []
        self.pool = WorkerPool(
            PoolConfig(**config), self.clock, self.clock.now, pace=lambda _, step: self.turns.append(step)
        )
        self.pool.add("w", WorkerAddress("w", "127.0.0.1", 1, False))
        self.lane = self.pool._lanes["w"]

    def connect(self, used=True):
        connection, transport = WorkerConnection(self.lane), Transport()
        connection.connection_made(transport)
        connection.answered_once = used
        self.lane.freed(connection)
        return connection, transport

    def open(self, sink, body=(b"{}",)):
        return self.pool.open("w", b"POST /x", b"a: b\r\n\r\n", body, sink)


@pytest.fixture
def stand():
    return Stand()


def test_one_exchange_and_the_connection_is_free_before_its_sink_hears_of_the_end(stand):
    connection, transport = stand.connect()
    idle = []
    sink = Sink(then=lambda: idle.append(len(stand.lane.idle)))
    stand.open(sink)
    assert transport.sent == b"POST /x HTTP/1.1\r\nhost: 127.0.0.1:1\r\na: b\r\n\r\n{}"
    assert (stand.pool.in_flight("w"), stand.pool.last_byte_at("w")) == (1, None)
    connection.data_received(OK)
    assert (sink.log, idle) == ([200, b"{}", "end"], [1])
    assert stand.pool.in_flight("w") == 0
    assert stand.pool.last_byte_at("w") == stand.clock.moment
    stand.clock.moment += 1
    assert stand.pool.last_byte_at("w") == 0.0


def test_a_body_in_small_parts_is_written_in_one_go(stand):
    connection, transport = stand.connect()
    stand.open(Sink(), [b"a", memoryview(b"b")])
    stand.turns.pop()()
    assert transport.sent.endswith(b"\r\n\r\nab")
    assert not stand.turns
    connection.data_received(OK)
    assert connection.usable


def test_a_large_body_goes_in_pieces_as_fast_as_the_worker_takes_it(stand):
    connection, transport = stand.connect()
    body = bytes(range(256)) * 4096
    sink = Sink()
    stand.open(sink, [b"{", memoryview(body), b"}"])
    assert transport.sent == b""
    sizes = []
    while stand.turns:
        before = len(transport.sent)
        stand.turns.pop()()
        sizes.append(len(transport.sent) - before)
        if len(sizes) == 2:
            stand.turns.clear()
            connection.pause_writing()
            connection.resume_writing()
    assert max(sizes) == 256 * 1024
    assert len(sizes) == 5
    assert transport.sent.endswith(b"\r\n\r\n{" + body + b"}")
    connection.data_received(OK)
    assert (sink.log, connection.usable, transport.closing) == ([200, b"{}", "end"], True, False)
    connection.pause_writing()
    connection.resume_writing()


def test_nothing_is_sent_while_the_worker_takes_nothing(stand):
    connection, transport = stand.connect()
    write, transport.writelines = transport.writelines, lambda parts: (write(parts), connection.pause_writing())
    stand.open(Sink(), [b"x" * 600_000])
    stand.turns.pop()()
    assert not stand.turns
    connection.resume_writing()
    assert len(stand.turns) == 1


def test_a_worker_that_answers_before_it_has_heard_all_gets_no_other_request_on_this_connection(stand):
    connection, transport = stand.connect()
    sink = Sink()
    stand.open(sink, [b"x" * 600_000])
    stand.turns.pop()()
    sent = len(transport.sent)
    connection.data_received(OK)
    assert (sink.log, transport.closing) == ([200, b"{}", "end"], True)
    stand.turns.pop()()
    assert len(transport.sent) == sent


def test_an_interim_answer_is_none(stand):
    connection, _ = stand.connect()
    sink = Sink()
    stand.open(sink)
    connection.data_received(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert not connection.untouched
    connection.data_received(OK)
    assert sink.log == [200, b"{}", "end"]


@pytest.mark.parametrize("fails", ["head", "body"])
def test_a_fault_in_a_callback_of_the_parser_is_no_fault_of_the_worker(stand, fails):
    connection, transport = stand.connect()
    sink = Sink(fails)
    call = stand.open(sink)
    connection.data_received(OK)
    assert sink.log[-1] == "injected"
    assert "end" not in sink.log
    assert (call.over, transport.closing, stand.pool.in_flight("w")) == (True, True, 0)
    connection.connection_lost(None)
    assert stand.pool.open_connections == 0


def test_garbage_and_heads_without_end_are_the_workers_fault(stand):
    for data in (b"\x00\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000, HEAD[:-2] + b"c: " + b"d" * 70_000):
        connection, transport = stand.connect()
        sink = Sink()
        stand.open(sink)
        connection.data_received(data)
        assert (sink.log, transport.closing) == ([FailureCause.FAULTY], True)
    connection, _ = stand.connect()
    sink = Sink()
    stand.open(sink)
    for _ in range(9):
        connection.data_received(
            b"HTTP/1.1 200 OK\r\n" if not sink.log and connection.untouched else b"a: b\r\n" * 2000
        )
    assert sink.log == [FailureCause.FAULTY]


@pytest.mark.parametrize("surplus", [OK, b"HT", b"\x00"])
def test_surplus_bars_the_connection(stand, surplus):
    connection, transport = stand.connect()
    sink = Sink()
    stand.open(sink)
    connection.data_received(OK + surplus)
    assert (sink.log, transport.closing, len(stand.lane.idle)) == ([200, b"{}", "end"], True, 0)


def test_bytes_outside_an_exchange_close_the_connection(stand):
    connection, transport = stand.connect()
    connection.data_received(b"x")
    assert transport.closing


@pytest.mark.parametrize(
    ("sent", "error", "last"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n{}", None, "end"),
        (b"HTTP/1.1 200 OK\r\n\r\n{}", OSError(), FailureCause.BROKEN),
        (HEAD + b"{", None, FailureCause.BROKEN),
        (b"HTTP/1.1 2", None, FailureCause.BROKEN),
        (b"HTTP/1.1 204 No\r\n\r\n", None, "end"),
    ],
)
def test_what_the_end_of_a_connection_means(stand, sent, error, last):
    connection, _ = stand.connect()
    sink = Sink()
    stand.open(sink)
    connection.data_received(sent)
    connection.connection_lost(error)
    assert sink.log[-1] == last
    assert stand.pool.open_connections == 0


def test_connection_close_is_honoured_even_when_it_is_lost_already(stand):
    connection, transport = stand.connect()
    stand.open(Sink())
    connection.data_received(OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
    assert transport.closing
    connection, transport = stand.connect()
    stand.open(Sink())
    connection._transport = None
    connection.data_received(OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
    assert not transport.closing


def test_pausing_outlives_no_exchange(stand):
    connection, transport = stand.connect()
    sink = Sink()
    call = stand.open(sink)
    call.pause()
    assert not transport.reading
    connection.data_received(OK)
    assert transport.reading
    call.pause()
    call.resume()  # nothing to hold any more
    assert transport.reading
    connection.connection_lost(None)
    connection.pause()
    connection.resume()
    connection.abort()


def test_a_call_that_was_paused_before_it_had_a_connection(stand):
    connection, transport = stand.connect()
    stand.lane.idle.clear()
    call = PooledCall(stand.lane, b"", (b"",), Sink())
    call.pause()
    call.start(connection)
    assert not transport.reading
    call.resume()
    assert transport.reading


def test_an_aborted_call_says_nothing_more(stand):
    connection, transport = stand.connect()
    sink = Sink()
    call = stand.open(sink)
    call.abort()
    call.abort()
    connection.data_received(OK)
    connection.connection_lost(None)
    call.on_failure(FailureCause.BROKEN)
    call.on_fault(RuntimeError())
    assert (sink.log, transport.closing, stand.pool.in_flight("w")) == ([], True, 0)


def test_a_sink_that_aborts_at_the_head_hears_no_body(stand):
    connection, _ = stand.connect()
    sink = Sink()
    call = stand.open(sink)
    sink.on_head = lambda status, headers: call.abort()
    connection.data_received(OK)
    assert sink.log == []


def test_the_pool_hands_out_what_is_open_and_young(stand):
    old, old_transport = stand.connect()
    stand.clock.moment += 5.0
    closing, closing_transport = stand.connect()
    closing_transport.closing = True
    assert stand.lane.take_idle() is None
    assert old_transport.closing
    young, _ = stand.connect()
    assert stand.lane.take_idle() is young
    assert (old.usable, closing.usable) == (False, False)


def test_sweep_removal_and_the_bound_of_idle_connections():
    stand = Stand(idle_max=1)
    _, first = stand.connect()
    _, second = stand.connect()
    assert (first.closing, second.closing) == (False, True)
    stand.pool.sweep()
    assert not first.closing
    stand.clock.moment += 10
    stand.pool.sweep()
    assert first.closing
    stand.lane.idle.clear()
    _, third = stand.connect()
    stand.pool.add("w", WorkerAddress("w", "elsewhere", 1, False))
    assert stand.pool._lanes["w"] is stand.lane
    stand.pool.close()
    assert third.closing
    _, fourth = stand.connect()
    assert fourth.closing
    stand.pool.remove("w")
    assert (stand.pool.in_flight("w"), stand.pool.last_byte_at("w")) == (0, None)


def test_an_unknown_worker_is_unreachable_unless_nobody_waits_for_it(stand):
    stand.clock.call_soon = lambda step, *args: stand.clock.call_later(0, step, *args)
    sink, other = Sink(), Sink()
    stand.pool.open("nobody", b"", b"", (), sink)
    stand.pool.open("nobody", b"", b"", (), other).abort()
    assert sink.log == []
    stand.clock.run(1.0)
    assert (sink.log, other.log) == ([FailureCause.UNREACHABLE], [])


def test_sending_on_no_connection_is_an_error_of_ours(stand):
    with pytest.raises(AssertionError):
        WorkerConnection(stand.lane).send(b"", (b"",), Sink())


# ---------------------------------------------------------------- connecting


class Connecting(Lane):
    """A lane whose connections come when the test says so."""

    def __init__(self):
        loop = asyncio.get_running_loop()
        super().__init__(WorkerAddress("w", "127.0.0.1", 1, False), PoolConfig(), loop, loop.time)
        self.coming = []

    async def _connect(self):
        future = asyncio.get_running_loop().create_future()
        self.coming.append(future)
        return await future

    def make(self, usable=True):
        connection = WorkerConnection(self)
        connection.connection_made(Transport())
        if not usable:
            connection.connection_lost(OSError())
        return connection


async def turns():
    for _ in range(4):
        await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop, not a wait


async def test_a_fresh_connection_carries_the_call():
    lane, sink = Connecting(), Sink()
    PooledCall(lane, b"head", (b"body",), sink).start(None)
    await turns()
    connection = lane.make()
    lane.coming[0].set_result(connection)
    await turns()
    assert connection._transport.sent == b"headbody"
    connection.connection_lost(None)  # fresh: never sent again
    assert sink.log == [FailureCause.BROKEN]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ConnectionRefusedError(), FailureCause.UNREACHABLE),
        (TimeoutError(), FailureCause.UNREACHABLE),
        (UnicodeError("label too long"), FailureCause.UNREACHABLE),
        (RuntimeError("ours"), "ours"),
    ],
)
async def test_a_connection_that_cannot_be_made(error, told):
    lane, sink = Connecting(), Sink()
    PooledCall(lane, b"", (b"",), sink).start(None)
    await turns()
    lane.coming[0].set_exception(error)
    await turns()
    assert (sink.log, lane.in_flight) == ([told], 0)


async def test_a_connection_that_is_closed_as_soon_as_it_was_made():
    lane, sink = Connecting(), Sink()
    PooledCall(lane, b"", (b"",), sink).start(None)
    await turns()
    lane.coming[0].set_result(lane.make(usable=False))
    await turns()
    assert sink.log == [FailureCause.BROKEN]


async def test_leaving_while_connecting():
    lane, sink = Connecting(), Sink()
    call = PooledCall(lane, b"", (b"",), sink)
    call.start(None)
    await turns()
    call.abort()
    await turns()
    assert lane.coming[0].cancelled()
    late, failed = PooledCall(lane, b"", (b"",), sink), PooledCall(lane, b"", (b"",), sink)
    late.start(None)
    failed.start(None)
    await turns()
    connection = lane.make()
    lane.coming[1].set_result(connection)
    lane.coming[2].set_exception(OSError())
    late.over = failed.over = True  # in the very turn in which it came up
    await turns()
    assert connection._transport.closing
    assert sink.log == []
    gc.collect()


async def test_a_stale_connection_is_replaced_once():
    lane, sink = Connecting(), Sink()
    used = lane.make()
    used.answered_once = True
    call = PooledCall(lane, b"head", (b"body",), sink)
    call.start(used)
    used.connection_lost(ConnectionResetError())
    await turns()
    fresh = lane.make()
    lane.coming[0].set_result(fresh)
    await turns()
    assert fresh._transport.sent == b"headbody"
    fresh.data_received(OK)
    assert sink.log == [200, b"{}", "end"]
    assert lane.open == {fresh}
    fresh.connection_lost(None)
    assert not lane.open


async def test_a_used_connection_that_breaks_late_or_after_a_byte_is_no_stale_one():
    lane = Connecting()
    moment = [0.0]
    lane.now = lambda: moment[0]
    for byte, later in ((b"H", 0.0), (b"", 5.0)):
        sink, used = Sink(), lane.make()
        used.answered_once = True
        PooledCall(lane, b"", (b"",), sink).start(used)
        if byte:
            used.data_received(byte)
        moment[0] += later
        used.connection_lost(None)
        assert sink.log == [FailureCause.BROKEN]
    assert lane.coming == []


async def test_connecting_goes_to_the_workers_address_with_a_limit(monkeypatch):
    loop = asyncio.get_running_loop()
    asked = []

    async def create_connection(factory, host, port, ssl, server_hostname):
        asked.append((host, port, ssl, server_hostname))
        return Transport(), factory()

    monkeypatch.setattr(loop, "create_connection", create_connection)
    for tls, name in ((False, None), (True, None), (True, "workers.test")):
        lane = Lane(WorkerAddress("w", "127.0.0.1", 7, tls, name), PoolConfig(), loop, loop.time)
        assert isinstance(await lane.connect(), WorkerConnection)
    context = build_worker_tls()
    assert context.verify_mode is CERT_REQUIRED
    assert asked == [
        ("127.0.0.1", 7, None, None),
        ("127.0.0.1", 7, context, "127.0.0.1"),
        ("127.0.0.1", 7, context, "workers.test"),
    ]

    async def hang(*_, **__):
        await loop.create_future()

    monkeypatch.setattr(loop, "create_connection", hang)
    with pytest.raises(TimeoutError):
        await Lane(WorkerAddress("w", "127.0.0.1", 7, False), PoolConfig(0.01), loop, loop.time).connect()
