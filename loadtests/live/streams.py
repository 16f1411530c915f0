"""Holds thousands of streams open on one gateway process and says what that takes.

    python -m loadtests.live.streams [--streams 2000] [--hold-s 60] [--port 8080 --pid PID]

The streams are opened evenly over ``--open-s``; each lasts so long that all of them are open for ``--hold-s``, and
each gets one chunk per ``--pause-ms``, so that the machine stays far from saturated: the subject is memory and
descriptors, not rate. Bounds: no failed stream, resident memory of the gateway's processes at its highest, and
descriptors back to where they began once the streams have ended (within ``--settle-s``; a gateway that keeps idle
connections to its workers longer than that is given ``--descriptor-slack``).
"""

import argparse
import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from loadtests.live.checks import Check, all_hold, check_at_most, print_checks, write_checks
from loadtests.live.child import ChildError, interrupt_on_sigterm
from loadtests.live.client import OK, ClientProtocol, LagMeter, Load, Target, build_request
from loadtests.live.figures import compute_spread_ms
from loadtests.live.peer_install import InstallError
from loadtests.live.process_cost import fetch_family, fetch_rss_kib
from loadtests.live.target import SAMPLE_PERIOD_S, ProcessWatch, add_target_options, raise_descriptor_limit, run_target

SPARE_DESCRIPTORS = 500
GRACE_S = 30.0


class StreamProtocol(ClientProtocol):
    """A stream that also notes the longest wait between two pieces of its body."""

    def __init__(self, request: bytes) -> None:
        super().__init__(request, stream=True)
        self.longest_gap_s = 0.0
        self._last_at: float | None = None

    def on_body(self, body: bytes) -> None:
        at = time.perf_counter()
        if self._last_at is not None:
            self.longest_gap_s = max(self.longest_gap_s, at - self._last_at)
        self._last_at = at
        super().on_body(body)


@dataclass
class Crowd:
    """All streams of a run: how many are open, and how those that ended did."""

    open_streams: int = 0
    most_open: int = 0
    chunks: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    first_byte_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)

    def note_error(self, kind: str) -> None:
        """Counts a failed stream."""
        self.errors[kind] = self.errors.get(kind, 0) + 1


def build_stream_load(streams: int, open_s: float, hold_s: float, pause_ms: int) -> Load:
    """Streams long enough that the first one is still open when the last one has been held for ``hold_s``."""
    chunks = max(1, -(-round((open_s + hold_s) * 1e3) // pause_ms))
    return Load(concurrency=streams, requests=streams, stream=True, tokens=chunks, pause_ms=pause_ms)


async def run_stream(target: Target, request: bytes, delay_s: float, limit_s: float, crowd: Crowd) -> None:
    """One stream from its opening to its end."""
    await asyncio.sleep(delay_s)
    loop = asyncio.get_running_loop()
    try:
        _, protocol = await loop.create_connection(lambda: StreamProtocol(request), target.host, target.port)
    except OSError as error:
        crowd.note_error(f"connect: {error.strerror or type(error).__name__}")
        return
    crowd.open_streams += 1
    crowd.most_open = max(crowd.most_open, crowd.open_streams)
    verdict_future = protocol.send()
    watchdog = loop.call_later(limit_s, protocol.close)
    try:
        verdict = await verdict_future
    finally:
        watchdog.cancel()
        protocol.close()
    crowd.open_streams -= 1
    crowd.chunks += protocol.chunks
    if verdict != OK:
        crowd.note_error(verdict)
    if protocol.first_byte_at is not None:
        crowd.first_byte_s.append(protocol.first_byte_at - protocol.started_at)
        crowd.gaps_s.append(protocol.longest_gap_s)


async def show_progress(crowd: Crowd, watch: ProcessWatch, expected_s: float, console: Console) -> None:
    """A bar over the expected time, until cancelled."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left"))
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("streams", total=expected_s)
        began_at = time.perf_counter()
        while True:
            rss = f"{watch.rss_kib[-1] / 1024:.0f} MiB" if watch.rss_kib else "?"
            text = f"{crowd.open_streams} open, {sum(crowd.errors.values())} failed, gateway {rss}"
            progress.update(task, description=text, completed=min(time.perf_counter() - began_at, expected_s))
            await asyncio.sleep(0.25)


async def hold_streams(target: Target, options: argparse.Namespace, console: Console) -> dict[str, object]:
    """The whole run; gives the raw figures."""
    load = build_stream_load(options.streams, options.open_s, options.hold_s, options.pause_ms)
    request, crowd, lag = build_request(load, target), Crowd(), LagMeter()
    watch = ProcessWatch(list(target.pids))
    await run_stream(target, build_request(Load(1, 1, True, 1, 0), target), 0.0, GRACE_S, Crowd())
    await asyncio.sleep(SAMPLE_PERIOD_S)  # the gateway notices that the warm-up's connection has gone
    rss_before_kib, descriptors_before = watch.look()
    length_s = load.tokens * load.pause_ms / 1e3
    tasks = [
        asyncio.ensure_future(task)
        for task in (watch.run(), lag.run(), show_progress(crowd, watch, options.open_s + length_s, console))
    ]
    await asyncio.gather(
        *(
            run_stream(target, request, index * options.open_s / load.requests, length_s + GRACE_S, crowd)
            for index in range(load.requests)
        )
    )
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    most_descriptors = max(watch.descriptors, default=None)
    wanted = (descriptors_before or 0) + options.descriptor_slack
    descriptors_after = await watch.wait_for_descriptors(wanted, options.settle_s)
    return {
        "streams": load.requests,
        "hold_s": options.hold_s,
        "chunks_expected": load.requests * (load.tokens + 1),
        "chunks": crowd.chunks,
        "most_open": crowd.most_open,
        "errors": crowd.errors,
        "ttfb_ms": compute_spread_ms(crowd.first_byte_s),
        "longest_gap_ms": compute_spread_ms(crowd.gaps_s),
        "client_lag_ms": compute_spread_ms(lag.lags_s),
        "rss_before_kib": rss_before_kib,
        "rss_peak_kib": fetch_rss_kib(fetch_family(list(target.pids)), peak=True),
        "rss_after_kib": watch.rss_kib[-1] if watch.rss_kib else None,
        "descriptors_before": descriptors_before,
        "descriptors_most": most_descriptors,
        "descriptors_after": descriptors_after,
    }


def build_checks(figures: dict[str, object], options: argparse.Namespace) -> list[Check]:
    """The bounds of the run."""

    def number(name: str) -> float | None:
        value = figures[name]
        return value if isinstance(value, int | float) else None

    def mib(name: str) -> float | None:
        value = number(name)
        return None if value is None else value / 1024

    errors = figures["errors"]
    failed = sum(errors.values()) if isinstance(errors, dict) else None
    gap, ttfb = figures["longest_gap_ms"], figures["ttfb_ms"]
    before = number("descriptors_before")
    missing = (number("chunks_expected") or 0) - (number("chunks") or 0)
    return [
        Check(
            "streams open at once",
            str(figures["most_open"]),
            f"= {options.streams}",
            figures["most_open"] == options.streams,
        ),
        check_at_most("failed streams", failed, 0),
        check_at_most("chunks lost", missing, 0),
        Check("errors by kind", json.dumps(errors)),
        Check("time to first byte, p50 / p99 / max ms", _format_spread(ttfb)),
        Check("longest gap of a stream, p50 / p99 / max ms", _format_spread(gap)),
        Check("gateway RSS before", f"{mib('rss_before_kib') or 0:,.0f} MiB"),
        check_at_most("gateway RSS peak", mib("rss_peak_kib"), options.rss_limit_mib, " MiB"),
        Check("descriptors before / most", f"{figures['descriptors_before']} / {figures['descriptors_most']}"),
        check_at_most("descriptors after", number("descriptors_after"), (before or 0) + options.descriptor_slack),
    ]


def _format_spread(spread: object) -> str:
    if not isinstance(spread, dict):
        return "-"
    return " / ".join("-" if spread[name] is None else f"{spread[name]:,.0f}" for name in ("p50", "p99", "max"))


def build_parser() -> argparse.ArgumentParser:
    """The command line's options."""
    parser = argparse.ArgumentParser(description="thousands of streams held open on one gateway process")
    add_target_options(parser, workers=4)
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--open-s", type=float, default=5.0, help="time over which they are opened")
    parser.add_argument("--hold-s", type=float, default=60.0, help="time for which all are open")
    parser.add_argument("--pause-ms", type=int, default=500, help="time between two chunks of a stream")
    parser.add_argument("--settle-s", type=float, default=30.0, help="time in which descriptors must be back")
    parser.add_argument("--rss-limit-mib", type=float, default=300.0)
    parser.add_argument("--descriptor-slack", type=int, default=0)
    return parser


def main() -> int:
    """The command line."""
    options = build_parser().parse_args()
    console = Console(stderr=True)
    interrupt_on_sigterm()
    try:
        raise_descriptor_limit(2 * options.streams + SPARE_DESCRIPTORS)
        with run_target(options) as target:
            figures = uvloop.run(hold_streams(target, options, console))
    except (ChildError, InstallError, ValueError) as error:
        console.print(f"[red]cannot run:[/] {error}", highlight=False)
        return 2
    except KeyboardInterrupt:
        console.print("stopped; everything started here is gone")
        return 130
    checks = build_checks(figures, options)
    reports: Path = options.reports
    write_checks(reports / "streams.json", checks, figures)
    print_checks(f"{options.streams} streams on one gateway", checks, Console())
    return 0 if all_hold(checks) else 1


if __name__ == "__main__":
    sys.exit(main())
