"""Runs one long command of a build, with progress lines, its output in a log, and a plain error if it fails."""

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from service.launch.cache import Say
from service.launch.fault import EngineUnavailableError

# A line at least this often, so that nobody takes a long build for a dead one.
PROGRESS_EVERY_S = 10.0

_TAIL_LINES = 12


@dataclass(frozen=True, slots=True)
class BuildStep:
    """One command of a build, and how long it is expected to take."""

    title: str
    argv: Sequence[str]
    expected_s: float
    limit_s: float


def run_step(step: BuildStep, *, log: Path, say: Say, clock: Callable[[], float]) -> None:
    """Run the command to its end; raise ``EngineUnavailableError`` with the end of its output if it fails."""
    started_at = clock()
    say(f"{step.title}: about {step.expected_s:.0f} s")
    with log.open("a") as output:
        try:
            process = subprocess.Popen(step.argv, stdout=output, stderr=subprocess.STDOUT)  # noqa: S603 - our own argv
        except OSError as error:
            raise EngineUnavailableError(f"{step.title}: {error}") from error
        try:
            _wait(process, step, started_at, say, clock)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
        raise EngineUnavailableError(f"{step.title} failed with exit code {process.returncode}:\n{tail}")
    say(f"{step.title}: done in {clock() - started_at:.0f} s")


def _wait(
    process: "subprocess.Popen[bytes]", step: BuildStep, started_at: float, say: Say, clock: Callable[[], float]
) -> None:
    while True:
        try:
            process.wait(timeout=PROGRESS_EVERY_S)
        except subprocess.TimeoutExpired:
            elapsed_s = clock() - started_at
            if elapsed_s > step.limit_s:
                raise EngineUnavailableError(f"{step.title}: gave up after {elapsed_s:.0f} s") from None
            say(f"{step.title}: {elapsed_s:.0f} s of about {step.expected_s:.0f} s")
        else:
            return
