"""MERGE, as Delta users know it: rows of a source against rows of the collection, clause by clause.

The source may have each key only once, so that it is clear which row counts, unless all that happens is that
rows are inserted: then each row of the source is one, also of those with the same key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import polars as pl
import pyarrow as pa

from timespine.client.row_args import restricted
from timespine.client.write.delta import POLARS_ERRORS, as_expression, repeated
from timespine.client.write.prepare import materialize_once
from timespine.client.write.read_current import Compute, Grain, Look, RowDelta
from timespine.columnar.ingest.to_arrow import to_arrow
from timespine.columnar.ingest.update_table import conform
from timespine.columnar.predicate.keyset import KeySet
from timespine.columnar.predicate.predicate import is_row_by_row
from timespine.columnar.schema.schema import DIFF, Schema
from timespine.errors import UsageError, shown

R = TypeVar("R")

SOURCE = "source_"
"""In conditions and values, a column of the source is named with this prefix, one of the collection by its name."""


@dataclass(slots=True)
class Clause:
    """What happens to rows of one kind."""

    kind: str
    """matched, not matched (by the collection), or not matched by the source."""
    condition: pl.Expr | None
    """Only rows for which this holds."""
    values: dict[str, Any] | None
    """New values by column; None: the row is deleted."""

    @property
    def is_row_by_row(self) -> bool:
        """Whether what becomes of a row does not depend on the others."""
        expressions = [self.condition, *(self.values or {}).values()]
        return all(is_row_by_row(each) for each in expressions if isinstance(each, pl.Expr))


@dataclass(slots=True)
class Merge(Generic[R]):
    """A merge of rows, described clause by clause; `execute` commits it. The first clause that fits a row counts."""

    change: Callable[[Compute, str], R]
    """Carries out a change of the collection, or adds it to a transaction."""
    source: Any
    clauses: list[Clause] = field(default_factory=list)

    def when_matched_update(self, set: Mapping[str, Any] | None = None, where: Any = None) -> Merge[R]:
        """A row that the source has too gets new values: those of the source if none are named."""
        return self._with("matched", where, _given(set))

    def when_matched_delete(self, where: Any = None) -> Merge[R]:
        """A row that the source has too goes."""
        return self._with("matched", where, None)

    def when_not_matched_insert(self, values: Mapping[str, Any] | None = None, where: Any = None) -> Merge[R]:
        """A row that only the source has is inserted, as it is in the source.

        With `values` it is made of those, and of its key: other columns that are not named there are null, or their
        default, as in Delta.
        """
        return self._with("not matched", where, _given(values))

    def when_not_matched_by_source_delete(self, where: Any = None) -> Merge[R]:
        """A row that the source does not have goes."""
        return self._with("not matched by source", where, None)

    def when_not_matched_by_source_update(self, set: Mapping[str, Any], where: Any = None) -> Merge[R]:
        """A row that the source does not have gets new values."""
        return self._with("not matched by source", where, _given(set))

    def execute(self) -> R:
        """Carry the merge out, as one commit; of a transaction, with the rest of it."""
        if not self.clauses:
            raise UsageError("a merge needs at least one clause, such as when_matched_update()")
        self.source = materialize_once(self.source)
        return self.change(self._compute, "merge")

    def _with(self, kind: str, where: Any, values: dict[str, Any] | None) -> Merge[R]:
        condition = where if isinstance(where, pl.Expr) or where is None else _expression(where)
        return Merge(self.change, self.source, [*self.clauses, Clause(kind, condition, values)])

    def _compute(self, schema: Schema) -> Look:
        if not schema.key:
            raise UsageError("a merge needs key columns to match rows by: this collection has none")
        source = _source(self.source, schema)
        keys = KeySet(source.select(list(schema.key_names)))
        only_inserts = all(clause.kind == "not matched" for clause in self.clauses)
        if len(keys) != source.num_rows and not only_inserts:
            raise UsageError("the source has several rows of the same key: a merge could not decide between them")

        def difference(old: pa.Table) -> RowDelta:
            if old.num_rows and old.column(DIFF).to_numpy().min() < 1:
                raise UsageError("some rows count less than once: a merge needs rows")
            return self._difference(source, old, schema)

        everything = any(clause.kind == "not matched by source" for clause in self.clauses)
        grain = Grain.KEYS if all(clause.is_row_by_row for clause in self.clauses) else Grain.ALL
        return Look(difference, keys=None if everything else keys, grain=grain)

    def _difference(self, source: pa.Table, old: pa.Table, schema: Schema) -> RowDelta:
        theirs = pl.DataFrame(pl.from_arrow(source))
        theirs = theirs.rename({name: SOURCE + name for name in theirs.columns})
        clash = next((name for name in theirs.columns if name in schema.names), None)
        if clash is not None:
            raise UsageError(
                f"the collection has a column {clash}, and {clash.removeprefix(SOURCE)} of the source is called so "
                "in a merge: rename one of them"
            )
        on = list(schema.key_names)
        joined = (
            pl.DataFrame(pl.from_arrow(old))
            .with_row_index(_OURS)
            .join(
                theirs.with_columns(pl.lit(True).alias(_THEIRS)),
                left_on=on,
                right_on=[SOURCE + name for name in on],
                how="full",
                coalesce=False,
                nulls_equal=True,
            )
        )
        gone: list[pl.Series] = []
        new: list[pa.Table] = []
        rest = joined.with_row_index(_ROW)
        for clause in self.clauses:
            rest, taken = _take(rest, clause)
            if clause.kind != "not matched" and len(taken):
                gone.append(taken[_OURS])
            if clause.values is not None and len(taken):
                new.append(_valued(taken, clause, schema))
        removed = pl.concat(gone).to_arrow() if gone else pa.array([], pa.uint32())
        return RowDelta(old.take(removed), pa.concat_tables(new) if new else schema.arrow.empty_table())


_OURS, _THEIRS, _ROW = "\x01ours", "\x01theirs", "\x01row"
"""Columns of the join that are nobody's: no column of a collection has a control character in its name."""


def _take(rest: pl.DataFrame, clause: Clause) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The rows that a clause is about, and the others."""
    in_source, in_ours = pl.col(_THEIRS).is_not_null(), pl.col(_OURS).is_not_null()
    kinds = {
        "matched": in_source & in_ours,
        "not matched": in_source & in_ours.not_(),
        "not matched by source": in_source.not_() & in_ours,
    }
    taken = rest.filter(kinds[clause.kind])
    if clause.condition is not None:
        try:
            taken = taken.filter(clause.condition.fill_null(False))
        except POLARS_ERRORS as error:
            raise UsageError(f"a condition of the merge cannot be evaluated: {type(error).__name__}") from error
    return rest.filter(~pl.col(_ROW).is_in(taken[_ROW].implode())), taken


def _valued(taken: pl.DataFrame, clause: Clause, schema: Schema) -> pa.Table:
    """The new rows of a clause: of a row that counts more than once, as many."""
    given = clause.values or {}
    unknown = [name for name in given if name not in schema.names]
    if unknown:
        raise UsageError(f"there is no column {unknown[0]}; there are: {', '.join(schema.names)}")
    inserted = clause.kind == "not matched"
    copied = schema.names if not given and clause.kind != "not matched by source" else schema.key_names * inserted
    values = [as_expression(name, value, schema).alias(name) for name, value in given.items()]
    try:
        # With and not select: values alone would make one row.
        valued = taken.with_columns(values)
    except POLARS_ERRORS as error:
        raise UsageError(f"a value of the merge cannot be computed: {type(error).__name__}") from error
    theirs = set(taken.columns).difference(schema.names)  # the collection may have a column that is called like one
    columns: dict[str, pl.Series] = {}
    for name in schema.names:
        if name in given:
            columns[name] = valued.get_column(name)
        elif name in copied and SOURCE + name in theirs:
            columns[name] = taken.get_column(SOURCE + name)
        elif not inserted:
            columns[name] = taken.get_column(name)
    new = conform(to_arrow(columns), schema)
    if inserted:
        return new
    _check_keys(taken, new, schema)
    return repeated(new.append_column(DIFF, taken[DIFF].to_arrow()))


def _check_keys(taken: pl.DataFrame, new: pa.Table, schema: Schema) -> None:
    """A UsageError if an update would change a key."""
    keys = list(schema.key_names)
    before = conform(to_arrow({name: taken.get_column(name) for name in keys}), restricted(schema, tuple(keys)))
    if not new.select(keys).equals(before) and not _is_same(new.select(keys), before):
        raise UsageError("key columns cannot be updated: delete the rows and insert others")


def _is_same(left: pa.Table, right: pa.Table) -> bool:
    """Whether two tables hold the same rows, where NaN is the same as NaN."""
    frames = [pl.DataFrame(pl.from_arrow(table)) for table in (left, right)]
    return frames[0].equals(frames[1], null_equal=True)


def _source(rows: Any, schema: Schema) -> pa.Table:
    if isinstance(rows, list | tuple) and not rows:
        return schema.arrow.empty_table()
    table = _as_table(rows, schema)
    missing = [name for name in schema.key_names if name not in table.column_names]
    if missing:
        raise UsageError(f"the source of a merge needs the key columns: {', '.join(missing)} is not there")
    known = [name for name in schema.names if name in table.column_names]
    others = [name for name in table.column_names if name not in known]
    conformed = conform(table.select(known), restricted(schema, tuple(known)))
    for name in others:
        conformed = conformed.append_column(name, table.column(name))
    return conformed


def _as_table(rows: Any, schema: Schema) -> pa.Table:
    """Rows as a table; columns that the collection does not have are of whatever type they look like."""
    if isinstance(rows, list | tuple) and all(isinstance(row, Mapping) for row in rows):
        others = dict.fromkeys(name for row in rows for name in row if name not in schema.types)
        known = to_arrow([{name: row[name] for name in row if name in schema.types} for row in rows], schema)
        more = to_arrow([{name: row.get(name) for name in others} for row in rows])
    elif isinstance(rows, Mapping):
        known = to_arrow({name: column for name, column in rows.items() if name in schema.types}, schema)
        more = to_arrow({name: column for name, column in rows.items() if name not in schema.types})
    else:
        return to_arrow(rows)
    for name in more.column_names:
        if more.num_rows != known.num_rows:
            raise UsageError("the columns of the source are of different lengths")
        known = known.append_column(name, more.column(name))
    return known


def _given(values: Mapping[str, Any] | None) -> dict[str, Any]:
    """New values by column; none, if those of the source are meant."""
    if values is not None and not isinstance(values, Mapping):
        raise UsageError(f"say what to set by column, such as {{'total': 0}}, not {shown(values)}")
    return dict(values) if values is not None else {}


def _expression(where: Any) -> pl.Expr:
    if not isinstance(where, str):
        raise UsageError("a condition of a merge is SQL text or a Polars expression")
    try:
        return pl.sql_expr(where)
    except pl.exceptions.PolarsError as error:
        raise UsageError(f"the condition of the merge does not parse: {type(error).__name__}") from error
