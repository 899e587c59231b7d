"""Writing ahead of the seal: updates at any times that are not complete yet, in any order, by anybody.

They are durable at once, and part of the collection when their time is sealed. What is
too late, because its time is sealed already, is refused as a whole, or by rule:

    refuse    an error, and nothing is written
    drop      rows that are too late are left out, and counted
    move      they count from the earliest time that is still open
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from timespine.client.access import Access
from timespine.client.acquire import lease_newest, wanted_of
from timespine.client.given import check_keys, names_of, with_diffs
from timespine.client.inspecting import plain
from timespine.client.moments import Moment, Progress, to_user
from timespine.client.rows import Shape, Updates
from timespine.client.storing import Runs, stored
from timespine.client.writing import Made, Together, commit_together, extent, made_of, once
from timespine.columnar.consolidate import consolidate
from timespine.columnar.intake import to_arrow
from timespine.columnar.runs import count
from timespine.columnar.schema import TIME, Schema
from timespine.columnar.visible import Window
from timespine.core.plan import plan_runs, plan_unsealed
from timespine.core.transitions import Seal, Write
from timespine.errors import UsageError, shown
from timespine.model.frontier import CLOSED, Frontier
from timespine.model.time import Time

REFUSE, DROP, MOVE = "refuse", "drop", "move"
LATE = (REFUSE, DROP, MOVE)
"""What becomes of rows whose time is sealed already."""


class Written(msgspec.Struct, frozen=True):
    """What a write came to."""

    number: int | None
    """Its number among the writes of the collection; None if there was nothing to write."""
    rows: int
    """Updates that were stored: equal ones count once."""
    first: int | Time | None
    """The earliest time of them; None if there are none, or several that are earliest."""
    last: int | Time | None
    """A time at or after all of them."""
    late: int = 0
    """Rows that were too late, and were dropped or moved by rule."""
    seqno: int | None = None
    """The number of the state that has them: that of its commit; None if there was nothing to write."""


class Sealed(msgspec.Struct, frozen=True):
    """What a seal came to."""

    upper: Frontier
    """The collection is complete below this now."""
    seqno: int
    """The number of the state that says so: that of its commit, if it was not so before."""


NOTHING = Written(None, 0, None, None)
NO_TIMES = pa.chunked_array([], pa.int64())


def write(
    access: Access,
    rows: Any,
    at: Moment | None = None,
    times: str | None = None,
    late: str = REFUSE,
    together: Together = (),
) -> Written:
    """Make rows durable at times that are not sealed yet: their own, those of a column, or `at`."""
    access.committer.check_writable()
    made, came = ahead_of(access, rows, at, times, late)
    while True:
        fitted, too_late = fit(access, made, came, late, access.known().upper)
        try:
            done = _written(access, fitted, too_late, together)
        except UsageError:
            # Sealed meanwhile, perhaps: then some more are too late.
            if late == REFUSE or access.state().upper <= fitted.lower:
                raise
            continue
        count_late(access, late, too_late)
        return done


def ahead_of(
    access: Access, rows: Any, at: Moment | None, times: str | None, late: str
) -> tuple[Made, pa.ChunkedArray]:
    """Rows as updates in order, at the times that they are to be written with; and the times that they came with.

    No time is before zero. What comes with one that is goes by the rule for what is late, whatever is sealed.
    """
    if late not in LATE:
        raise UsageError(f"late is one of {', '.join(LATE)}, not {shown(late)}")
    rows = once(rows)
    _, schema = access.schema(access.known())
    if at is not None:
        if times is not None:
            raise UsageError("give either `at` or the column that has the times")
        made = made_of(access, rows, time := access.time_of(at))
        count = to_arrow(rows, made.schema).num_rows if late != REFUSE else 0
        return made, pa.chunked_array([pa.repeat(pa.scalar(time[0], pa.int64()), count)])
    if times is None:
        if names_of(rows).isdisjoint(schema.time_names):
            raise UsageError(
                f"say at which times rows are written: at=..., times='column', or in {', '.join(schema.time_names)}"
            )
        if late == REFUSE or schema.arity != 1:
            return made_of(access, rows, None), NO_TIMES
    if isinstance(rows, list | tuple) and not rows:
        return made_of(access, rows, Frontier.minimum(schema.arity).elements[0]), NO_TIMES
    rows = with_diffs(rows, schema)
    table = to_arrow(rows, _with_column(rows, schema, times or TIME))
    if times is None and not _are_whole(table, TIME):
        return made_of(access, rows, None), NO_TIMES  # which says what is wrong with them
    check_keys(rows, table, schema)
    table = with_times(table, schema, times or TIME)
    came = table.column(TIME)
    if late != REFUSE:
        table, _ = by_rule(table, TIME, 0, late)
    return made_of(access, table, None), came


def fit(access: Access, made: Made, came: pa.ChunkedArray, late: str, upper: Frontier) -> tuple[Made, int]:
    """Updates without those that are too late, up to where it is sealed, or with those moved; and how many rows were.

    Rows came with these times.
    """
    if upper.is_closed:
        raise access.closed()
    is_in_time = made.table.num_rows == 0 or upper <= made.lower
    if late == REFUSE and not is_in_time:
        raise too_late(access, made.lower, upper)
    if late == REFUSE or (is_in_time and made.schema.arity != 1):
        return made, 0
    if made.schema.arity != 1:
        raise UsageError("of times with several coordinates none is the next: write what is too late at other times")
    (first,) = upper.elements[0]
    rows = int(pc.sum(pc.less(came, first)).as_py() or 0)
    if is_in_time:
        return made, rows
    (name,) = made.schema.time_names
    table, _ = by_rule(made.table, name, first, late)
    if late == MOVE:
        table = consolidate(table, (*made.schema.order_names, name))
    lower, latest = extent(table, made.schema)
    return made._replace(table=table, lower=lower, latest=latest), rows


def by_rule(table: pa.Table, name: str, first: int, late: str) -> tuple[pa.Table, int]:
    """Rows without those before a time, or with those moved to it, by the times in a column; and how many that were."""
    is_late = pc.less(table.column(name), first)
    rows = int(pc.sum(is_late).as_py() or 0)
    if late == DROP:
        return table.filter(pc.invert(is_late)), rows
    moved = pc.max_element_wise(table.column(name), pa.scalar(first, pa.int64()))
    place = table.column_names.index(name)
    return table.set_column(place, table.schema.field(place), moved), rows


def too_late(access: Access, lower: Frontier, upper: Frontier) -> UsageError:
    """What to raise about rows at times that are sealed already."""
    return UsageError(
        f"rows at {plain(lower)} come too late: {access.name} is complete up to {upper}; "
        "write them with late='move' or late='drop', or at a later time"
    )


def count_late(access: Access, late: str, rows: int) -> None:
    """Count rows that were dropped or moved because they came too late."""
    if rows:
        counted = "late rows dropped" if late == DROP else "late rows moved"
        count(access.shared.counters_of(access.id), counted, rows)


def _written(access: Access, made: Made, late: int, together: Together) -> Written:
    if made.table.num_rows == 0:
        if together:
            commit_together(access, together)
        return msgspec.structs.replace(NOTHING, late=late)

    def commit(runs: Runs) -> Written:
        answers = commit_together(access, (write_of(access, made, runs), *together))
        return said(made, answers[0], late, answers.seqno(access.id))

    return stored(access, made.id, made.schema, made.table, commit)


def said(made: Made, number: int, late: int, seqno: int) -> Written:
    """What to tell whoever wrote."""
    first = to_user(made.lower.elements[0]) if len(made.lower.elements) == 1 else None
    return Written(number, made.table.num_rows, first, to_user(made.latest) if made.latest else None, late, seqno)


def write_of(access: Access, made: Made, runs: Runs) -> Write:
    """The command that makes runs of these updates part of the collection, once their times are sealed."""
    assert made.latest is not None
    parts = tuple(part for run in runs for part in run.parts)
    # The schema is that of the runs: they may have been made again under a newer one.
    return Write(made.lower, made.latest, parts, runs[0].schema, access.config.inline_total_bytes)


def seal(access: Access, upper: Progress) -> Sealed:
    """Say that nothing more comes before a time. The same again is fine; back is an error."""
    answers = commit_together(access, (Seal(access.frontier_of(upper)),))
    return Sealed(Frontier(answers[0].elements), answers.seqno(access.id))


def unsealed(
    access: Access, lower: Moment | None, upper: Moment | None, columns: Sequence[str] | None, where: Any
) -> Updates:
    """The updates that are durable at times from `lower` to before `upper`, and not sealed yet."""
    with lease_newest(access) as leased:
        state = leased.state
        first = Frontier((access.time_of(lower),)) if lower is not None else Frontier.minimum(state.arity)
        last = Frontier((access.time_of(upper),)) if upper is not None else CLOSED
        plan = plan_runs(state, plan_unsealed(state, first, last))
        wanted = wanted_of(access, state, columns, where, Window(since=state.since), timed=True)
        return Updates(access, leased, plan, wanted, Shape("column"), one_state=True)


# Times in a column.


def _with_column(rows: Any, schema: Schema, name: str) -> Schema | None:
    """The schema to read rows with: none, if they have a column more than it."""
    known = {*schema.names, *schema.system_names}
    return schema if name in known and names_of(rows) <= known else None


def _are_whole(table: pa.Table, name: str) -> bool:
    return table.column_names.count(name) == 1 and bool(pa.types.is_integer(table.column(name).type))


def with_times(table: pa.Table, schema: Schema, name: str) -> pa.Table:
    """Rows with their times from a column of theirs: integers, or points of the wall clock as milliseconds."""
    if schema.arity != 1:
        raise UsageError("times of several coordinates cannot come from one column: give them in the columns of time")
    if table.column_names.count(name) != 1:
        many = "are two columns" if name in table.column_names else "is no column"
        raise UsageError(f"there {many} {shown(name)} to take times from")
    if name != TIME and TIME in table.column_names:
        raise UsageError(f"the rows have times of their own in {TIME}: leave out times={shown(name)}")
    times = milliseconds(table.column(name), name) if table.num_rows else NO_TIMES
    if name not in schema.names:
        table = table.drop_columns([name])
    return table.append_column(TIME, times)


def milliseconds(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """A column of times as integers."""
    if column.null_count:
        raise UsageError(f"column {shown(name)} has {column.null_count} nulls: every row needs a time")
    if pa.types.is_integer(column.type):
        try:
            return column.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise UsageError(f"column {shown(name)} has times that are too large: they are below 2**63") from error
    if pa.types.is_timestamp(column.type):
        if column.type.tz is None:
            raise UsageError(f"column {shown(name)} has no zone, so its times could be anywhere: give it one")
        # Whole milliseconds, downwards.
        try:
            floored = pc.floor_temporal(column, unit="millisecond").cast(pa.timestamp("ms", column.type.tz))
        except pa.ArrowInvalid as error:
            raise UsageError(f"column {shown(name)} has times that are no milliseconds of 64 bits") from error
        return floored.cast(pa.int64())
    if pa.types.is_date(column.type):
        return column.cast(pa.timestamp("ms")).cast(pa.int64())
    raise UsageError(f"column {shown(name)} holds {column.type}: times are integers, dates, or timestamps with a zone")
