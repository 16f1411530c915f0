"""A gateway in a process of its own, whose memory, descriptors and loop a test can look at."""

import asyncio
import contextlib
import json
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

import uvloop

from service.gateway import corridor
from service.gateway.edge import EdgeConfig
from service.gateway.peek import Peeked
from service.runtime.descriptors import bound_connections
from tests.support.gateway import running_gateway


class LoopProbe:
    """CPU seconds between two of its turns: with turns asked for every 5 ms, the longest is the longest loop block."""

    def __init__(self, loop):
        self._loop = loop
        self._last = time.thread_time()
        self.longest_s = 0.0
        self._turn()

    def _turn(self):
        now = time.thread_time()
        self.longest_s = max(self.longest_s, now - self._last)
        self._last = now
        self._loop.call_later(0.005, self._turn)


def peek_naively(body, usage_on_request, extra, model_required=True, bounds=()):
    """What a gateway does that decodes the body and counts its tokens on the loop."""
    fields = json.loads(bytes(body))
    re.findall(r"\w+|\W", str(fields["messages"]))
    rendered = json.dumps(fields).encode()
    return Peeked(fields["model"], bool(fields.get("stream")), None, None, None, False, (rendered,), {})


def say(figures):
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


async def serve(options):
    if options.get("naive"):
        corridor.peek = peek_naively
    edge = EdgeConfig(**options.get("edge", {}))
    if options.get("descriptors"):
        count = options["descriptors"]
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))
        bounded = bound_connections(edge.connections_max, edge.connections_reserve, count)
        bounded = edge.connections_max if options.get("unbounded") else bounded
        edge = EdgeConfig(**{**options.get("edge", {}), "connections_max": bounded})
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with running_gateway(options.get("workers", []), edge=edge) as gateway:
        probe = LoopProbe(loop)
        say({"port": gateway.port, "connections_max": edge.connections_max})
        while await reader.readline():
            said = {
                "longest_s": probe.longest_s,
                "travelling": gateway.driver.travelling,
                "connections": len(gateway.connections),
                "settled": len(gateway.ledger.settlements),
                "bodies_left": next(iter(gateway.connections))._budget.left if gateway.connections else None,
            }
            probe.longest_s = 0.0
            gateway.ledger.settlements.clear()
            say(said)


class GatewayProcess:
    """Started with ``options``; ends with the block."""

    def __init__(self, **options):
        self._options = options

    async def __aenter__(self):
        root = Path(__file__).parents[2]
        self._child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.support.gateway_process",
            json.dumps(self._options),
            cwd=root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(root)},
        )
        first = json.loads(await asyncio.wait_for(self._child.stdout.readline(), 30))
        self.port, self.connections_max = first["port"], first["connections_max"]
        return self

    async def __aexit__(self, *_):
        self._child.stdin.close()
        try:
            await asyncio.wait_for(self._child.wait(), 10)
        except TimeoutError:
            self._child.kill()
            await self._child.wait()
        with contextlib.suppress(AttributeError):
            self._child._transport.close()

    async def look(self):
        """Figures since the last look."""
        self._child.stdin.write(b"look\n")
        return json.loads(await asyncio.wait_for(self._child.stdout.readline(), 30))

    def cpu_s(self):
        """CPU seconds of its loop's thread so far: however busy the machine is, nobody else's are in it."""
        return int(Path(f"/proc/{self._child.pid}/schedstat").read_text().split()[0]) / 1e9

    @property
    def descriptors(self):
        return len(list(Path(f"/proc/{self._child.pid}/fd").iterdir()))

    def memory(self, field="VmRSS"):
        status = Path(f"/proc/{self._child.pid}/status").read_text()
        return int(re.search(rf"{field}:\s+(\d+) kB", status).group(1)) * 1024

    def forget_peak(self):
        """Let VmHWM begin anew."""
        Path(f"/proc/{self._child.pid}/clear_refs").write_text("5")


if __name__ == "__main__":
    uvloop.run(serve(json.loads(sys.argv[1])))
