"""Starting and stopping a real vLLM on the CPU, for any test that wants one."""

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from service.launch.command import WorkerCommand
from service.launch.cpu_engine import CpuEngine, build_cpu_worker_command, prepare_cpu_engine
from service.launch.fault import EngineUnavailableError

START_LIMIT_S = 180.0
STOP_LIMIT_S = 40.0

TEST_PORTS = range(22000, 23000)


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """A running worker."""

    url: str
    pid: int
    log: Path
    started_in_s: float

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.url.rpartition(":")[2])

    def read_resident_bytes(self) -> int:
        """Sum the resident memory of the server and the processes it spawned."""
        return sum(_read_resident_bytes(pid) for pid in _list_family(self.pid))


def prepare_engine_or_skip() -> CpuEngine:
    """Return the CPU engine, building it if needed; where that is impossible, fail under CI and skip elsewhere."""
    try:
        return prepare_cpu_engine(_say, time.monotonic)
    except EngineUnavailableError as unavailable:
        if os.environ.get("CI") == "true":
            pytest.fail(f"the CPU engine cannot be prepared: {unavailable}", pytrace=False)
        pytest.skip(f"the CPU engine cannot be prepared: {unavailable}")


def find_free_port() -> int:
    """Return a port of the tests' range on which nothing listens; a different first guess in each process."""
    offset = os.getpid() * 7 % len(TEST_PORTS)
    for port in (*TEST_PORTS[offset:], *TEST_PORTS[:offset]):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return int(port)
    raise RuntimeError(f"no free port in {TEST_PORTS}")


@contextmanager
def run_cpu_worker(engine: CpuEngine, log: Path, *, port: int | None = None) -> Iterator[EngineProcess]:
    """Run the worker ``cpu-small`` until the block ends."""
    chosen = port or find_free_port()
    with run_worker(build_cpu_worker_command(engine, chosen), f"http://127.0.0.1:{chosen}", log) as process:
        yield process


@contextmanager
def run_worker(command: WorkerCommand, url: str, log: Path) -> Iterator[EngineProcess]:
    """Run a worker command, wait until it answers, and stop it by its pid at the end."""
    started_at = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(
            command.argv,
            env={**os.environ, **dict(command.environment)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_until_healthy(process, url, log, started_at + START_LIMIT_S)
        yield EngineProcess(url, process.pid, log, time.monotonic() - started_at)
    finally:
        _stop(process)


def _wait_until_healthy(process: "subprocess.Popen[bytes]", url: str, log: Path, give_up_at: float) -> None:
    while time.monotonic() < give_up_at:
        if process.poll() is not None:
            raise RuntimeError(f"vLLM ended with code {process.returncode}:\n{_tail(log)}")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:  # noqa: S310 - our own loopback url
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.25)
    raise RuntimeError(f"vLLM did not answer within {START_LIMIT_S:.0f} s:\n{_tail(log)}")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Ask, then kill: first the server, then whatever of its session is left."""
    process.terminate()
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pid in _list_session(process.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _list_family(root: int) -> list[int]:
    family = [root]
    for pid in family:
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            continue
        family.extend(int(child) for child in children)
    return family


def _list_session(session: int) -> list[int]:
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            members.append(int(stat.parent.name))
    return members


def _read_resident_bytes(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])


def _say(line: str) -> None:
    os.write(2, f"{line}\n".encode())
