"""What of a part is seen through a reference to it, and at which times. Vectorised.

An update of a part, written at time t, counts for a reader of (after, until] when

    part.lower <= t  and not  part.upper <= t        (truncation)
    seen = advance_by(t, part.rewrite)               (rewriting)
    seen <= until  and not  seen <= after

The same as `core.read_plan.Plan.counts`, for a million updates at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from timespine.columnar.schema.schema import time_names
from timespine.core.batch import Part
from timespine.errors import UsageError
from timespine.model.frontier import Frontier
from timespine.model.time import Time

Coordinates = tuple[NDArray[np.int64], ...]
"""The times of some updates: one array per coordinate."""


@dataclass(frozen=True, slots=True)
class Window:
    """Which times count, and how they are shown."""

    after: Time | None = None
    """Updates at or before this do not count."""
    until: Time | None = None
    """Updates not at or before this do not count; None: all do."""
    since: Frontier | None = None
    """Times are advanced to this; None: shown as they are."""


ALL_TIMES = Window()
"""Every update, at the time it was written with."""


def is_seen_as_written(part: Part) -> bool:
    """Return whether a reference to a part shows all its updates, at the times that they were written with."""
    return part.lower is None and part.upper is None and part.rewrite is None


def apply_visibility(table: pa.Table, part: Part, window: Window, arity: int) -> pa.Table:
    """Return the updates that count, at the times they are seen at."""
    names = time_names(arity)
    times: Coordinates = tuple(_array(table, name) for name in names)
    mask = None
    if part.lower is not None:
        mask = _at_or_after(part.lower, times)
    if part.upper is not None:
        below = ~_at_or_after(part.upper, times)
        mask = below if mask is None else mask & below
    moved = times
    if part.rewrite is not None:
        moved = advance_times(moved, part.rewrite)
    if window.until is not None:
        within = _at_or_before(moved, window.until)
        mask = within if mask is None else mask & within
    if window.after is not None:
        later = ~_at_or_before(moved, window.after)
        mask = later if mask is None else mask & later
    if window.since is not None:
        moved = advance_times(moved, window.since)
    for name, before, now in zip(names, times, moved, strict=True):
        if now is not before:
            table = table.set_column(table.column_names.index(name), table.schema.field(name), pa.array(now))
    if mask is None or mask.all():
        return table
    return table.filter(pa.array(mask))


def advance_times(times: Coordinates, since: Frontier) -> Coordinates:
    """Advance times to a frontier.

    meet over s of join(t, s) is, coordinate by coordinate, the larger of t and the
    smallest of that coordinate in the frontier: min over s of max(t, s) = max(t, min over s of s).
    """
    if since.is_closed:
        raise UsageError("times cannot be advanced to a closed frontier: no time would be readable")
    least = [min(element[index] for element in since.elements) for index in range(len(times))]
    return tuple(
        array if bound == 0 or (len(array) and array.min() >= bound) else np.maximum(array, bound)
        for array, bound in zip(times, least, strict=True)
    )


def _array(table: pa.Table, name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    column = table.column(name)
    chunk = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return chunk.to_numpy(zero_copy_only=False) if len(chunk) else np.empty(0, dtype=np.int64)


def _at_or_before(times: Coordinates, bound: Time) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    mask = times[0] <= bound[0]
    for array, coordinate in zip(times[1:], bound[1:], strict=True):
        mask &= array <= coordinate
    return mask


def _at_or_after(frontier: Frontier, times: Coordinates) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which times are at or after some element. None is after a closed frontier."""
    mask = np.zeros(len(times[0]), dtype=np.bool_)
    for element in frontier.elements:
        above = times[0] >= element[0]
        for array, coordinate in zip(times[1:], element[1:], strict=True):
            above &= array >= coordinate
        mask |= above
    return mask
