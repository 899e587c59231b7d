"""Prepare rows that are written ahead of the seal: updates at any times that are not complete, in any order.

They are durable at once, and count when their time is sealed. Rows whose time is sealed already are late:

    refuse    an error, and nothing is written
        drop      late rows are left out, and counted
        move      late rows get the earliest open time
"""

from __future__ import annotations

from typing import Final

import msgspec
import pyarrow as pa

from timespine.client.arguments.row_args import column_names_of
from timespine.client.arguments.time_args import TimeLike, plain_frontier, unwrap_time
from timespine.client.inner_handles import CollectionHandle
from timespine.client.write.prepare import (
    PreparedRows,
    fill_diffs,
    materialize_once,
    prepare_rows,
    time_bounds,
)
from timespine.client.write.stage_rows import Runs
from timespine.client.write.time_column import NO_TIMES, are_integers, schema_to_read, with_times
from timespine.client.write_results import WriteResult
from timespine.columnar.ingest.require_key_columns import check_key_columns
from timespine.columnar.ingest.to_arrow import to_arrow
from timespine.columnar.kernels.consolidate import consolidate
from timespine.columnar.parts.part_list_tree import add_to_counter
from timespine.columnar.schema.schema import TIME
from timespine.core.transitions import Write
from timespine.errors import LateRows, UsageError, short_repr
from timespine.hints import Hint
from timespine.libraries import pc
from timespine.model.frontier import Frontier

REFUSE: Final = "refuse"
DROP: Final = "drop"
MOVE: Final = "move"
LATE = (REFUSE, DROP, MOVE)
"""The late policies."""


def prepare_unsealed(
    handle: CollectionHandle, rows: object, at: TimeLike | None, times: str | None, late: str
) -> tuple[PreparedRows, pa.ChunkedArray]:
    """Prepare rows at their times; also return the times before the late policy.

    Times are not negative: the late policy applies to rows with a negative time, whatever is sealed.
    """
    if late not in LATE:
        raise UsageError(f"late is one of {', '.join(LATE)}, not {short_repr(late)}")
    rows = materialize_once(rows)
    _, schema = handle.schema(handle.known())
    if at is not None:
        if times is not None:
            raise UsageError("the times of rows are given twice", hint=Hint("give-at-or-times"))
        prepared = prepare_rows(handle, rows, time := handle.time_of(at))
        count = to_arrow(rows, prepared.schema).num_rows if late != REFUSE else 0
        return prepared, pa.chunked_array([pa.repeat(pa.scalar(time[0], pa.int64()), count)])
    if times is None:
        if column_names_of(rows).isdisjoint(schema.time_names):
            hint = Hint("give-write-times", {"columns": ", ".join(schema.time_names)})
            raise UsageError("the rows do not say at which times they are written", hint=hint)
        if late == REFUSE or schema.arity != 1:
            return prepare_rows(handle, rows, None), NO_TIMES
    if isinstance(rows, list | tuple) and not rows:
        return prepare_rows(handle, rows, Frontier.minimum(schema.arity).elements[0]), NO_TIMES
    rows = fill_diffs(rows, schema)
    table = to_arrow(rows, schema_to_read(rows, schema, times or TIME))
    if times is None and not are_integers(table, TIME):
        return prepare_rows(handle, rows, None), NO_TIMES  # raises the error that explains them
    check_key_columns(rows, table, schema)
    table = with_times(table, schema, times or TIME)
    came = table.column(TIME)
    if late != REFUSE:
        table, _ = apply_late_policy(table, TIME, 0, late)
    return prepare_rows(handle, table, None), came


def apply_late_policy_to(
    handle: CollectionHandle, prepared: PreparedRows, came: pa.ChunkedArray, late: str, upper: Frontier
) -> tuple[PreparedRows, int]:
    """Drop or move updates before the upper, by the late policy; count the late rows."""
    if upper.is_closed:
        raise handle.closed()
    is_in_time = prepared.table.num_rows == 0 or upper <= prepared.lower
    if late == REFUSE and not is_in_time:
        raise late_rows_error(handle, prepared.lower, upper)
    if late == REFUSE or (is_in_time and prepared.schema.arity != 1):
        return prepared, 0
    if prepared.schema.arity != 1:
        raise UsageError("times with several coordinates have no earliest open one: write late rows at other times")
    first = upper.time
    rows = int(pc.sum(pc.less(came, first)).as_py() or 0)
    if is_in_time:
        return prepared, rows
    (name,) = prepared.schema.time_names
    table, _ = apply_late_policy(prepared.table, name, first, late)
    if late == MOVE:
        table = consolidate(table, (*prepared.schema.order_names, name))
    lower, latest = time_bounds(table, prepared.schema)
    return msgspec.structs.replace(prepared, table=table, earliest=lower, latest=latest), rows


def apply_late_policy(table: pa.Table, name: str, first: int, late: str) -> tuple[pa.Table, int]:
    """Drop rows before a time, or move them to it, by the times in a column; count them."""
    is_late = pc.less(table.column(name), first)
    rows = int(pc.sum(is_late).as_py() or 0)
    if late == DROP:
        return table.filter(pc.invert(is_late)), rows
    moved = pc.max_element_wise(table.column(name), pa.scalar(first, pa.int64()))
    place = table.column_names.index(name)
    return table.set_column(place, table.schema.field(place), moved), rows


def late_rows_error(handle: CollectionHandle, lower: Frontier, upper: Frontier) -> LateRows:
    """Make the error for late rows of a write."""
    return LateRows(
        f"rows at {plain_frontier(lower)} come too late: {handle.name} is complete up to {upper}",
        lower,
        upper,
        hint=Hint("move-or-drop-late"),
    )


def count_late(handle: CollectionHandle, late: str, rows: int) -> None:
    """Count late rows that were dropped or moved."""
    if rows:
        counted = "late rows dropped" if late == DROP else "late rows moved"
        add_to_counter(handle.context.counters_of(handle.id), counted, rows)


def write_result(prepared: PreparedRows, number: int, late: int, seqno: int) -> WriteResult:
    """Make the result of a write."""
    first = unwrap_time(prepared.lower.elements[0]) if len(prepared.lower.elements) == 1 else None
    return WriteResult(
        number, prepared.table.num_rows, first, unwrap_time(prepared.latest) if prepared.latest else None, late, seqno
    )


def write_command(handle: CollectionHandle, prepared: PreparedRows, runs: Runs) -> Write:
    """Make the command that adds runs of unsealed updates."""
    assert prepared.latest is not None
    parts = tuple(part for run in runs for part in run.parts)
    # The schema is that of the runs: they may have been prepared again under a newer one.
    return Write(prepared.lower, prepared.latest, parts, runs[0].schema, handle.config.inline_total_bytes)
