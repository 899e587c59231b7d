"""Sweeps by turns: one process in an hour lists the blobs of a store, and the others know that it did.

The log `sweeps` has the time of the last turn. A process that wants to sweep appends its own time, if the last turn is
old enough: the compare-and-set decides who has the turn. It is a log of its own and not a part of the catalog: catalogs
are kept as long as commits are to be restorable, and a turn is no change of names.
"""

from __future__ import annotations

from collections.abc import Callable

from timespine.client.maintenance.maintenance_times import MaintenanceTimes
from timespine.errors import TimespineError
from timespine.location.consensus import Consensus, LogWrite

SWEEPS = "sweeps"
"""The key of the log. No collection can have it: their ids end in a random part."""


IDLE_SWEEP_S = 24 * 3600.0
"""Seconds between two sweeps of a collection that does not change."""


class SweepTurns:
    """The turns of one process: it asks once in a while, and the answer is for all its collections."""

    def __init__(self, consensus: Consensus, pause_s: float, monotonic: Callable[[], float]) -> None:
        self._consensus = consensus
        self._pause_s = pause_s
        self._monotonic = monotonic
        self._asked = float("-inf")
        self._is_ours = False

    def is_due(self, upkeep: MaintenanceTimes, seqno: int, now_ms: int) -> bool:
        """Tell whether to sweep a collection now, and remember that it is swept.

        A collection that did not change since this process swept it is swept once a day, without a turn: only a process
        that slept through the end of its lease can have put something since, and an idle store commits nothing.
        """
        now = self._monotonic()
        is_asked, upkeep.is_sweep_asked = upkeep.is_sweep_asked, False
        if upkeep.swept_seqno == seqno:
            is_due = now - upkeep.listed >= IDLE_SWEEP_S
        else:
            is_due = self.is_ours(now_ms)
        if is_due or is_asked:
            upkeep.swept_seqno, upkeep.listed = seqno, now
        return is_due or is_asked

    def is_ours(self, now_ms: int) -> bool:
        """Tell whether this process sweeps the collections of the store now; otherwise another one did lately."""
        now = self._monotonic()
        if now - self._asked >= self._pause_s:
            self._asked = now
            self._is_ours = take_sweep_turn(self._consensus, now_ms, int(self._pause_s * 1000))
        return self._is_ours


def take_sweep_turn(consensus: Consensus, now_ms: int, pause_ms: int) -> bool:
    """Take the turn to sweep the store if the last one was long enough ago; return whether this process has it.

    A process that has the turn and dies leaves the rest to the next one. A clock that is wrong by more than the pause
    costs a sweep, or delays one until the clocks agree again.
    """
    try:
        last = consensus.head(SWEEPS)
        if last is not None and abs(now_ms - _time_of(last.data)) < pause_ms:
            return False
        expected = None if last is None else last.seqno
        if consensus.compare_and_set([LogWrite(SWEEPS, expected, now_ms.to_bytes(8, "big", signed=True))]) is not None:
            return False
        if expected is not None:
            consensus.truncate(SWEEPS, expected + 1)
    except TimespineError:
        return False  # the next look tries again
    return True


def _time_of(data: bytes) -> int:
    return int.from_bytes(data[:8], "big", signed=True)
