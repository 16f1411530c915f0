"""Starts processes for a measurement and stops them again, whatever happens in between.

Each child leads a process group of its own, so that stopping it stops its children, and Ctrl-C in the terminal
reaches only the bench, which then stops the rest in order. Output goes to a file that is quoted when a start fails.
"""

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

STOP_LIMIT_S = 8.0
QUOTED_CHARACTERS = 1500
_PORTS = 900


class ChildError(Exception):
    """A child could not be started or did not answer in time."""


def interrupt_on_sigterm() -> None:
    """Lets SIGTERM unwind this process as Ctrl-C does, so that what it started is stopped."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def choose_free_ports(first: int, count: int) -> list[int]:
    """The first ``count`` successive free ports of loopback from ``first`` on."""
    for start in range(first, first + _PORTS):
        if all(_is_free(port) for port in range(start, start + count)):
            return list(range(start, start + count))
    raise ChildError(f"no {count} successive free ports above {first}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def quote_end(path: Path) -> str:
    """The last lines of a file, for a message."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return ""
    return text[-QUOTED_CHARACTERS:].strip()


@contextmanager
def run_child(
    argv: Sequence[str], log: Path, *, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A running process; its group is gone when the context ends."""
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(  # noqa: S603 - the bench runs what it was told to
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                cwd=cwd,
                start_new_session=True,
            )
        except OSError as error:
            raise ChildError(f"{argv[0]}: {error.strerror}") from error
    try:
        yield process
    finally:
        stop_group(process)


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """Asks the child's group to end, then makes it."""
    for sign, limit_s in ((signal.SIGTERM, STOP_LIMIT_S), (signal.SIGKILL, STOP_LIMIT_S)):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            break
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            continue
    process.poll()


def wait_until_answering(process: subprocess.Popen[bytes], url: str, log: Path, limit_s: float, key: str) -> None:
    """Returns when ``url`` answers 200; raises when the process ends or the time is over."""
    give_up_at = time.monotonic() + limit_s
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {key}"})  # noqa: S310 - http on loopback
    last = "no answer"
    while time.monotonic() < give_up_at:
        if process.poll() is not None:
            raise ChildError(f"ended with code {process.returncode} before it answered: {quote_end(log)}")
        try:
            with urllib.request.urlopen(request, timeout=2) as response:  # noqa: S310 - same
                if response.status == 200:
                    return
        except urllib.error.HTTPError as error:
            last = f"status {error.code}"
        except OSError as error:
            last = str(error)
        time.sleep(0.1)
    raise ChildError(f"{url} did not answer within {limit_s:.0f} s ({last}): {quote_end(log)}")
