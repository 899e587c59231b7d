"""Changes that depend on the present rows: upsert, delete, update, replace.

Each function here determines which rows a change looks at, and which rows it retracts
and inserts. `DeltaStep` reads those rows once, and appends the delta exactly at the upper
that it is right for. If other writers commit first, it judges their commits
(`client.write.read_current`), and is placed again. Unchanged rows cancel out and are not
written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa

from timespine.client.arguments.argument_types import SetLike
from timespine.client.arguments.row_args import parse_keys, restrict_columns
from timespine.client.inner_handles import CollectionHandle
from timespine.client.write.prepare import materialize_once
from timespine.client.write.read_current import Compute, Grain, Look, RowDelta
from timespine.client.write.step_commit import commit_steps
from timespine.client.write.transaction_steps import DeltaStep
from timespine.client.write_results import CommitResult
from timespine.columnar.ingest.cast import cast_column
from timespine.columnar.ingest.require_key_columns import require_key_columns
from timespine.columnar.ingest.to_arrow import to_arrow
from timespine.columnar.ingest.update_table import conform_columns
from timespine.columnar.predicate.comparisons import column_expression
from timespine.columnar.predicate.key_set import KeySet
from timespine.columnar.predicate.predicate import is_row_by_row
from timespine.columnar.predicate.where import Column, Where, as_predicate
from timespine.columnar.schema.schema import DIFF, Schema
from timespine.columnar.schema.types import is_nested
from timespine.errors import UsageError
from timespine.hints import Hint
from timespine.libraries import is_expression, pc, pl
from timespine.model.time import INT64_MAX, INT64_MIN

COPIES_MAX = 1 << 24
"""Most copies of rows that count more than once: a change makes them one by one, so this bounds its memory."""


def change(handle: CollectionHandle, compute: Compute, operation: str) -> CommitResult:
    """Compute a delta to the newest rows and append it, as a transaction of one step."""
    (committed,) = commit_steps(DeltaStep(handle, compute, operation))
    assert isinstance(committed, CommitResult)
    return committed


def upsert_delta(rows: object) -> Compute:
    """Replace rows with the same key, or add them. Without key columns, add rows that the collection lacks."""
    rows = materialize_once(rows)

    def compute(schema: Schema) -> Look:
        new = conform_columns(require_key_columns(rows, schema), schema)
        if not schema.key:
            return _once_each(new, schema)
        return Look(lambda old: RowDelta(old, new), keys=KeySet.of_rows(new, schema.key_names), grain=Grain.NEWS)

    return compute


def delete_keys_delta(keys: object) -> Compute:
    """Delete all rows with one of these keys."""
    keys = materialize_once(keys)

    def compute(schema: Schema) -> Look:
        return Look(_gone(schema), keys=KeySet(parse_keys(keys, schema)), grain=Grain.NEWS)

    return compute


def delete_where_delta(where: Where) -> Compute:
    """Delete all rows that satisfy a condition."""
    predicate = as_predicate(where)
    return lambda schema: Look(_gone(schema), where=predicate, grain=Grain.NEWS)


def _gone(schema: Schema) -> Callable[[pa.Table], RowDelta]:
    return lambda old: RowDelta(old, schema.arrow.empty_table())


def delete_delta(keys: object, where: Where | None) -> Compute:
    """Delete rows by their keys, or by a condition."""
    if (keys is None) == (where is None):
        raise UsageError("delete takes either keys or `where`", hint=Hint("give-keys-or-where"))
    return delete_keys_delta(keys) if where is None else delete_where_delta(where)


def update_delta(where: Where | None, set: SetLike) -> Compute:
    """Set some columns of the rows that satisfy a condition."""
    predicate = as_predicate(where) if where is not None else None
    if not isinstance(set, Mapping):
        raise UsageError("say what to set by column, such as {'total': 0}")
    values = dict(set)
    by_row = all(is_row_by_row(value) for value in values.values() if is_expression(value))

    def compute(schema: Schema) -> Look:
        if schema.key and any(name in schema.key_names for name in values):
            raise UsageError("key columns cannot be updated: delete the rows and insert others")

        def difference(old: pa.Table) -> RowDelta:
            return RowDelta(old, assign_values(repeat_present_rows(old), values, schema))

        return Look(difference, where=predicate, grain=by_key(schema) if by_row else Grain.ALL)

    return compute


def by_key(schema: Schema) -> Grain:
    """Return the grain of row-wise changes: keys, unless all columns identify a row and some are nested."""
    nested = not schema.key and any(is_nested(each.arrow_type) for each in schema.fields)
    return Grain.ALL if nested else Grain.KEYS


def replace_delta(where: Where | None, rows: object) -> Compute:
    """Replace all rows that satisfy a condition by others, which must satisfy it too."""
    rows = materialize_once(rows)
    predicate = as_predicate(where) if where is not None else None

    def compute(schema: Schema) -> Look:
        new = conform_columns(require_key_columns(rows, schema), schema)
        if predicate is not None:
            predicate.check(schema)
            if new.num_rows and not new.filter(predicate.mask(new)).num_rows == new.num_rows:
                raise UsageError("some of the new rows do not satisfy the condition that they replace rows under")
        return Look(lambda old: RowDelta(old, new), where=predicate, grain=Grain.NEWS)

    return compute


def assign_values(table: pa.Table, set: SetLike, schema: Schema) -> pa.Table:
    """Set some columns of rows: to a value, to another column, or to a Polars expression."""
    unknown = [name for name in set if name not in schema.names]
    if unknown:
        raise UsageError(f"there is no column {unknown[0]}; there are: {', '.join(schema.names)}")
    frame = pl.DataFrame(pl.from_arrow(table))
    values = [as_expression(name, value, schema).alias(name) for name, value in set.items()]
    try:
        changed = frame.with_columns(values)
    except polars_errors() as error:
        raise UsageError(f"a value of `set` cannot be computed from the rows: {type(error).__name__}") from error
    return conform_columns(to_arrow(changed), schema)


def polars_errors() -> tuple[type[Exception], ...]:
    """Return the errors of Polars for an expression that does not fit the rows."""
    return pl.exceptions.PolarsError, TypeError, ValueError, OverflowError


def as_expression(name: str, value: object, schema: Schema) -> pl.Expr:
    """Convert a value of `set` to an expression: an expression as it is, a column, or a value of the column's type."""
    if is_expression(value):
        return value
    if isinstance(value, Column):
        return column_expression(value.name)
    if value is None or isinstance(value, bool | float | str) or _is_int64(value):
        return pl.lit(value)
    (field,) = restrict_columns(schema, (name,)).fields
    column = to_arrow([{name: value}], restrict_columns(schema, (name,))).column(0)
    return pl.lit(pl.Series(name, pl.from_arrow(cast_column(field.name, column, field.arrow_type)))).first()


def _is_int64(value: object) -> bool:
    return isinstance(value, int) and INT64_MIN <= value <= INT64_MAX


def repeat_present_rows(old: pa.Table) -> pa.Table:
    """Repeat rows by their counts; raise a UsageError for negative counts."""
    counts = old.column(DIFF).to_numpy()
    if len(counts) and counts.min() < 0:
        raise UsageError("some of these rows have a negative count: append the opposite diffs first")
    rows = old.drop_columns([DIFF])
    if len(counts) == 0 or counts.max() == 1:
        return rows
    if int(counts.astype(object).sum()) - len(counts) > COPIES_MAX:
        raise UsageError("some of these rows count too often to be changed one by one: retract them with append")
    return rows.take(pa.array(np.repeat(np.arange(len(counts)), counts)))


def _once_each(rows: pa.Table, schema: Schema) -> Look:
    """Add each row that the collection lacks; leave the others, and their counts, unchanged."""
    keys = KeySet(parse_keys(rows, schema))
    distinct = conform_columns(to_arrow(pl.DataFrame(pl.from_arrow(rows)).unique()), schema)

    def difference(old: pa.Table) -> RowDelta:
        there = KeySet(old.filter(pc.greater(old.column(DIFF), 0)).select(keys.names))
        return RowDelta(old.filter(pc.less(old.column(DIFF), 0)), distinct.filter(pc.invert(there.mask(distinct))))

    return Look(difference, keys=keys, grain=Grain.KEYS)
