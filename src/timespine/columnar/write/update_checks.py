"""Check updates before the writer buffers them: columns, times, order.

All checks work on whole columns; none loops over rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from timespine.columnar.kernels.consolidate import consolidate
from timespine.columnar.schema.schema import DIFF, Schema
from timespine.errors import UsageError
from timespine.libraries import pc, pl
from timespine.model.frontier import Frontier
from timespine.model.time import Time

ROUNDS_MAX = 64
"""The most rounds of the search, each of which finds one maximal time. The remaining times are kept."""

Times = np.ndarray[tuple[int, int], np.dtype[np.int64]]
"""Times of some updates: a row per update, a column per coordinate."""


def check_updates(table: pa.Table, schema: Schema) -> pa.Table:
    """Return an update table with the fields of the schema; raise a UsageError if it is none."""
    if not isinstance(table, pa.Table):
        raise UsageError(f"updates are an Arrow table, not {type(table).__name__}")
    wanted = schema.update_arrow
    if table.schema.names != wanted.names:
        raise UsageError(f"updates have columns {table.schema.names}, not {wanted.names}")
    for name in wanted.names:
        if table.schema.field(name).type != wanted.field(name).type:
            raise UsageError(
                f"column {name} of updates has type {table.schema.field(name).type}, not {wanted.field(name).type}"
            )
    for name in (*schema.time_names, DIFF):
        if table.column(name).null_count:
            raise UsageError(f"column {name} of updates has {table.column(name).null_count} nulls")
    return pa.Table.from_arrays(table.columns, schema=wanted)


def times_of(table: pa.Table, schema: Schema) -> Times:
    """Return the times of all updates."""
    return np.stack([table.column(name).to_numpy() for name in schema.time_names], axis=1)


def check_not_before(times: Times, lower: Frontier) -> None:
    """Raise a UsageError if some time is not at or after the frontier."""
    inside = at_or_after(times, lower)
    if not inside.all():
        outside = ~inside
        raise UsageError(
            f"{int(outside.sum())} of {len(times)} updates, one of them at time {_time(times, outside)}, "
            f"are not at or after the lower {lower} of the batch"
        )


def at_or_after(times: Times, frontier: Frontier) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which times are at or after the frontier. None is at or after a closed one."""
    found = np.zeros(len(times), dtype=np.bool_)
    for element in frontier.elements:
        found |= (times >= np.array(element, dtype=np.int64)).all(axis=1)
    return found


class MaxTimes:
    """The maximal times of all updates so far, or some more: enough to tell whether all lie below an upper.

    Some update is at or after the upper iff a maximal one is. With one coordinate
    there is one maximal time; with more there may be any number, and the
    largest value of each coordinate would not do: (0, 10) and (10, 0) both lie
    below {(0, 11), (10, 1)}, while (10, 10) does not.
    """

    def __init__(self, arity: int) -> None:
        self._times: Times = np.empty((0, arity), dtype=np.int64)

    def see(self, times: Times) -> None:
        """Add the times of some updates."""
        self._times = _maximal(np.concatenate([self._times, _maximal(times)]))

    def check_before(self, upper: Frontier) -> None:
        """Raise a UsageError if some update is at or after the upper."""
        beyond = at_or_after(self._times, upper)
        if beyond.any():
            raise UsageError(
                f"an update at time {_time(self._times, beyond)} is not before the upper {upper} of the batch"
            )


def _maximal(times: Times) -> Times:
    """Return the maximal ones among some times. If there are very many, others may remain."""
    kept: list[Times] = []
    while len(times) and len(kept) < ROUNDS_MAX:
        # The lexicographically largest time is a maximal one. Remove all times that it covers.
        largest = times
        for place in range(times.shape[1]):
            largest = largest[largest[:, place] == largest[:, place].max()]
        kept.append(largest[0])
        times = times[~(times <= largest[0]).all(axis=1)]
    if len(times):
        kept.extend(np.unique(times, axis=0))
    return np.stack(kept) if kept else times


def _time(times: Times, where: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int | Time:
    """Return the first of some times, for a message."""
    time = tuple(int(coordinate) for coordinate in times[int(np.argmax(where))])
    return time[0] if len(time) == 1 else time


def check_ascending(last: pa.Table | None, table: pa.Table, order: Sequence[str]) -> None:
    """Raise a UsageError unless updates are sorted and consolidated, and begin after the last one before them."""
    if pc.any(pc.equal(table.column(DIFF), 0)).as_py():
        raise UsageError("updates with diff 0 were added to a sorted batch: consolidate them first")
    if last is not None and not is_ascending(pa.concat_tables([last, table.slice(0, 1)]), order):
        raise UsageError("updates were added to a sorted batch that do not come after those before them")
    if not is_ascending(table, order):
        raise UsageError("updates were added to a sorted batch that are not ascending, or not consolidated")


def is_ascending(table: pa.Table, order: Sequence[str]) -> bool:
    """Return whether every update comes strictly after the one before it.

    Compare neighbours column by column, all at once. Only equal neighbours need the next column,
    so that a leading column of distinct values decides alone.
    """
    equal: pl.Series | None = None
    for name in order:
        if pa.types.is_nested(table.schema.field(name).type):
            # Nested values have an order, but no operators. Consolidation gives the table itself if there is
            # nothing to do; it takes longer, and is rarely needed.
            return consolidate(table, order) is table
        column = pl.Series(name, table.column(name))
        before, after = column.slice(0, len(column) - 1), column.slice(1)
        if equal is not None:
            before, after = before.gather(equal), after.gather(equal)
        same = before.eq_missing(after)
        rises = (before < after).fill_null(False) | (before.is_null() & after.is_not_null())
        if not (same | rises).all():
            return False
        places = same.arg_true()
        equal = places if equal is None else equal.gather(places)
        if len(equal) == 0:
            return True
    return False
