"""Runs child processes that never outlive their parent: each leads a process group of its own, so that a terminal's
Ctrl-C reaches only the parent, which ends them in order; should the parent be killed, the kernel ends them."""

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Child:
    """One child: what it is called, and where its output goes (``None``: where the parent's goes)."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path | None

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it still runs."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    def end(self, patience_s: float) -> int:
        """Ask it to go, wait, then end whatever is left of its group; its exit code."""
        self.signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(patience_s)
        self.kill_group()
        return self.process.wait()

    def kill_group(self) -> None:
        """End it and everything it started that is still in its group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def read_tail(self, lines: int) -> str:
        """The last lines of its output."""
        if self.log is None:
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def start_child(
    name: str, argv: Sequence[str], log: Path | None, environment: Mapping[str, str] | None = None
) -> Child:
    """Start ``argv`` bound to this process. Call from the main thread: the bond is to the thread that starts it."""
    parent = os.getpid()
    output = None if log is None else log.open("wb")
    try:
        process = subprocess.Popen(  # noqa: S603 - our own argv
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
            preexec_fn=_bond(parent),
        )
    finally:
        if output is not None:
            output.close()
    return Child(name, process, log)


def _bond(parent: int) -> Callable[[], None]:
    def bond() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died in between
            os._exit(1)

    return bond
