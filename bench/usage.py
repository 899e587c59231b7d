"""What a process used: processor time, bytes that it asked to read and to write, and its most memory."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MB = 1 << 20

RESET_PEAK = "5"
"""What makes Linux forget the peak of a process: see `clear_refs` in its manual page of /proc."""


@dataclass(frozen=True)
class Usage:
    """Totals of this process and of the children that it waited for."""

    cpu_s: float
    """Seconds of processor time, in user code and in the system, over all threads."""

    read_mb: float
    """What read calls returned, from the disk or from the page cache. Mapped files are not counted."""

    written_mb: float
    """What write calls were given."""

    def since(self, before: Usage) -> Usage:
        """Subtract what was used before."""
        return Usage(self.cpu_s - before.cpu_s, self.read_mb - before.read_mb, self.written_mb - before.written_mb)


def used() -> Usage:
    """Measure now. A system without /proc counts no bytes."""
    times = [resource.getrusage(each) for each in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    asked = _io()
    cpu = sum(each.ru_utime + each.ru_stime for each in times)
    return Usage(cpu, asked.get("rchar", 0) / MB, asked.get("wchar", 0) / MB)


def family_cpu_s() -> float:
    """Return seconds of processor time of this process and of all processes below it, those that ended included.

    Spark works in processes of its own: the JVM is a child of this process, and its Python workers are below it.
    """
    parents, spent = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            # The name stands in parentheses, and may have spaces.
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(fields[1])
            spent[int(path.parent.name)] = sum(map(int, fields[11:15]))
    family = {os.getpid()}
    while more := {each for each, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(spent.get(each, 0) for each in family) / os.sysconf("SC_CLK_TCK")


def most_memory_mb(call: Callable[[], object]) -> float:
    """Make a call, and return the most memory that this process had meanwhile. `peak_mb` counts from here on, too.

    Where the peak cannot be forgotten, what the process had before counts as well.
    """
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text(RESET_PEAK)
    call()
    return peak_mb()


def peak_mb() -> float:
    """Give the most memory that this process ever had. Linux counts it since exec, ru_maxrss with the parent's."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (MB if sys.platform == "darwin" else 1024)


def _io() -> dict[str, int]:
    with suppress(OSError):
        lines = Path("/proc/self/io").read_text().splitlines()
        return {name: int(value) for name, _, value in (line.partition(": ") for line in lines)}
    return {}
