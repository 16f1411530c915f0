"""Says who used the processors while a run was measured: the engine and its client, or others."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtests.live.process_cost import fetch_cpu_s, fetch_family

FOREIGN_LIMIT_CORES = 0.12
"""More than this used by others, on average over a run, and the run measures them too."""
_BUSY_FIELDS = (0, 1, 2, 5, 6, 7)  # user, nice, system, irq, softirq, steal: proc_stat(5)


@dataclass(frozen=True, slots=True)
class Usage:
    """Cores used during a run. ``foreign_cores`` is ``None`` where the engine's processes are not known."""

    own_cores: float
    foreign_cores: float | None

    @property
    def is_disturbed(self) -> bool:
        return self.foreign_cores is not None and self.foreign_cores > FOREIGN_LIMIT_CORES


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


def _read_busy_s() -> float:
    return parse_busy_s(Path("/proc/stat").read_text(), os.sysconf("SC_CLK_TCK"))
