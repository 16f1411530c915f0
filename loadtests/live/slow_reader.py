"""Opens streams on a flooding worker and does not read them: what does that cost the gateway?

    python -m loadtests.live.slow_reader [--readers 50] [--port 8080 --pid PID]

A gateway without back pressure keeps everything a fast worker sends to a client that does not read; it runs out of
memory. Bounds: growth of the gateway's resident memory per slow reader at its highest, and that the streams of other
clients, through the same gateway at the same time, keep flowing. Each reader's receive buffer is kept small, and the
run looks whether bytes wait in it: a flood that never came would prove nothing. A gateway that takes more than
``--stop-rss-mib`` has failed; the run ends there, before the machine does.

Trade-offs: memory the kernel holds in socket buffers is not the gateway's and is not counted. An allocator that keeps
freed memory looks like growth; the warm-up flood before the first look takes most of that out.
"""

import argparse
import array
import asyncio
import fcntl
import select
import socket
import sys
import termios
from contextlib import suppress
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import Progress

from loadtests.live.backend import FLOOD_SEED
from loadtests.live.checks import Check, all_hold, check_at_most, print_checks, write_checks
from loadtests.live.child import ChildError, interrupt_on_sigterm
from loadtests.live.client import Load, Target, build_request
from loadtests.live.figures import compute_spread_ms
from loadtests.live.peer_install import InstallError
from loadtests.live.streams import GRACE_S, Crowd, run_stream
from loadtests.live.target import SAMPLE_PERIOD_S, ProcessWatch, add_target_options, raise_descriptor_limit, run_target

RECEIVE_BUFFER_BYTES = 16 * 1024
OPEN_PERIOD_S = 0.02
SPARE_DESCRIPTORS = 500
FLOOD = Load(concurrency=1, requests=1, stream=True, tokens=16, pause_ms=FLOOD_SEED)


async def open_slow_reader(target: Target, request: bytes) -> socket.socket:
    """A connection that has asked for a flood and will not read it."""
    loop = asyncio.get_running_loop()
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    reader.setblocking(False)
    try:
        await asyncio.wait_for(loop.sock_connect(reader, (target.host, target.port)), GRACE_S)
        await asyncio.wait_for(loop.sock_sendall(reader, request), GRACE_S)
    except OSError:
        reader.close()
        raise
    return reader


def count_waiting_bytes(reader: socket.socket) -> int:
    """Bytes that wait in the kernel to be read."""
    waiting = array.array("i", [0])
    fcntl.ioctl(reader.fileno(), termios.FIONREAD, waiting)
    return waiting[0]


def count_closed(readers: list[socket.socket]) -> int:
    """Readers whose connection the other side has ended or reset."""
    poll = select.poll()
    for reader in readers:
        poll.register(reader, select.POLLRDHUP)
    ended = select.POLLRDHUP | select.POLLHUP | select.POLLERR
    return sum(1 for _, events in poll.poll(0) if events & ended)


async def run_paced_streams(target: Target, options: argparse.Namespace, length_s: float) -> Crowd:
    """The other clients: paced streams, read as they come."""
    tokens = max(1, round(length_s * 1e3 / options.pause_ms))
    load = Load(options.streams, options.streams, True, tokens, options.pause_ms)
    crowd, request = Crowd(), build_request(load, target)
    await asyncio.gather(*(run_stream(target, request, 0.0, length_s + GRACE_S, crowd) for _ in range(options.streams)))
    return crowd


async def run_readers_beside_streams(
    target: Target, options: argparse.Namespace, request: bytes, readers: list[socket.socket]
) -> Crowd:
    """Opens the slow readers, one after the other, while paced streams run; ends with the streams."""
    length_s = options.hold_s + options.readers * OPEN_PERIOD_S
    streams = asyncio.ensure_future(run_paced_streams(target, options, length_s))
    try:
        for _ in range(options.readers):
            readers.append(await open_slow_reader(target, request))
            await asyncio.sleep(OPEN_PERIOD_S)
        return await streams
    finally:
        streams.cancel()


async def warm_up(target: Target, request: bytes) -> None:
    """A short flood that is read, so that buffers and pools have their working size before the first look."""
    reader = await open_slow_reader(target, request)
    loop = asyncio.get_running_loop()
    with reader, suppress(TimeoutError):
        async with asyncio.timeout(1.0):
            while await loop.sock_recv(reader, 65536):
                continue


async def hold_readers(target: Target, options: argparse.Namespace, console: Console) -> dict[str, object]:
    """The whole run; gives the raw figures."""
    request, watch = build_request(FLOOD, target), ProcessWatch(list(target.pids))
    with Progress(console=console) as progress:
        task = progress.add_task("streams alone", total=2 * options.hold_s)
        await warm_up(target, request)
        alone = await run_paced_streams(target, options, options.hold_s)
        progress.update(task, completed=options.hold_s, description=f"{options.readers} slow readers beside them")
        await asyncio.sleep(SAMPLE_PERIOD_S)  # the gateway notices that those connections have gone
        rss_before_kib, descriptors_before = watch.look()
        readers: list[socket.socket] = []
        watching = asyncio.ensure_future(watch.run(options.stop_rss_mib * 1024))
        running = asyncio.ensure_future(run_readers_beside_streams(target, options, request, readers))
        try:
            await asyncio.wait({watching, running}, return_when=asyncio.FIRST_COMPLETED)
            beside = running.result() if running.done() else None
            rss_peak_kib = max(watch.rss_kib, default=None)
            flooded = sum(1 for reader in readers if count_waiting_bytes(reader) > 0)
            closed = count_closed(readers)
            descriptors_most = max(watch.descriptors, default=None)
        finally:
            watching.cancel()
            running.cancel()
            await asyncio.gather(watching, running, return_exceptions=True)
            for reader in readers:
                reader.close()
        progress.update(task, completed=2 * options.hold_s, description="settling")
        wanted = (descriptors_before or 0) + options.descriptor_slack
        descriptors_after = await watch.wait_for_descriptors(wanted, options.settle_s)
    growth_kib = None if rss_peak_kib is None or rss_before_kib is None else rss_peak_kib - rss_before_kib
    return {
        "readers": options.readers,
        "readers_flooded": flooded,
        "readers_closed_by_gateway": closed,
        "rss_before_kib": rss_before_kib,
        "rss_peak_kib": rss_peak_kib,
        "rss_after_kib": watch.rss_kib[-1] if watch.rss_kib else None,
        "growth_kib_per_reader": None if growth_kib is None else round(growth_kib / options.readers, 1),
        "descriptors_before": descriptors_before,
        "descriptors_most": descriptors_most,
        "descriptors_after": descriptors_after,
        "errors_alone": alone.errors,
        "errors_beside": None if beside is None else beside.errors,
        "longest_gap_alone_ms": compute_spread_ms(alone.gaps_s),
        "longest_gap_beside_ms": compute_spread_ms([] if beside is None else beside.gaps_s),
    }


def build_checks(figures: dict[str, object], options: argparse.Namespace) -> list[Check]:
    """The bounds of the run."""

    def number(*path: str) -> float | None:
        value: object = figures
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return value if isinstance(value, int | float) else None

    errors = figures["errors_beside"]
    failed = sum(errors.values()) if isinstance(errors, dict) else None
    flooded, closed = number("readers_flooded") or 0, number("readers_closed_by_gateway") or 0
    return [
        Check(
            "slow readers flooded (or cut off by the gateway)",
            f"{flooded:.0f} ({closed:.0f})",
            f"= {options.readers}",
            flooded + closed >= options.readers,
        ),
        Check("gateway RSS before", f"{(number('rss_before_kib') or 0) / 1024:,.0f} MiB"),
        Check("gateway RSS peak", f"{(number('rss_peak_kib') or 0) / 1024:,.0f} MiB"),
        check_at_most("growth per slow reader", number("growth_kib_per_reader"), options.growth_limit_kib, " KiB"),
        check_at_most("failed streams beside them", failed, 0),
        Check("longest gap of other streams, alone", f"{number('longest_gap_alone_ms', 'max') or 0:,.0f} ms"),
        check_at_most(
            "longest gap of other streams, beside them",
            number("longest_gap_beside_ms", "max"),
            options.gap_limit_ms,
            " ms",
        ),
        check_at_most(
            "descriptors after",
            number("descriptors_after"),
            (number("descriptors_before") or 0) + options.descriptor_slack,
        ),
    ]


def build_parser() -> argparse.ArgumentParser:
    """The command line's options."""
    parser = argparse.ArgumentParser(description="clients that do not read, before a worker that floods")
    add_target_options(parser, workers=1)
    parser.add_argument("--readers", type=int, default=50)
    parser.add_argument("--hold-s", type=float, default=10.0)
    parser.add_argument("--streams", type=int, default=10, help="other streams that must keep flowing")
    parser.add_argument("--pause-ms", type=int, default=20, help="time between two chunks of those")
    parser.add_argument("--growth-limit-kib", type=float, default=512.0)
    parser.add_argument("--stop-rss-mib", type=float, default=2048.0, help="the run ends early above this")
    parser.add_argument("--gap-limit-ms", type=float, default=1000.0)
    parser.add_argument("--settle-s", type=float, default=30.0, help="time in which descriptors must be back")
    parser.add_argument("--descriptor-slack", type=int, default=0)
    return parser


def main() -> int:
    """The command line."""
    options = build_parser().parse_args()
    console = Console(stderr=True)
    interrupt_on_sigterm()
    try:
        raise_descriptor_limit(2 * (options.readers + options.streams) + SPARE_DESCRIPTORS)
        with run_target(options) as target:
            figures = uvloop.run(hold_readers(target, options, console))
    except (ChildError, InstallError, OSError, ValueError) as error:
        console.print(f"[red]cannot run:[/] {error}", highlight=False)
        return 2
    except KeyboardInterrupt:
        console.print("stopped; everything started here is gone")
        return 130
    checks = build_checks(figures, options)
    reports: Path = options.reports
    write_checks(reports / "slow_reader.json", checks, figures)
    print_checks(f"{options.readers} slow readers on one gateway", checks, Console())
    return 0 if all_hold(checks) else 1


if __name__ == "__main__":
    sys.exit(main())
