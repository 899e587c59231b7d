"""Prepare rows that are written ahead of the seal: updates at any times that are not complete yet, in any order.

They are durable at once, and count when their time is sealed. Rows whose time is sealed already are late:

    refuse    an error, and nothing is written
    drop      late rows are left out, and counted
    move      late rows count from the earliest time that is still open
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from timespine.client.context import Access
from timespine.client.results import WriteResult
from timespine.client.row_args import names_of
from timespine.client.time_args import Moment, plain, to_user
from timespine.client.write.prepare import (
    PreparedRows,
    check_keys,
    fill_diffs,
    materialize_once,
    prepare_rows,
    time_bounds,
)
from timespine.client.write.stage import Runs
from timespine.client.write.time_column import NO_TIMES, are_integers, schema_to_read, with_times
from timespine.columnar.ingest.to_arrow import to_arrow
from timespine.columnar.kernels.consolidate import consolidate
from timespine.columnar.parts.hollow_run import count
from timespine.columnar.schema.schema import TIME
from timespine.core.transitions import Write
from timespine.errors import LateRows, UsageError, shown
from timespine.hints import Hint
from timespine.model.frontier import Frontier

REFUSE: Final = "refuse"
DROP: Final = "drop"
MOVE: Final = "move"
LATE = (REFUSE, DROP, MOVE)
"""The late policies."""


def prepare_unsealed(
    access: Access, rows: Any, at: Moment | None, times: str | None, late: str
) -> tuple[PreparedRows, pa.ChunkedArray]:
    """Prepare rows at the times they are to be written with; also give the times that they came with.

    No time is before zero. The late policy applies to rows with a negative time, whatever is sealed.
    """
    if late not in LATE:
        raise UsageError(f"late is one of {', '.join(LATE)}, not {shown(late)}")
    rows = materialize_once(rows)
    _, schema = access.schema(access.known())
    if at is not None:
        if times is not None:
            raise UsageError("the times of rows are given twice", hint=Hint("give-at-or-times"))
        prepared = prepare_rows(access, rows, time := access.time_of(at))
        count = to_arrow(rows, prepared.schema).num_rows if late != REFUSE else 0
        return prepared, pa.chunked_array([pa.repeat(pa.scalar(time[0], pa.int64()), count)])
    if times is None:
        if names_of(rows).isdisjoint(schema.time_names):
            hint = Hint("give-write-times", {"columns": ", ".join(schema.time_names)})
            raise UsageError("the rows do not say at which times they are written", hint=hint)
        if late == REFUSE or schema.arity != 1:
            return prepare_rows(access, rows, None), NO_TIMES
    if isinstance(rows, list | tuple) and not rows:
        return prepare_rows(access, rows, Frontier.minimum(schema.arity).elements[0]), NO_TIMES
    rows = fill_diffs(rows, schema)
    table = to_arrow(rows, schema_to_read(rows, schema, times or TIME))
    if times is None and not are_integers(table, TIME):
        return prepare_rows(access, rows, None), NO_TIMES  # its error says what is wrong with them
    check_keys(rows, table, schema)
    table = with_times(table, schema, times or TIME)
    came = table.column(TIME)
    if late != REFUSE:
        table, _ = apply_late_policy(table, TIME, 0, late)
    return prepare_rows(access, table, None), came


def apply_late_policy_to(
    access: Access, prepared: PreparedRows, came: pa.ChunkedArray, late: str, upper: Frontier
) -> tuple[PreparedRows, int]:
    """Drop or move updates before the upper, by the late policy; count the rows that came with such times."""
    if upper.is_closed:
        raise access.closed()
    is_in_time = prepared.table.num_rows == 0 or upper <= prepared.lower
    if late == REFUSE and not is_in_time:
        raise late_rows_error(access, prepared.lower, upper)
    if late == REFUSE or (is_in_time and prepared.schema.arity != 1):
        return prepared, 0
    if prepared.schema.arity != 1:
        raise UsageError("of times with several coordinates none is the next: write what is too late at other times")
    (first,) = upper.elements[0]
    rows = int(pc.sum(pc.less(came, first)).as_py() or 0)
    if is_in_time:
        return prepared, rows
    (name,) = prepared.schema.time_names
    table, _ = apply_late_policy(prepared.table, name, first, late)
    if late == MOVE:
        table = consolidate(table, (*prepared.schema.order_names, name))
    lower, latest = time_bounds(table, prepared.schema)
    return msgspec.structs.replace(prepared, table=table, lower=lower, latest=latest), rows


def apply_late_policy(table: pa.Table, name: str, first: int, late: str) -> tuple[pa.Table, int]:
    """Drop rows before a time, or move them to it, by the times in a column; count them."""
    is_late = pc.less(table.column(name), first)
    rows = int(pc.sum(is_late).as_py() or 0)
    if late == DROP:
        return table.filter(pc.invert(is_late)), rows
    moved = pc.max_element_wise(table.column(name), pa.scalar(first, pa.int64()))
    place = table.column_names.index(name)
    return table.set_column(place, table.schema.field(place), moved), rows


def late_rows_error(access: Access, lower: Frontier, upper: Frontier) -> LateRows:
    """Make the error for rows at times that are sealed already."""
    return LateRows(
        f"rows at {plain(lower)} come too late: {access.name} is complete up to {upper}",
        lower,
        upper,
        hint=Hint("move-or-drop-late"),
    )


def count_late(access: Access, late: str, rows: int) -> None:
    """Count rows that were dropped or moved because they came too late."""
    if rows:
        counted = "late rows dropped" if late == DROP else "late rows moved"
        count(access.shared.counters_of(access.id), counted, rows)


def write_result(prepared: PreparedRows, number: int, late: int, seqno: int) -> WriteResult:
    """Make the answer to a write."""
    first = to_user(prepared.lower.elements[0]) if len(prepared.lower.elements) == 1 else None
    return WriteResult(
        number, prepared.table.num_rows, first, to_user(prepared.latest) if prepared.latest else None, late, seqno
    )


def write_command(access: Access, prepared: PreparedRows, runs: Runs) -> Write:
    """Make the command that adds runs of these updates, which count once their times are sealed."""
    assert prepared.latest is not None
    parts = tuple(part for run in runs for part in run.parts)
    # The schema is that of the runs: they may have been prepared again under a newer one.
    return Write(prepared.lower, prepared.latest, parts, runs[0].schema, access.config.inline_total_bytes)
