"""Says who used the processors while a run was measured, and keeps client and HTTP process from being starved.

vLLM's processes wait for one another by spinning. On two cores the kernel then let client or HTTP process stand for
0.3 to 1.7 s at a time, at random, with the machine otherwise idle (measured, Linux 6.18: the median end-to-end time of
a run moved by a factor of four from one repetition to the next). No model of an engine can foretell that, so
``arrange`` gives the two a real-time class, and leaves the cores to which vLLM pins its computing threads to these.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from loadtests.live.process_cost import fetch_cpu_s, fetch_family

FOREIGN_LIMIT_CORES = 0.12
"""More than this used by others, on average over a run, and the run measures them too."""
NICE = -10
QUIET_S = 0.15
QUIET_CORES = 0.25
"""A look of ``QUIET_S`` sees cores in tenths: the kernel counts in hundredths of a second."""
_BUSY_FIELDS = (0, 1, 2, 5, 6, 7)  # user, nice, system, irq, softirq, steal: proc_stat(5)


@dataclass(frozen=True, slots=True)
class Usage:
    """Cores used during a run. ``foreign_cores`` is ``None`` where the engine's processes are not known."""

    own_cores: float
    foreign_cores: float | None

    @property
    def is_disturbed(self) -> bool:
        return self.foreign_cores is not None and self.foreign_cores > FOREIGN_LIMIT_CORES


@contextmanager
def arrange(server_pid: int) -> Iterator[str]:
    """Put this process and the engine's HTTP process where they are run at once; says in words what was done.

    This process is put back at the end; the engine's live no longer than the measurement.
    """
    everywhere, policy, level = os.sched_getaffinity(0), os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
    try:
        yield _arrange(server_pid, everywhere)
    finally:
        with suppress(PermissionError):
            os.sched_setscheduler(0, policy, os.sched_param(0))
            os.sched_setaffinity(0, everywhere)
            os.setpriority(os.PRIO_PROCESS, 0, level)


def _arrange(server_pid: int, everywhere: set[int]) -> str:
    family = fetch_family([server_pid])
    computing: set[int] = set().union(*(cores for pid in family if (cores := _read_cores(pid)) < everywhere))
    free = everywhere - computing or everywhere
    try:
        for pid in family:
            # Where sessions are scheduled as groups (sched(7), autogroup), nice values only count within one.
            with suppress(OSError):
                Path(f"/proc/{pid}/autogroup").write_text(str(NICE))
            os.setpriority(os.PRIO_PROCESS, pid, NICE)
        for pid in {os.getpid(), *family}:
            for thread in _list_threads(pid):
                if not _read_cores(thread) <= computing:
                    os.sched_setaffinity(thread, free)
        for pid in (os.getpid(), server_pid):
            for thread in _list_threads(pid):
                os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(1))
    except (PermissionError, ProcessLookupError):
        return "client and HTTP process at the kernel's mercy (no right to a real-time class)"
    return (
        f"the core to which vLLM pins its worker is the worker's, everything else runs beside it; vLLM at nice {NICE}, "
        "client and HTTP process in a real-time class"
    )


def _list_threads(pid: int) -> list[int]:
    return [int(thread.name) for thread in Path(f"/proc/{pid}/task").iterdir()]


def _read_cores(pid: int) -> set[int]:
    with suppress(OSError):
        return os.sched_getaffinity(pid)
    return os.sched_getaffinity(0)


def parse_busy_s(stat: str, ticks_per_s: int) -> float:
    """Processor time that was not idle since the machine started, by the first line of ``/proc/stat``."""
    fields = stat.split("\n", 1)[0].split()[1:]
    return sum(int(fields[index]) for index in _BUSY_FIELDS) / ticks_per_s


class Meter:
    """Measures the machine during runs; ``pids`` are the engine's processes, empty where it is somebody else's."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = list(pids)

    def start(self) -> Callable[[], Usage]:
        """Begin; the function returned ends it."""
        family = fetch_family([*self._pids, os.getpid()])
        busy_s, own_s, began_at = _read_busy_s(), fetch_cpu_s(family), time.perf_counter()

        def stop() -> Usage:
            took_s = time.perf_counter() - began_at
            own = (fetch_cpu_s(family) - own_s) / took_s
            foreign = (_read_busy_s() - busy_s) / took_s - own
            return Usage(own, max(0.0, foreign) if self._pids else None)

        return stop

    def wait_until_quiet(self, limit_s: float) -> float:
        """Return when others leave the processors alone for a moment, or after the limit; seconds waited in vain."""
        began_at = time.perf_counter()
        wasted_s = 0.0
        while self._pids and wasted_s < limit_s:
            stop = self.start()
            time.sleep(QUIET_S)
            if (stop().foreign_cores or 0.0) < QUIET_CORES:
                break
            wasted_s = time.perf_counter() - began_at
        return wasted_s


def _read_busy_s() -> float:
    return parse_busy_s(Path("/proc/stat").read_text(), os.sysconf("SC_CLK_TCK"))
