"""Appending: rows become a run, the run becomes durable, and a commit points at it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec
import pyarrow as pa

from timespine.client.access import Access
from timespine.client.driver import fresh_id
from timespine.client.moments import Moment, to_time, to_user
from timespine.columnar.consolidate import consolidate
from timespine.columnar.inline import encode_inline
from timespine.columnar.rows import updates
from timespine.columnar.run_writer import RunWriter, inline_part
from timespine.columnar.runs import count, delete_batch, spill, written_by
from timespine.columnar.schema import Schema
from timespine.columnar.upload import Target, Uploads
from timespine.core.hollow import HollowBatch, Order, Run
from timespine.core.transitions import AppendNext, CompareAndAppend
from timespine.errors import Fenced, InlineBudgetExceeded, UpperMismatch, UsageError
from timespine.model.description import Description
from timespine.model.frontier import Frontier
from timespine.model.time import Time

R = TypeVar("R")


class Committed(msgspec.Struct, frozen=True):
    """What an append came to."""

    time: int | Time | None
    """The time of its updates; None if they have several, or there are none."""
    upper: Frontier
    """The collection is complete below this now."""
    rows: int
    """Updates that were stored: equal ones count once."""


def append(
    access: Access,
    rows: Any,
    at: Moment | None,
    upper: Moment | None,
    expected_upper: Moment | None,
    operation: str = "append",
) -> Committed:
    """Append rows at the time they name, at `at`, or at the next free time."""
    state = access.known()
    _, schema = access.schema(state)
    given = to_time(at, schema.arity) if at is not None else None
    free = given is None and expected_upper is None and schema.arity == 1 and not _has_times(rows, schema)
    if not free:
        table = _updates(access, rows, given)
        return _append_at(access, table, upper, expected_upper, operation)
    tentative = max(access.next_time(), state.upper.elements[0][0] if state.upper.elements else 0)
    table = _updates(access, rows, (tentative,))
    return _append_next(access, table, tentative, upper, operation)


class Made(NamedTuple):
    """Rows as updates, in order."""

    id: int
    """The schema that they are written with."""
    schema: Schema
    table: pa.Table
    earliest: Time | None
    """A time at or before all that were given, those included that cancelled out."""
    latest: Time | None
    """A time at or after them."""


def _updates(access: Access, rows: Any, at: Time | None) -> Made:
    """Rows as updates in order. If they do not fit the schema that is known, a newer one is looked for."""
    known = access.known()
    id, schema = access.schema(known)
    try:
        table = updates(rows, schema, at)
    except UsageError:
        state = access.state()
        if len(state.schemas) == len(known.schemas):
            raise
        id, schema = access.schema(state)
        table = updates(rows, schema, at)
    earliest, latest = _extent(table, schema)
    return Made(id, schema, consolidate(table, (*schema.order_names, *schema.time_names)), earliest, latest)


def _append_next(access: Access, made: Made, at: int, upper: Moment | None, operation: str) -> Committed:
    """Append rows that stand at one time, at that time or the next free one."""
    id, schema, table, *_ = made
    limit = access.config.inline_total_bytes
    complete = to_time(upper, 1)[0] if upper is not None else None

    def commit(runs: tuple[Run, ...]) -> Committed:
        batch = HollowBatch(_anywhere(1), table.num_rows, runs)
        (reply,) = access.committer.commit((access.id, AppendNext(batch, at, complete, operation, limit)))
        return Committed(reply.time, reply.upper, table.num_rows)

    return stored(access, id, schema, table, commit)


def _append_at(
    access: Access,
    made: Made,
    upper: Moment | None,
    expected_upper: Moment | None,
    operation: str,
) -> Committed:
    """Append rows whose times are fixed, for as long as those are not sealed."""
    id, schema, table, earliest, latest = made
    if upper is not None:
        new_upper = Frontier((to_time(upper, schema.arity),))
    elif latest is None:
        raise UsageError("nothing to append, and no `upper` to advance to")
    elif schema.arity != 1:
        raise UsageError("with several coordinates say how far this completes the collection: upper=(...)")
    else:
        new_upper = Frontier.at(latest[0] + 1)
    if not _is_below(table, schema, new_upper):
        raise UsageError(f"some rows are at or after the upper {new_upper} that this append is to complete")
    expected = Frontier((to_time(expected_upper, schema.arity),)) if expected_upper is not None else None

    def commit(runs: tuple[Run, ...]) -> Committed:
        believed = expected if expected is not None else access.known().upper
        while True:
            if earliest is not None and not believed.less_equal(earliest) and expected is None:
                raise UsageError(
                    f"rows at {to_user(earliest)} come too late: {access.name} is complete up to {believed}"
                )
            batch = HollowBatch(Description(believed, new_upper, Frontier.minimum(schema.arity)), table.num_rows, runs)
            command = CompareAndAppend(
                (batch,) if runs else (), believed, new_upper, operation, access.config.inline_total_bytes
            )
            try:
                (reached,) = access.committer.commit((access.id, command))
            except UpperMismatch as mismatch:
                if expected is not None:
                    raise
                if not isinstance(mismatch.actual, Frontier):
                    raise
                believed = mismatch.actual
                continue
            return Committed(
                to_user(latest) if latest is not None and earliest == latest else None, reached, table.num_rows
            )

    return stored(access, id, schema, table, commit)


def stored(access: Access, id: int, schema: Schema, table: pa.Table, commit: Callable[[tuple[Run, ...]], R]) -> R:
    """Make rows durable and commit what points at them; whatever is refused is deleted again."""
    try:
        return _stored(access, id, schema, table, commit, inline=True)
    except InlineBudgetExceeded:
        return _stored(access, id, schema, table, commit, inline=False)
    except Fenced as fenced:
        # This process slept past its lease, and what it put may be swept: put it again under a new writer.
        if fenced.in_doubt:
            raise
    return _stored(access, id, schema, table, commit, inline=False)


def _stored(
    access: Access,
    id: int,
    schema: Schema,
    table: pa.Table,
    commit: Callable[[tuple[Run, ...]], R],
    *,
    inline: bool,
) -> R:
    runs, batch = make_runs(access, id, schema, table, inline=inline)
    try:
        done = commit(runs)
        count(
            access.shared.counters_of(access.id), "append bytes", sum(part.size for run in runs for part in run.parts)
        )
        count(access.shared.counters_of(access.id), "append rows", table.num_rows)
        return done
    except Exception as error:
        # SUBTLE: what may have been committed must not be deleted (test_writing.py).
        surely_not = isinstance(error, UsageError | UpperMismatch | InlineBudgetExceeded) or (
            isinstance(error, Fenced) and not error.in_doubt
        )
        if surely_not and batch is not None:
            owned = written_by(access.id, access.committer.session.writer)
            delete_batch(batch, access.shared.blob, owned=owned, counters=access.shared.counters)
        raise


def make_runs(
    access: Access, id: int, schema: Schema, table: pa.Table, *, inline: bool = True
) -> tuple[tuple[Run, ...], HollowBatch | None]:
    """Rows in order as a run: inline if it is tiny, else as parts; and the blobs to delete if it comes to nothing."""
    if table.num_rows == 0:
        return (), None
    config = access.config
    if inline and table.nbytes <= 16 * config.inline_part_bytes:
        data = encode_inline(table)
        # Full by what is known already: the commit would only say so.
        fits = access.known().inline_bytes + len(data) <= config.inline_total_bytes
        if fits and len(data) <= config.inline_part_bytes:
            return (Run((inline_part(table, data),), Order.SORTED, id),), None
    writer = access.committer.writer(access.id)
    shared = access.shared
    target = Target(access.id, writer, schema, id, shared.blob, config)
    uploads = Uploads(
        config.outstanding_parts,
        shared.pool if table.nbytes > config.part_bytes else None,
        shared.counters,
        target.clock,
    )
    run = RunWriter(target, uploads, fresh_id)
    run.add([table])
    parts = run.finish()

    def put(data: bytes) -> str:
        key = target.key(fresh_id("h"))
        shared.blob.put(key, data)
        return key

    listed = spill(parts, put, limit=config.run_parts, may_spill=written_by(access.id, writer))
    runs = (Run(listed, Order.SORTED, id),)
    return runs, HollowBatch(_anywhere(schema.arity), table.num_rows, runs)


def _anywhere(arity: int) -> Description:
    """A description for a batch whose place is decided when it is committed."""
    minimum = Frontier.minimum(arity)
    return Description(minimum, Frontier(), minimum)


def _has_times(rows: Any, schema: Schema) -> bool:
    """Whether rows bring their own times."""
    names = set(schema.time_names)
    if isinstance(rows, list):
        return any(isinstance(row, dict) and not names.isdisjoint(row) for row in rows[:1])
    columns = getattr(rows, "column_names", None) or getattr(rows, "columns", None)
    if columns is None and isinstance(rows, dict):
        columns = list(rows)
    if columns is None and hasattr(rows, "schema"):
        columns = rows.schema.names
    return columns is not None and not names.isdisjoint(map(str, columns))


def _extent(table: pa.Table, schema: Schema) -> tuple[Time | None, Time | None]:
    """A time at or before all times of a table, and one at or after them."""
    if table.num_rows == 0:
        return None, None
    arrays = [table.column(name).to_numpy() for name in schema.time_names]
    return tuple(int(array.min()) for array in arrays), tuple(int(array.max()) for array in arrays)


def _is_below(table: pa.Table, schema: Schema, upper: Frontier) -> bool:
    """Whether no time of a table is at or after a frontier."""
    arrays = [table.column(name).to_numpy() for name in schema.time_names]
    for element in upper.elements:
        beyond = arrays[0] >= element[0]
        for array, coordinate in zip(arrays[1:], element[1:], strict=True):
            beyond &= array >= coordinate
        if beyond.any():
            return False
    return True
