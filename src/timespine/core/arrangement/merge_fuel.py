"""How the levels of a spine share the time of merging.

Fuel is counted in rows of input. A merge of level 0 runs to its end in one slice: it has at most 64 batches of level 0,
which take about a tenth of a second. The other levels run in turns. Each turn adds the average size of a merge of
level 0 to the credit of the level, and the level runs a slice once its credit covers the slice (deficit round robin).

## Why slices are larger than a turn's share

A vectorised kernel has costs per call, so a slice of 10,000 rows would spend most of its time on calls. A slice has

    max(average, SLICE_ROWS)

rows, and a level skips turns until its credit covers that. Two levels that both have work for a while thus differ by
at most one slice in the rows that they merged, however long the while is. `tests/core/arrangement/test_merge_fuel.py`
checks this. A level that is alone with its work runs at once: saving credit would only waste time.

## Why no level starves, and batches do not pile up

- Every level with work gets as many rows per turn as level 0 does, so none starves.
- A row of a small batch is merged at least once at level 0 before it leaves it. At a higher level it is merged once
  per merge there: a merge of ten or more batches of similar size leaves the level. So a level that has fallen behind
  merges more batches at once, at most 64, and then needs one row of work for each row of level 0, which is its share.
- Rows that skip level 0, in large batches, leave all the time to the other levels.
- If merging as a whole is too slow, insertion waits (`core/arrangement/levels.py`).
"""

from __future__ import annotations

AVERAGE_FIRST = 10_000
"""The average size of a merge of level 0 before there was one, in rows."""

AVERAGE_OF = 128
"""The weight of the past in the moving average: a merge counts 1/128. A burst of large batches changes the share of the
other levels only if it lasts."""

SLICE_ROWS = 65_536
"""Rows of a slice, at least: below this the costs per call of a vectorised kernel outweigh its work."""


def next_average(average: int, rows: int) -> int:
    """Return the moving average of the sizes of merges of level 0, after one more; at least 1."""
    return max(((AVERAGE_OF - 1) * average + rows + AVERAGE_OF // 2) // AVERAGE_OF, 1)


def slice_rows(average: int, smallest: int = SLICE_ROWS) -> int:
    """Return the rows of a slice."""
    return max(average, smallest)


def runs_slice(credit: int, rows: int, is_alone: bool) -> bool:
    """Tell whether a level runs a slice in this turn: its credit covers it, or no other level has work."""
    return is_alone or credit >= rows


def charge(credit: int, rows: int) -> int:
    """Return the credit after a slice. A level that ran without credit, being alone, is not punished for it later."""
    return max(credit - rows, 0)
