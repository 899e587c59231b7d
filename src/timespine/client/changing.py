"""Changes that depend on what is there: upsert, delete, update, replace.

Each reads the rows it is about as of now, works out what to retract and what to
insert, and appends the difference exactly at the upper that it has read. If
somebody else was first, it starts again. Rows that stay as they are cancel out
and are not written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from timespine.client.access import Access
from timespine.client.given import names_of, refuse_missing, with_keys
from timespine.client.leases import Held
from timespine.client.rows import Rows, Shape
from timespine.client.storing import stored
from timespine.client.writing import Committed, Together, after, commit_first, free_time, once
from timespine.columnar.cast import cast_column
from timespine.columnar.consolidate import consolidate
from timespine.columnar.intake import check_names, to_arrow
from timespine.columnar.keyset import KeySet
from timespine.columnar.rows import conform
from timespine.columnar.schema import DIFF, Schema
from timespine.columnar.types import is_nested
from timespine.columnar.visible import Window
from timespine.columnar.wanted import Wanted
from timespine.columnar.where import Predicate, as_predicate
from timespine.core.hollow import HollowBatch, Run
from timespine.core.plan import Plan, plan_ahead, plan_snapshot
from timespine.core.transitions import CompareAndAppend
from timespine.errors import DiffOverflow, UpperMismatch, UsageError
from timespine.model.description import Description
from timespine.model.frontier import Frontier
from timespine.model.time import INT64_MAX, INT64_MIN

COPIES_MAX = 1 << 24
"""Copies of rows that count more than once, which a change makes one by one: a bound on its memory."""

ATTEMPTS = 256
"""How often a change starts again because somebody else was first. Each time somebody made progress."""


@dataclass(frozen=True, slots=True)
class Present:
    """The collection as of now, to be looked at by a change."""

    access: Access
    held: Held
    id: int
    """The id of the schema."""
    schema: Schema
    plan: Plan | None
    time: int
    """The next free time: what is worked out from these rows will stand there."""

    @property
    def upper(self) -> Frontier:
        """The upper that the rows are of."""
        return self.held.state.upper

    def rows(self, *, keys: KeySet | None = None, where: Predicate | None = None) -> pa.Table:
        """The rows of some keys, or for which something holds, with their counts in `_diff`."""
        if where is not None:
            where.check(self.schema)
        window = Window(until=self.plan.until if self.plan is not None else None)
        wanted = Wanted(self.schema, self.schema.names, window, where=where, keys=keys)
        return Rows(self.access, self.held, self.plan, wanted, Shape("column"), owned=False).to_arrow()


@dataclass(frozen=True, slots=True)
class Difference:
    """What a change comes to."""

    old: pa.Table
    """Rows that go, with their counts in `_diff`."""
    new: pa.Table
    """Rows that come, each once."""


Compute = Callable[[Present], Difference]


def change(access: Access, compute: Compute, operation: str, together: Together = ()) -> Committed:
    """Work out a difference on the newest rows, and append it; again, if somebody else was first.

    What is committed `together` with it is committed also if there is no difference.
    """
    access.committer.check_writable()
    with access.changing:
        for _ in range(ATTEMPTS):
            try:
                return _change_once(access, compute, operation, together)
            except UpperMismatch:
                access.committer.session.count("changes started again")
    raise UpperMismatch("any", access.known().upper)


def _change_once(access: Access, compute: Compute, operation: str, together: Together) -> Committed:
    with present(access) as now:
        difference = compute(now)
        delta = delta_of(difference, now.schema)
        if delta.num_rows == 0:
            if together:
                commit_first(access, together[0], together[1:])
            return Committed(None, now.upper, 0)
        return _append_exactly(access, now, timed(delta, now.schema, now.time), operation, together)


@contextlib.contextmanager
def present(access: Access, at: int | None = None) -> Iterator[Present]:
    """The collection as of now, held while it is looked at. What is worked out stands at `at`, or the next free time.

    Updates that were written ahead of the seal, and that a change would seal, count already.
    """
    held = access.shared.leases.hold(access.id, None)
    try:
        state = held.state
        if state.arity != 1:
            raise UsageError("changing rows needs totally ordered times: append retractions yourself")
        if state.upper.is_closed:
            raise access.closed()
        upper = state.upper.elements[0][0]
        id, schema = access.schema(state)
        time = free_time(access, state) if at is None else at
        if time < upper:
            raise UpperMismatch(Frontier.at(time), state.upper)
        plan = plan_snapshot(state, (upper - 1,)) if upper > 0 else None
        if any(state.unsealed.reaching(state.upper, (time,))):
            plan = plan_ahead(state, (time,))
        if plan is not None and not isinstance(plan, Plan):
            raise plan
        yield Present(access, held, id, schema, plan, time)
    finally:
        held.close()


def _append_exactly(access: Access, now: Present, table: pa.Table, operation: str, together: Together) -> Committed:
    def commit(runs: tuple[Run, ...]) -> Committed:
        return commit_exactly(access, now, runs, table.num_rows, operation, together)

    return stored(access, now.id, now.schema, table, commit)


def commit_exactly(
    access: Access, now: Present, runs: tuple[Run, ...], rows: int, operation: str, together: Together = ()
) -> Committed:
    """Commit runs of a difference, if nobody else was first since it was worked out."""
    return Committed(now.time, commit_first(access, exactly(now, runs, rows, operation), together), rows)


def exactly(now: Present, runs: tuple[Run, ...], rows: int, operation: str) -> CompareAndAppend:
    """The command that appends a difference, if the rows that it was worked out from are still those of its time."""
    new_upper = after(now.time)
    batch = HollowBatch(Description(now.upper, new_upper, Frontier.minimum(1)), rows, runs)
    limit = now.access.config.inline_total_bytes
    batches = (batch,) if runs else ()
    return CompareAndAppend(batches, now.upper, new_upper, operation, limit, now.held.state.unsealed_next)


def delta_of(difference: Difference, schema: Schema) -> pa.Table:
    """Old rows retracted, new ones inserted, what is the same in both cancelled."""
    names = [*schema.names, DIFF]
    old = difference.old.select(names)
    counts = old.column(DIFF).to_numpy() if old.num_rows else np.empty(0, dtype=np.int64)
    if len(counts) and counts.min() == INT64_MIN:
        raise DiffOverflow("a row counts so far below zero that it cannot be retracted at once: append its opposite")
    old = old.set_column(len(names) - 1, schema.update_arrow.field(DIFF), pa.array(-counts, pa.int64()))
    new = difference.new.select(list(schema.names))
    ones = pa.array(np.ones(new.num_rows, dtype=np.int64))
    new = new.append_column(schema.update_arrow.field(DIFF), ones)
    plain = pa.schema([schema.update_arrow.field(name) for name in names])
    return consolidate(pa.concat_tables([old.cast(plain), new.cast(plain)]), schema.order_names).select(names)


def timed(delta: pa.Table, schema: Schema, time: int) -> pa.Table:
    """A difference as updates at one time."""
    (name,) = schema.time_names
    times = pa.array(np.full(delta.num_rows, time, dtype=np.int64))
    return delta.add_column(len(schema.names), schema.update_arrow.field(name), times)


@lru_cache(maxsize=256)
def restricted(schema: Schema, names: tuple[str, ...]) -> Schema:
    """A schema with some of the columns, for rows that have no others."""
    fields = tuple(schema.field(name) for name in names)
    return Schema(fields, (), (), schema.arity, schema.next_id)


def keys_of(rows: Any, schema: Schema, names: tuple[str, ...] | None = None) -> pa.Table:
    """The key columns of what a user gave as keys: rows, or one dictionary. Values that come along are passed over.

    Without key columns, rows are known by all of their columns. With `names`, only those of the key columns.
    """
    nested = next((field.name for field in schema.fields if not schema.key and is_nested(field.arrow_type)), None)
    if nested is not None:
        raise UsageError(
            f"this collection has no key columns, and rows cannot be found by {nested}, which is nested: "
            "name the rows with where=, or append retractions"
        )
    if isinstance(rows, Mapping) and not any(_is_column(value) for value in rows.values()):
        rows = [dict(rows)]
    wanted = restricted(schema, names if names is not None else schema.key_names)
    check_names(sorted(names_of(rows)), schema, ())
    if isinstance(rows, list | tuple) and all(isinstance(row, Mapping) for row in rows):
        # Rows that miss a column would be filled with its default: of a key that is never what was meant.
        refuse_missing(wanted.names, set(wanted.names).intersection(*rows))
        rows = [{name: row[name] for name in wanted.names} for row in rows]
        return conform(to_arrow(rows, wanted), wanted)
    table = to_arrow(rows, wanted if isinstance(rows, Mapping) else None)
    refuse_missing(wanted.names, set(table.column_names))
    return conform(table.select(list(wanted.names)), wanted)


def _is_column(value: object) -> bool:
    """Whether a value is many values: no column of a key is nested."""
    return hasattr(value, "__len__") and not isinstance(value, str | bytes | bytearray | memoryview | Mapping)


def upserting(rows: Any) -> Compute:
    """Rows take the place of those with the same key, or are added. Without key columns: those that are not there."""
    rows = once(rows)

    def compute(present: Present) -> Difference:
        new = conform(with_keys(rows, present.schema), present.schema)
        if not present.schema.key:
            return _once_each(new, present)
        keys = _distinct_keys(new, present.schema)
        return Difference(present.rows(keys=keys), new)

    return compute


def upsert(access: Access, rows: Any, together: Together = ()) -> Committed:
    """See `upserting`."""
    return change(access, upserting(rows), "upsert", together)


def deleting_keys(keys: Any) -> Compute:
    """All rows with one of these keys go."""
    keys = once(keys)

    def compute(present: Present) -> Difference:
        found = KeySet(keys_of(keys, present.schema))
        return Difference(present.rows(keys=found), present.schema.arrow.empty_table())

    return compute


def delete_keys(access: Access, keys: Any, together: Together = ()) -> Committed:
    """See `deleting_keys`."""
    return change(access, deleting_keys(keys), "delete", together)


def deleting_where(where: Any) -> Compute:
    """All rows for which a condition holds go."""
    predicate = as_predicate(where)

    def compute(present: Present) -> Difference:
        return Difference(present.rows(where=predicate), present.schema.arrow.empty_table())

    return compute


def deleting(keys: Any, where: Any) -> Compute:
    """Rows with these keys, or for which a condition holds, go."""
    if (keys is None) == (where is None):
        raise UsageError("delete either keys, or where a condition holds: delete({'id': 1}) or delete(where='id = 1')")
    return deleting_keys(keys) if where is None else deleting_where(where)


def update_where(access: Access, where: Any, set: Mapping[str, Any]) -> Committed:
    """Rows for which a condition holds get other values in some columns."""
    predicate = as_predicate(where) if where is not None else None
    if not isinstance(set, Mapping):
        raise UsageError("say what to set by column: update(set={'total': 0})")

    def compute(present: Present) -> Difference:
        if present.schema.key and any(name in present.schema.key_names for name in set):
            raise UsageError("key columns cannot be updated: delete the rows and insert others")
        old = present.rows(where=predicate)
        return Difference(old, assigned(repeated(old), set, present.schema))

    return change(access, compute, "update")


def replace_where(access: Access, where: Any, rows: Any) -> Committed:
    """All rows for which a condition holds go, and others come, for which it must hold too."""
    rows = once(rows)
    predicate = as_predicate(where) if where is not None else None

    def compute(present: Present) -> Difference:
        new = conform(with_keys(rows, present.schema), present.schema)
        if predicate is not None:
            predicate.check(present.schema)
            if new.num_rows and not new.filter(predicate.mask(new)).num_rows == new.num_rows:
                raise UsageError("some of the new rows do not satisfy the condition that they replace rows under")
        return Difference(present.rows(where=predicate), new)

    return change(access, compute, "replace")


def assigned(table: pa.Table, set: Mapping[str, Any], schema: Schema) -> pa.Table:
    """Rows with some columns set: to a value, or to a Polars expression, such as `pl.sql_expr("total * 2")`."""
    unknown = [name for name in set if name not in schema.names]
    if unknown:
        raise UsageError(f"there is no column {unknown[0]}; there are: {', '.join(schema.names)}")
    frame = pl.DataFrame(pl.from_arrow(table))
    values = [as_expression(name, value, schema).alias(name) for name, value in set.items()]
    try:
        changed = frame.with_columns(values)
    except POLARS_ERRORS as error:
        raise UsageError(f"the rows cannot be set like that: {type(error).__name__}") from error
    return conform(to_arrow(changed), schema)


POLARS_ERRORS = (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError)
"""What Polars raises about an expression that does not fit the rows."""


def as_expression(name: str, value: Any, schema: Schema) -> pl.Expr:
    """What a column is set to: an expression as it is, a value as one of the column's type."""
    if isinstance(value, pl.Expr):
        return value
    if value is None or isinstance(value, bool | float | str) or _is_int64(value):
        return pl.lit(value)
    (field,) = restricted(schema, (name,)).fields
    column = to_arrow([{name: value}], restricted(schema, (name,))).column(0)
    return pl.lit(pl.Series(name, pl.from_arrow(cast_column(field.name, column, field.arrow_type)))).first()


def _is_int64(value: object) -> bool:
    return isinstance(value, int) and INT64_MIN <= value <= INT64_MAX


def repeated(old: pa.Table) -> pa.Table:
    """Rows as often as they count; what counts less than zero cannot be changed."""
    counts = old.column(DIFF).to_numpy()
    if len(counts) and counts.min() < 0:
        raise UsageError("some of these rows count less than zero: retract them with append")
    rows = old.drop_columns([DIFF])
    if len(counts) == 0 or counts.max() == 1:
        return rows
    if int(counts.astype(object).sum()) - len(counts) > COPIES_MAX:
        raise UsageError("some of these rows count too often to be changed one by one: retract them with append")
    return rows.take(pa.array(np.repeat(np.arange(len(counts)), counts)))


def _once_each(rows: pa.Table, present: Present) -> Difference:
    """What makes each of some rows be there: those that are stay as they are, as often as they count."""
    keys = KeySet(keys_of(rows, present.schema))
    old = present.rows(keys=keys)
    there = KeySet(old.filter(pc.greater(old.column(DIFF), 0)).select(keys.names))
    distinct = conform(to_arrow(pl.DataFrame(pl.from_arrow(rows)).unique()), present.schema)
    return Difference(old.filter(pc.less(old.column(DIFF), 0)), distinct.filter(pc.invert(there.mask(distinct))))


def _distinct_keys(table: pa.Table, schema: Schema) -> KeySet:
    """The keys of rows, each of which may come only once."""
    keys = KeySet(table.select(list(schema.key_names)))
    if len(keys) != table.num_rows:
        raise UsageError(f"{table.num_rows - len(keys)} rows repeat the key of another one: give each key once")
    return keys
