"""Checks that keep their teeth under `python -O`.

Pytest rewrites the asserts of test modules, and those survive -O. It does not
rewrite modules that tests only import, so what checks something there uses this.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable


def check(condition: object, message: str = "") -> None:
    """Fail the test unless the condition holds."""
    if not condition:
        raise AssertionError(message or "a check failed")


def examples(count: int) -> int:
    """Return how many examples a property tries: `count`, or EXAMPLES_TIMES as many in `make soak`."""
    return count * int(os.environ.get("EXAMPLES_TIMES", "1"))


def until(holds: Callable[[], object], patience_s: float = 60.0) -> None:
    """Wait for threads to get somewhere; how long that takes decides nothing."""
    deadline = time.monotonic() + patience_s
    while not holds():
        check(time.monotonic() < deadline, "it never happened")
        time.sleep(0.001)
