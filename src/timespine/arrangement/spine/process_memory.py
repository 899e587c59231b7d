"""How much memory there is, and how much this process takes."""

from __future__ import annotations

import os
import time

SAMPLE_S = 0.1
"""How long a figure of the process stays good: asking the system takes longer than to insert a small batch."""

_sampled = [0.0, 0]


def machine_memory_bytes() -> int:
    """Return half of the memory of this machine, or of the limit of its control group."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/sys/fs/cgroup/memory.max") as file:
            limit = file.read().strip()
        total = min(total, int(limit)) if limit.isdigit() else total
    except OSError:
        pass
    return total // 2


def process_bytes() -> int:
    """Return the bytes of this process that are no pages of files, as of a moment ago; 0 if the system does not say."""
    now = time.monotonic()
    if now - _sampled[0] >= SAMPLE_S:
        _sampled[:] = [now, _anonymous_bytes()]
    return int(_sampled[1])


def _anonymous_bytes() -> int:
    try:
        with open("/proc/self/status") as file:
            found = [line for line in file if line.startswith("RssAnon:")]
    except OSError:
        return 0
    return int(found[0].split()[1]) << 10 if found else 0
