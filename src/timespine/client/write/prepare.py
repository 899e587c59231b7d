"""Prepare rows: convert them to updates of the schema, in order unless they are too many.

Callers give rows as dictionaries, columns, Arrow, Polars or pandas. This module converts them once; every later
station of a write has Arrow tables.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa

from timespine.client.arguments.argument_types import RowsLike
from timespine.client.arguments.row_args import are_dicts, column_names_of
from timespine.client.arguments.time_args import FrontierLike, TimeLike, plain_frontier, unwrap_time
from timespine.client.inner_handles import CollectionHandle
from timespine.columnar.ingest.few_plain_rows import convert_few_rows
from timespine.columnar.ingest.require_key_columns import require_key_columns
from timespine.columnar.ingest.to_arrow import to_arrow
from timespine.columnar.ingest.update_table import update_table
from timespine.columnar.kernels.consolidate import check_weights, consolidate
from timespine.columnar.schema.schema import DIFF, Schema
from timespine.errors import InvalidRows, LateRows, UsageError
from timespine.hints import Hint
from timespine.libraries import is_frame
from timespine.model.frontier import Frontier
from timespine.model.time import INT64_MAX, Time

MINIMAL_MAX = 64
"""Most minimal times of one append that are kept apart, for times with several coordinates."""


class PreparedRows(msgspec.Struct, frozen=True):
    """Updates of one collection that are not durable yet."""

    handle: CollectionHandle
    id: int
    """The id of the schema that they are prepared with."""
    schema: Schema
    table: pa.Table
    earliest: Frontier | None
    """The minimal times of all rows of the caller, also of rows that cancelled out; closed if there were none. None:
    all of them are at `latest`."""
    latest: Time | None
    """A time at or after all of them."""
    share: int = 1
    """The number of appends that they come from: each of those may be inline."""
    is_sorted: bool = True
    """Whether they are consolidated and in order. If they are too many, each part is sorted when it is written."""

    @property
    def lower(self) -> Frontier:
        """The minimal times of all rows, as a frontier."""
        if self.earliest is not None:
            return self.earliest
        assert self.latest is not None  # it is the one time
        return Frontier((self.latest,))

    @property
    def time(self) -> int | Time | None:
        """The time of all rows; None if they have several, or there are none."""
        return unwrap_time(self.latest) if self.latest is not None and self.lower.elements == (self.latest,) else None


def prepare_rows(handle: CollectionHandle, rows: object, at: Time | None, *, sort_all: bool = True) -> PreparedRows:
    """Convert rows to updates. If they do not fit the known schema, read the newest one.

    Sort them, unless the caller needs no order (`sort_all`) and they are more than `Config.sort_bytes`.
    """
    known, sort_bytes = handle.known(), handle.config.sort_bytes
    id, schema = handle.schema(known)
    try:
        table = to_updates(rows, schema, at)
    except InvalidRows:
        state = handle.state()
        if len(state.schemas) == len(known.schemas):
            raise
        id, schema = handle.schema(state)
        table = to_updates(rows, schema, at)
    earliest, latest = (None, at) if at is not None else time_bounds(table, schema)
    is_sorted = sort_all or table.nbytes <= sort_bytes
    check_weights(table, schema)
    if is_sorted:
        table = consolidate(table, (*schema.order_names, *schema.time_names))
    return PreparedRows(handle, id, schema, table, earliest, latest, is_sorted=is_sorted)


def to_updates(rows: object, schema: Schema, at: Time | None) -> pa.Table:
    """Convert rows to an update table: in the order given, not consolidated."""
    plain = convert_few_rows(rows, schema, at)
    return plain if plain is not None else convert_any_rows(rows, schema, at)


def convert_any_rows(rows: object, schema: Schema, at: Time | None) -> pa.Table:
    """Convert rows of any kind to an update table, or raise the error that says what is wrong with them."""
    return update_table(require_key_columns(fill_diffs(rows, schema), schema), schema, at)


def materialize_once(rows: RowsLike) -> RowsLike:
    """Read rows that can be read only once into memory; return all others unchanged.

    SUBTLE: a write that starts again, because another writer was first or the schema changed, would find a reader at
    its end and take that for no rows (test_spark_writes.py, test_changes_beside_others.py).
    """
    return to_arrow(rows) if hasattr(rows, "__arrow_c_stream__") and not _is_table(rows) else rows


def _is_table(rows: object) -> bool:
    """Return whether rows are in memory as columns."""
    return isinstance(rows, pa.Table) or is_frame(rows) or hasattr(rows, "iloc")


def fill_diffs(rows: object, schema: Schema) -> object:
    """Set the diff of dictionaries without one to +1, if others have one. Refuse times that only some of them have."""
    if not isinstance(rows, list | tuple) or not are_dicts(rows):
        return rows
    there = column_names_of(rows)
    for name in there.intersection(schema.time_names):
        lacking = sum(name not in row for row in rows)
        if lacking:
            raise InvalidRows(f"{lacking} of {len(rows)} rows have no {name}: give it in all of them, or in none")
    return [row if DIFF in row else {**row, DIFF: 1} for row in rows] if DIFF in there else rows


# Times.


def next_free_time(handle: CollectionHandle, upper: Frontier) -> int:
    """Return the next free time after an upper."""
    return max(handle.next_time(), upper.time if upper.elements else 0)


def has_no_times(handle: CollectionHandle, rows: object, at: TimeLike | None) -> bool:
    """Return whether neither the caller nor the rows name the times of the rows."""
    _, schema = handle.schema(handle.known())
    return at is None and schema.arity == 1 and column_names_of(rows).isdisjoint(schema.time_names)


def upper_of_append(
    handle: CollectionHandle, upper: FrontierLike | None, latest: Time | None, schema: Schema
) -> Frontier:
    """Return the upper after an append of rows up to a time: as given, or just past them."""
    if upper is not None:
        return handle.frontier_of(upper)
    if latest is None:
        raise UsageError("there is nothing to append", hint=Hint("give-rows-or-upper"))
    if schema.arity != 1:
        text = "with several coordinates rows do not say how far they complete the collection"
        raise UsageError(text, hint=Hint("give-upper"))
    return upper_after(latest[0])


def check_below(table: pa.Table, schema: Schema, upper: Frontier) -> None:
    """Raise a UsageError for rows at or after the upper of their append."""
    arrays = [table.column(name).to_numpy() for name in schema.time_names]
    for element in upper.elements:
        beyond = arrays[0] >= element[0]
        for array, coordinate in zip(arrays[1:], element[1:], strict=True):
            beyond &= array >= coordinate
        if beyond.any():
            raise rows_beyond_error(upper)


def rows_beyond_error(upper: Frontier) -> UsageError:
    """Make the error for rows at or after the upper of their append."""
    return UsageError(f"some rows have times at or after {upper}, the upper of this append: give an upper after them")


def check_not_before_upper(expected: Frontier | None, lower: Frontier) -> None:
    """Raise a UsageError for rows before the upper that an append expects.

    SUBTLE: no later station looks at the times in the rows. Rows before the upper would change results of earlier
    reads: at once, or when a merge puts them beside older rows (test_spark_writes.py).
    """
    if expected is not None and not expected <= lower:
        raise UsageError(f"rows at {plain_frontier(lower)} are before the upper {expected} that this append expects")


def late_append_error(handle: CollectionHandle, lower: Frontier, upper: Frontier) -> LateRows:
    """Make the error for late rows of an append."""
    return LateRows(
        f"rows at {plain_frontier(lower)} come too late: {handle.name} is complete up to {upper}", lower, upper
    )


def upper_after(time: int) -> Frontier:
    """Return the upper of a collection that is complete up to a time."""
    if time >= INT64_MAX:
        raise UsageError(f"time {time} is the last there is: nothing completes it but closing the collection")
    return Frontier.at(time + 1)


def time_bounds(table: pa.Table, schema: Schema) -> tuple[Frontier, Time | None]:
    """Find the minimal times of a table, and a time at or after all of them."""
    if table.num_rows == 0:
        return Frontier(), None
    arrays = [table.column(name).to_numpy() for name in schema.time_names]
    latest = tuple(int(array.max()) for array in arrays)
    if len(arrays) == 1:
        return Frontier.at(int(arrays[0].min())), latest
    distinct = np.unique(np.stack(arrays, axis=1), axis=0)
    minimal: list[Time] = []
    while len(distinct) and len(minimal) < MINIMAL_MAX:
        # In lexicographic order, the first remaining time is at or after none of the others.
        minimal.append(tuple(int(each) for each in distinct[0]))
        distinct = distinct[(distinct < distinct[0]).any(axis=1)]
    if len(distinct):  # too many: use one time before all of them
        minimal = [tuple(int(array.min()) for array in arrays)]
    return Frontier(tuple(minimal)), latest
