"""Reads what other processes of this machine have used: CPU time, memory, descriptors, children.

CPU time comes from the kernel's clock of each process (``clock_getcpuclockid(3)``: nanoseconds, dead threads
included), because the ticks in ``/proc/PID/stat`` are 10 ms wide, which is 2 % of a standard load. Everything else is
from ``/proc``. A process that has gone away counts with what is known of it: nothing.
"""

import time
from pathlib import Path

_PROC = Path("/proc")
_CPUCLOCK_SCHED = 2  # linux/include/linux/posix-timers.h: clock id = (~pid << 3) | kind


def parse_parent(stat: str) -> int:
    """Parent of the process whose ``/proc/PID/stat`` is given; its name may hold spaces and brackets."""
    return int(stat.rpartition(")")[2].split()[1])


def parse_status_kib(status: str, field: str) -> int | None:
    """A field of ``/proc/PID/status`` given in kB, in KiB; None where the field is missing."""
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0])
    return None


def compute_family(parents: dict[int, int], roots: list[int]) -> list[int]:
    """The roots and all their descendants, by a map from process to parent; each once, in ascending order."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    todo = list(roots)
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            todo += children.get(pid, [])
    return sorted(found)


def fetch_family(roots: list[int]) -> list[int]:
    """The roots and their living descendants."""
    parents = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = parse_parent((entry / "stat").read_text())
            except OSError:
                continue
    return compute_family(parents, roots)


def fetch_cpu_s(pids: list[int]) -> float:
    """User plus system time used so far by all threads of the processes together."""
    total_s = 0.0
    for pid in pids:
        try:
            total_s += time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)
        except OSError:
            continue
    return total_s


def fetch_rss_kib(pids: list[int], *, peak: bool = False) -> int | None:
    """Resident memory of the processes together, at present or at its highest; None if none is alive."""
    values = []
    for pid in pids:
        try:
            value = parse_status_kib((_PROC / str(pid) / "status").read_text(), "VmHWM" if peak else "VmRSS")
        except OSError:
            continue
        if value is not None:
            values.append(value)
    return sum(values) if values else None


def fetch_descriptors(pids: list[int]) -> int | None:
    """Open file descriptors of the processes together; None if none can be read."""
    counts = []
    for pid in pids:
        try:
            counts.append(sum(1 for _ in (_PROC / str(pid) / "fd").iterdir()))
        except OSError:
            continue
    return sum(counts) if counts else None
