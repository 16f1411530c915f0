"""Measures what several gateways let pass of one tenant's quota, and what becomes of it when Redis fails.

    python -m loadtests.live.quotas [--quick]

Starts a redis-server, the bench's own workers and four gateways, and sends them three times what the tenant bought, in
turn, open loop. Runs: bursts of 500 against a limit of 100 on one gateway and on four; a steady minute; the same with
Redis killed from a sixth to two thirds of it; the same with Redis stopped (SIGSTOP); and 100,000 tenants in the store:
how long the start takes, what each tenant's memory is, what a request costs beside one tenant. Writes ``quotas.json``
and ``quotas.md``; the exit code is 1 if a bound does not hold. A run of the long form takes 60 s, of ``--quick`` 15 s.
``--runs`` names some of them; the figures of the others are kept from the report before.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop
import yaml
from redis import Redis
from rich.console import Console
from rich.progress import Progress

from loadtests.live.child import ChildError, choose_free_ports, interrupt_on_sigterm, run_child, wait_until_answering
from loadtests.live.peer_configs import BENCH_KEY
from loadtests.live.peers import REPORTS, REPOSITORY, START_LIMIT_S, run_workers
from loadtests.live.process_cost import fetch_rss_kib
from service.flow.lease import bound_overshoot

GATEWAYS = 4
MODEL = "MiniMax-M3.1-Flash"
LIMIT = 1200
"""Requests per minute that the tenant of the steady runs bought."""
TIMES = 3.0
TENANTS = 100_000
RUNS = ["bursts", "steady", "killed", "stopped", "tenants"]


@dataclass
class Seen:
    """Answers of one run: when each came back after the run's begin, its status, how long it took."""

    answers: list[tuple[float, int, float]] = field(default_factory=list)
    errors: int = 0

    def passed(self, begin: float = 0.0, end: float = 1e9) -> int:
        """Requests that were served within a stretch of the run."""
        return sum(status == 200 and begin <= at < end for at, status, _ in self.answers)

    def statuses(self) -> dict[str, int]:
        """How many of each status."""
        return {
            str(status): count for status, count in sorted(Counter(status for _, status, _ in self.answers).items())
        }

    def latency_ms(self, quantile: float, begin: float = 0.0, end: float = 1e9) -> float:
        """A quantile of what answers took, refusals too."""
        lengths = sorted(length for at, _, length in self.answers if begin <= at < end)
        return round(1000.0 * lengths[min(int(quantile * len(lengths)), len(lengths) - 1)], 2) if lengths else 0.0


def render_request(key: str) -> bytes:
    """One small request, the same each time."""
    body = json.dumps({"model": MODEL, "max_tokens": 1, "seed": 0, "messages": [{"role": "user", "content": "hi"}]})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\n"
    return f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()


class Lane:
    """Connections to one gateway, each for one request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, request: bytes) -> int:
        """The status of the answer."""
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        await reader.readexactly(length)
        self._idle.append((reader, writer))
        return int(head.split(b" ", 2)[1])

    def close(self) -> None:
        """Close what is idle."""
        for _, writer in self._idle:
            writer.close()


async def send_one(lane: Lane, request: bytes, seen: Seen, begun_at: float) -> None:
    """One request and what became of it."""
    sent_at = time.perf_counter()
    try:
        status = await lane.ask(request)
    except (OSError, asyncio.IncompleteReadError, ValueError):
        seen.errors += 1
        return
    now = time.perf_counter()
    seen.answers.append((now - begun_at, status, now - sent_at))


async def send_steadily(ports: list[int], key: str, per_s: float, length_s: float) -> Seen:
    """An open loop, round robin."""
    lanes, seen, request = [Lane(port) for port in ports], Seen(), render_request(key)
    begun_at = time.perf_counter()
    tasks: set[asyncio.Task[None]] = set()
    for number in range(int(per_s * length_s)):
        delay_s = begun_at + number / per_s - time.perf_counter()
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        task = asyncio.create_task(send_one(lanes[number % len(lanes)], request, seen, begun_at))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    for lane in lanes:
        lane.close()
    return seen


async def send_at_once(ports: list[int], key: str, count: int) -> Seen:
    """A burst, round robin, over connections that are open already."""
    lanes, seen, request = [Lane(port) for port in ports], Seen(), render_request(key)
    begun_at = time.perf_counter()
    await asyncio.gather(*[send_one(lanes[at % len(lanes)], request, seen, begun_at) for at in range(count)])
    for lane in lanes:
        lane.close()
    return seen


class RedisServer:
    """One server of the bench's own, in memory only."""

    def __init__(self, port: int, folder: Path) -> None:
        self.port = port
        self._folder = folder
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, empty; returns when it answers."""
        argv = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        with (self._folder / "redis.log").open("ab") as log:
            self._child = subprocess.Popen(argv, cwd=self._folder, stdout=log, stderr=log)  # noqa: S603 - our own
        until = time.monotonic() + 10
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 0.2):
                return
            time.sleep(0.02)
        raise ChildError("redis-server does not answer")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; SIGKILL is waited for."""
        if self._child is not None:
            self._child.send_signal(number)
            if number is signal.SIGKILL:
                self._child.wait()
                self._child = None

    def stop(self) -> None:
        """End it, whatever its state."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)


def key_of(name: str) -> str:
    """A key for one tenant of the bench."""
    return f"sk-sluice-bench-{name}-0000000000000000000000"


def describe_tenant(name: str, **contract: int) -> dict[str, Any]:
    """One tenant of the file."""
    key = BENCH_KEY if name == "free" else key_of(name)
    digest = hashlib.sha256(key.encode()).hexdigest()
    kept = {"hash": f"sha256:{digest}", "prefix": "sk-sluice-benc"}
    return {"id": name, "tier": "default", "keys": [kept], **({"contract": contract} if contract else {})}


def write_config(folder: Path, port: int, admin_port: int, worker: int, redis_port: int, base: int = 0) -> Path:
    """A gateway of the fleet; ``base`` is the database within Redis."""
    settings = {
        "model": MODEL,
        "pool": {"discovery": "static", "workers": [f"http://127.0.0.1:{worker}"]},
        "tiers": {"default": {"rank": 0, "availability": 0.9}},
        "tenants": [
            describe_tenant("free"),
            describe_tenant("steady", requests_per_minute=LIMIT),
            describe_tenant("killed", requests_per_minute=LIMIT),
            describe_tenant("stopped", requests_per_minute=LIMIT),
            describe_tenant("one", requests_per_minute=100),
            describe_tenant("four", requests_per_minute=100),
            describe_tenant("wide", requests_per_minute=10_000_000, tokens_per_minute=1_000_000_000),
        ],
        "listen": {"port": port, "admin_port": admin_port},
        "limits": {"requests_per_worker": 512, "requests_per_new_worker": 512, "drain_delay_s": 0.0, "grace_s": 5.0},
        "state": f"redis://127.0.0.1:{redis_port}/{base}",
        "ledger": None,
    }
    path = folder / f"gateway-{port}.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


@contextlib.contextmanager
def run_gateway(config: Path, port: int) -> Iterator[tuple[int, float]]:
    """One gateway: its process id, and how long its start took."""
    argv = [sys.executable, "-m", "service", "serve", "-c", str(config)]
    log = config.with_suffix(".log")
    began_at = time.monotonic()
    environment = {**os.environ, "SLUICE_ADMIN_TOKEN": "bench"}
    with run_child(argv, log, cwd=REPOSITORY, env=environment) as process:
        wait_until_answering(process, f"http://127.0.0.1:{port}/readyz", log, START_LIMIT_S, BENCH_KEY)
        yield process.pid, time.monotonic() - began_at


def fill_store(port: int, count: int) -> None:
    """So many tenants with a contract and a key each."""
    client = Redis(port=port)
    pipe = client.pipeline(transaction=False)
    for number in range(count):
        name = f"tenant-{number:06d}"
        tenant = {"id": name, "tier": "default", "contract": {"requests_per_minute": 600 + number % 5}}
        digest = hashlib.sha256(key_of(name).encode()).hexdigest()
        key = {"id": f"{number:08x}", "tenant": name, "prefix": "sk-sluice-benc", "created_at": 0.0}
        pipe.hset(
            "sluice:{directory}:records", mapping={f"t:{name}": json.dumps(tenant), f"k:{digest}": json.dumps(key)}
        )
        if number % 5000 == 4999:
            pipe.execute()
    pipe.hset("sluice:{directory}:head", mapping={"epoch": "bench", "version": 1})
    pipe.execute()
    client.close()


def read_cpu_s(pid: int) -> float:
    """CPU seconds of a process's own loop so far, however busy the machine is."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def read_start_cpu_s(pid: int) -> float:
    """CPU seconds of all threads of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure_cost(port: int, pid: int, key: str, count: int) -> float:
    """CPU microseconds of the gateway per request, one connection after the other busy."""
    lane, request = Lane(port), render_request(key)
    for _ in range(200):
        await lane.ask(request)
    before = read_cpu_s(pid)
    lanes = [Lane(port) for _ in range(8)]

    async def go(one: Lane) -> None:
        for _ in range(count // len(lanes)):
            if await one.ask(request) != 200:
                raise ChildError("a request of the cost run was refused")

    await asyncio.gather(*[go(one) for one in lanes])
    spent = read_cpu_s(pid) - before
    for one in [lane, *lanes]:
        one.close()
    return round(1e6 * spent / count, 1)


async def run_with_failure(
    ports: list[int], redis: RedisServer, key: str, length_s: float, begin: signal.Signals
) -> tuple[Seen, float]:
    """A steady run with Redis gone from a sixth to two thirds of it; and when, after the begin, it was back."""

    async def fail() -> float:
        begun_at = time.perf_counter()
        await asyncio.sleep(length_s / 6)
        redis.signal(begin)
        await asyncio.sleep(length_s / 2)
        if begin is signal.SIGKILL:
            await asyncio.to_thread(redis.start)
        else:
            redis.signal(signal.SIGCONT)
        return time.perf_counter() - begun_at

    failing = asyncio.ensure_future(fail())
    seen = await send_steadily(ports, key, LIMIT * TIMES / length_s, length_s)
    return seen, await failing


def sum_up(seen: Seen, limit: float, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - figures of any kind
    """The figures of one run."""
    return {
        "passed": seen.passed(), "limit": limit, "ratio": round(seen.passed() / limit, 4), "statuses": seen.statuses(),
        "errors": seen.errors, "p50_ms": seen.latency_ms(0.5), "p99_ms": seen.latency_ms(0.99), **more,
    }  # fmt: skip


async def run_fleet(
    ports: list[int], redis: RedisServer, length_s: float, runs: list[str], tell: Callable[[str], None]
) -> dict[str, Any]:
    """All runs that need the four gateways."""
    figures: dict[str, Any] = {}
    await send_steadily(ports, BENCH_KEY, 100.0, 2.0)  # warm
    if "bursts" in runs:
        tell("500 at once against 100, on one gateway and on four")
        figures["burst_one"] = sum_up(await send_at_once(ports[:1], key_of("one"), 500), 100)
        figures["burst_four"] = sum_up(await send_at_once(ports, key_of("four"), 500), 100)
    if "steady" in runs:
        tell(f"steady, {TIMES:g} times the quota")
        figures["steady"] = sum_up(
            await send_steadily(ports, key_of("steady"), LIMIT * TIMES / length_s, length_s), LIMIT
        )
    for name, begin in (("killed", signal.SIGKILL), ("stopped", signal.SIGSTOP)):
        if name not in runs:
            continue
        tell(f"Redis {name} from a sixth to two thirds of the run")
        seen, back_s = await run_with_failure(ports, redis, key_of(name), length_s, begin)
        calm = seen.latency_ms(0.5, 0, length_s / 6)
        away = {q: seen.latency_ms(q, length_s / 6, 4 * length_s / 6) for q in (0.5, 0.99)}
        figures[name] = sum_up(
            seen, LIMIT, overshoot=seen.passed() - LIMIT,
            bound=bound_overshoot(LIMIT, GATEWAYS, forgotten=name == "killed"),
            back_after_s=round(back_s, 2), away_p50_ms=away[0.5], away_p99_ms=away[0.99],
            added_p99_ms=round(away[0.99] - calm, 2), passed_5s_after=seen.passed(back_s + 5.0),
        )  # fmt: skip
    return figures


def read_figures(path: Path, length_s: float) -> dict[str, Any]:
    """Those of the report before, if its runs were as long."""
    try:
        before = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    figures: dict[str, Any] = before["figures"] if before["length_s"] == length_s else {}
    return figures


def check(figures: dict[str, Any]) -> dict[str, bool]:
    """The bounds."""
    checks = {
        "500 at once, one gateway: exactly 100": figures["burst_one"]["passed"] == 100,
        "500 at once, four gateways: exactly 100": figures["burst_four"]["passed"] == 100,
        "steady: total within 1 % of the limit": abs(figures["steady"]["ratio"] - 1.0) <= 0.01,
        "no connection failed": not any(one.get("errors") for one in figures.values()),
    }
    for name in ("killed", "stopped"):
        run = figures[name]
        checks[f"Redis {name}: overshoot within the bound"] = run["overshoot"] <= run["bound"]
        checks[f"Redis {name}: added p99 below 60 ms"] = run["added_p99_ms"] < 60.0
        checks[f"Redis {name}: nothing too much from 5 s after its return"] = run["passed_5s_after"] == 0
    tenants = figures["tenants"]
    checks["100,000 tenants: start below 5 s (of CPU)"] = tenants["start_cpu_s"] < 5.0
    checks["100,000 tenants: below 1 KB each"] = tenants["bytes_per_tenant"] < 1024
    checks["100,000 tenants: a request costs within 10 % of one tenant's"] = tenants["cost_ratio"] < 1.10
    return checks


def render_page(report: dict[str, Any]) -> str:
    """The report for people."""
    lines = [
        "# Quotas over several gateways", "",
        f"Made by `python -m loadtests.live.quotas`. {GATEWAYS} gateways in processes of their own, one Redis, round "
        f"robin, open loop, {TIMES:g} times a quota of {LIMIT} requests a minute within {report['length_s']:.0f} s, on "
        f"{report['machine']}.", "",
        "| run | passed | limit | 429 | 503 | p50 ms | p99 ms |", "|---|---:|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    for name in ("burst_one", "burst_four", "steady", "killed", "stopped"):
        one = report["figures"][name]
        refused, unknown = one["statuses"].get("429", 0), one["statuses"].get("503", 0)
        lines.append(
            f"| {name} | {one['passed']} | {one['limit']} | {refused} | {unknown} | {one['p50_ms']} | {one['p99_ms']} |"
        )
    lines += ["", "| Redis | overshoot | bound | added p99 while away, ms |", "|---|---:|---:|---:|"]
    for name in ("killed", "stopped"):
        one = report["figures"][name]
        lines.append(f"| {name} | {one['overshoot']} | {one['bound']} | {one['added_p99_ms']} |")
    tenants = report["figures"]["tenants"]
    lines += [
        "", "| 100,000 tenants in the store | |", "|---|---:|",
        f"| start, s of CPU (with an empty store: {tenants['start_cpu_alone_s']}) | {tenants['start_cpu_s']} |",
        f"| start, s, as busy as the machine was (empty store: {tenants['start_alone_s']}) | {tenants['start_s']} |",
        f"| resident bytes for each | {tenants['bytes_per_tenant']} |",
        f"| CPU per request with a contract, us (alone: {tenants['cost_alone_us']}) | {tenants['cost_us']} |",
        f"| CPU per request without a contract, us | {tenants['cost_free_us']} |",
        "", "| bound | holds |", "|---|---|",
    ]  # fmt: skip
    lines += [f"| {name} | {'yes' if held else '**no**'} |" for name, held in report["checks"].items()]
    return "\n".join(lines) + "\n"


def measure_tenants(
    configs: list[Path], ports: list[int], redis: RedisServer, count: int, requests: int
) -> dict[str, Any]:
    """One gateway beside a store of ``count`` tenants and one beside an empty store; they are asked in turn, so that a
    machine that others use too slows both. Start and cost in CPU time, for the same reason."""
    found: dict[str, Any] = {}
    Redis(port=redis.port).flushall()
    fill_store(redis.port, count)
    with contextlib.ExitStack() as stack:
        pids = []
        for name, config, port in zip(("", "_alone"), configs, ports, strict=True):
            pid, start_s = stack.enter_context(run_gateway(config, port))
            pids.append(pid)
            found[f"start{name}_s"] = round(start_s, 2)
            found[f"start_cpu{name}_s"] = round(read_start_cpu_s(pid), 2)
            found[f"rss{name}_kib"] = fetch_rss_kib([pid]) or 0
        costs: dict[str, list[float]] = {"cost_us": [], "cost_alone_us": [], "cost_free_us": []}
        for _ in range(5):
            for name, at, key in (("cost_us", 0, "wide"), ("cost_alone_us", 1, "wide"), ("cost_free_us", 0, "")):
                key = key_of(key) if key else BENCH_KEY
                costs[name].append(uvloop.run(measure_cost(ports[at], pids[at], key, requests // 2)))
    found |= {name: statistics.median(seen) for name, seen in costs.items()}
    found["bytes_per_tenant"] = round((found["rss_kib"] - found["rss_alone_kib"]) * 1024 / count)
    found["cost_ratio"] = round(found["cost_us"] / found["cost_alone_us"], 3)
    return found


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="one tenant's quota over four gateways, with and without Redis")
    parser.add_argument("--quick", action="store_true", help="runs of 15 s")
    parser.add_argument("--first-port", type=int, default=23400)
    parser.add_argument("--reports", type=Path, default=REPORTS)
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=RUNS)
    options = parser.parse_args()
    length_s = 15.0 if options.quick else 60.0
    console = Console(stderr=True)
    interrupt_on_sigterm()
    ports = choose_free_ports(options.first_port, 2 * GATEWAYS + 3)
    figures = read_figures(options.reports / "quotas.json", length_s)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack, Progress(console=console) as progress:
        folder = Path(name)
        task = progress.add_task("starting", total=6)

        def tell(what: str) -> None:
            progress.update(task, advance=1, description=what)

        redis = RedisServer(ports[0], folder)
        redis.start()
        stack.callback(redis.stop)
        stack.enter_context(run_workers(ports[1], 1, folder))
        public, admin = ports[3::2], ports[4::2]
        configs = [
            write_config(folder, one, other, ports[1], redis.port)
            for one, other in zip(public[:GATEWAYS], [*admin, ports[2]][:GATEWAYS], strict=True)
        ]
        with contextlib.ExitStack() as fleet:
            for config, port in zip(configs, public, strict=False):
                fleet.enter_context(run_gateway(config, port))
            time.sleep(2.0)  # until each has counted the others
            figures |= uvloop.run(run_fleet(public[:GATEWAYS], redis, length_s, options.runs, tell))
        if "tenants" in options.runs:
            tell("100,000 tenants")
            alone = write_config(folder, public[1], admin[1], ports[1], redis.port, base=1)
            requests = 2000 if options.quick else 6000
            figures["tenants"] = measure_tenants([configs[0], alone], public[:2], redis, TENANTS, requests)
    options.reports.mkdir(parents=True, exist_ok=True)
    if missing := [name for name in ("burst_one", "steady", "killed", "stopped", "tenants") if name not in figures]:
        (options.reports / "quotas.json").write_text(json.dumps({"length_s": length_s, "figures": figures}) + "\n")
        print(json.dumps(figures, indent=1), f"no report yet: {', '.join(missing)} not measured", sep="\n")
        return 0
    checks = check(figures)
    report = {
        "length_s": length_s, "gateways": GATEWAYS, "limit_per_minute": LIMIT, "times": TIMES,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, CPython {platform.python_version()}",
        "figures": figures, "checks": checks,
    }  # fmt: skip
    if options.quick:
        report["note"] = "quick form: runs of 15 s against a limit per minute"
    (options.reports / "quotas.json").write_text(json.dumps(report, indent=1) + "\n")
    (options.reports / "quotas.md").write_text(render_page(report))
    for what, held in checks.items():
        print(f"{'holds' if held else 'FAILS'}  {what}")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except ChildError as error:
        print(f"quotas: {error}", file=sys.stderr)
        raise SystemExit(1) from None
