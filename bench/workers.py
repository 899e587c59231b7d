"""The Python workers of Spark on this machine, and the most memory that any of them has while a work runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from bench.usage import RESET_PEAK

EVERY = 0.05
"""Seconds between two looks. What a worker had at most since the work began is kept by the system, so that only what
a worker reaches in its very last moments can be missed. What it still holds from a work before counts, too."""


class Watch:
    """Looks at the workers from when it is entered to when it is left.

    >>> with Watch() as watch:
    ...     pass  # a work
    >>> watch.peak >= 0
    True
    """

    def __init__(self) -> None:
        self.peak = 0
        """Bytes that the largest worker had at most, all of it: interpreter, libraries, rows."""
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        for worker in _workers():
            with contextlib.suppress(OSError):  # it has ended
                (worker / "clear_refs").write_text(RESET_PEAK)
        self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._left.set()
        self._thread.join()

    def _look(self) -> None:
        while True:
            last = self._left.wait(EVERY)
            self.peak = max([self.peak, *map(_peak, _workers())])
            if last:
                return


def _workers() -> Iterator[Path]:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended
        if b"pyspark.daemon" in command:
            yield process


def _peak(process: Path) -> int:
    try:
        return int((process / "status").read_text().split("VmHWM:")[1].split()[0]) << 10
    except (OSError, IndexError):
        return 0  # it has ended
