"""MERGE, as Delta users know it: rows of a source against rows of the collection, clause by clause.

Conditions are those of every `where`, and values are constants, `col(...)` or Polars expressions. A column of the
collection is `target.total` or `total`, one of the source is `source.total`.

The source may have each key only once, so that it is clear which row counts. If all clauses insert, it may
repeat keys: then each row of the source is inserted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import pyarrow as pa

from timespine.client.arguments.argument_types import RowsLike, SetLike
from timespine.client.arguments.row_args import restrict_columns
from timespine.client.refuse_pickle import OneProcess
from timespine.client.write.prepare import materialize_once
from timespine.client.write.read_current import Compute, Grain, Look, RowDelta
from timespine.client.write.upsert_update_delete import as_expression, polars_errors, repeat_present_rows
from timespine.columnar.ingest.to_arrow import to_arrow
from timespine.columnar.ingest.update_table import conform_columns
from timespine.columnar.predicate.key_set import KeySet
from timespine.columnar.predicate.predicate import Predicate, is_row_by_row
from timespine.columnar.predicate.where import Column, Where, as_predicate
from timespine.columnar.schema.schema import DIFF, Schema
from timespine.columnar.schema.types import parse_type
from timespine.errors import UnsupportedType, UsageError, short_repr
from timespine.libraries import is_expression, pl

R = TypeVar("R")

TARGET, SOURCE = "target.", "source."
"""The prefixes of the columns of the collection and of the source in conditions and values."""


@dataclass(slots=True)
class Clause:
    """The rule for rows of one kind."""

    kind: str
    """matched, not matched (by the collection), or not matched by the source."""
    condition: Predicate | None
    """The condition that the rows satisfy."""
    values: dict[str, object] | None
    """New values by column; None deletes the row."""

    @property
    def is_row_by_row(self) -> bool:
        """Whether the new values of a row do not depend on other rows. Conditions always concern one row."""
        return all(is_row_by_row(each) for each in (self.values or {}).values() if is_expression(each))


@dataclass(slots=True, repr=False)
class Merge(OneProcess, Generic[R]):
    """A merge of rows, described clause by clause; `execute` commits it. The first clause that fits a row counts."""

    _change: Callable[[Compute, str], R]
    """The function that commits a change of the collection, or adds it to a transaction."""
    _source: RowsLike
    _clauses: list[Clause] = field(default_factory=list)

    def when_matched_update(self, set: SetLike | None = None, where: Where | None = None) -> Merge[R]:
        """Set values in rows that the source has too: by default those of the source."""
        return self._with("matched", where, _parse_values(set))

    def when_matched_delete(self, where: Where | None = None) -> Merge[R]:
        """Delete rows that the source has too."""
        return self._with("matched", where, None)

    def when_not_matched_insert(self, values: SetLike | None = None, where: Where | None = None) -> Merge[R]:
        """Insert rows that only the source has, as they are in the source.

        With `values`, a row consists of its key and of those; other columns are null, or their default, as in Delta.
        """
        return self._with("not matched", where, _parse_values(values))

    def when_not_matched_by_source_delete(self, where: Where | None = None) -> Merge[R]:
        """Delete rows that the source does not have."""
        return self._with("not matched by source", where, None)

    def when_not_matched_by_source_update(self, set: SetLike, where: Where | None = None) -> Merge[R]:
        """Set values in rows that the source does not have."""
        return self._with("not matched by source", where, _parse_values(set))

    def execute(self) -> R:
        """Commit the merge; in a transaction, add it as a step."""
        if not self._clauses:
            raise UsageError("a merge needs at least one clause, such as when_matched_update()")
        self._source = materialize_once(self._source)
        return self._change(self._compute, "merge")

    def _with(self, kind: str, where: Where | None, values: dict[str, object] | None) -> Merge[R]:
        condition = as_predicate(where) if where is not None else None
        return Merge(self._change, self._source, [*self._clauses, Clause(kind, condition, values)])

    def _compute(self, schema: Schema) -> Look:
        if not schema.key:
            raise UsageError("a merge needs key columns to match rows by: this collection has none")
        source = _source(self._source, schema)
        keys = KeySet(source.select(list(schema.key_names)))
        only_inserts = all(clause.kind == "not matched" for clause in self._clauses)
        if len(keys) != source.num_rows and not only_inserts:
            raise UsageError("the source has several rows of the same key: a merge could not decide between them")

        def difference(old: pa.Table) -> RowDelta:
            if old.num_rows and old.column(DIFF).to_numpy().min() < 1:
                raise UsageError("some rows have a negative count: append their opposite before a merge")
            return self._difference(source, old, schema)

        everything = any(clause.kind == "not matched by source" for clause in self._clauses)
        grain = Grain.KEYS if all(clause.is_row_by_row for clause in self._clauses) else Grain.ALL
        return Look(difference, keys=None if everything else keys, grain=grain)

    def _difference(self, source: pa.Table, old: pa.Table, schema: Schema) -> RowDelta:
        theirs = pl.DataFrame(pl.from_arrow(source))
        theirs = theirs.rename({name: _SOURCE + name for name in theirs.columns})
        names = _Columns(schema, source.schema)
        on = list(schema.key_names)
        joined = (
            pl.DataFrame(pl.from_arrow(old))
            .with_row_index(_OURS)
            .join(
                theirs.with_columns(pl.lit(True).alias(_THEIRS)),
                left_on=on,
                right_on=[_SOURCE + name for name in on],
                how="full",
                coalesce=False,
                nulls_equal=True,
            )
        )
        gone: list[pl.Series] = []
        new: list[pa.Table] = []
        rest = joined.with_row_index(_ROW)
        for clause in self._clauses:
            rest, taken = _take(rest, clause, names)
            if clause.kind != "not matched" and len(taken):
                gone.append(taken[_OURS])
            if clause.values is not None and len(taken):
                new.append(_new_rows(taken, clause, names))
        removed = pl.concat(gone).to_arrow() if gone else pa.array([], pa.uint32())
        return RowDelta(old.take(removed), pa.concat_tables(new) if new else schema.arrow.empty_table())


_OURS, _THEIRS, _ROW, _SOURCE = "\x01ours", "\x01theirs", "\x01row", "\x01source."
"""Columns of the join. No column of a collection has a control character in its name."""


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of the join, by their names in conditions and values."""

    schema: Schema
    """The schema of the collection."""
    source: pa.Schema
    """The columns of the source."""

    def select(self, frame: pl.DataFrame, names: Iterable[str], kind: str) -> pl.DataFrame:
        """Return some columns of the join under their names in a clause of that kind."""
        series = [frame.get_column(self._place(name, kind)).alias(name) for name in dict.fromkeys(names)]
        return pl.DataFrame([frame.get_column(_ROW), *series])

    def types(self, names: Iterable[str], kind: str) -> dict[str, pa.DataType]:
        """Return the types of some columns."""
        places = {name: self._place(name, kind) for name in names}
        return {
            name: self.source.field(place.removeprefix(_SOURCE)).type
            if place.startswith(_SOURCE)
            else self.schema.arrow.field(place).type
            for name, place in places.items()
        }

    def _place(self, name: str, kind: str) -> str:
        """Find the column of the join for a name."""
        ours, theirs = name.removeprefix(TARGET), name.removeprefix(SOURCE)
        found = {each for each in (name, ours) if each in self.schema.names}
        if theirs != name and theirs in self.source.names:
            found.add(_SOURCE + theirs)
        if len(found) > 1:
            raise UsageError(
                f"{short_repr(name)} is a column of the collection, and the name of another one in a merge"
            )
        if not found:
            there = [*(TARGET + each for each in self.schema.names), *(SOURCE + each for each in self.source.names)]
            raise UsageError(
                f"there is no column {short_repr(name)} in this merge; the columns are {short_repr(there)}"
            )
        (place,) = found
        if kind == "not matched" and not place.startswith(_SOURCE):
            raise UsageError(f"a row that only the source has has no {short_repr(name)}: columns of it are source.NAME")
        if kind == "not matched by source" and place.startswith(_SOURCE):
            raise UsageError(
                f"a row that the source does not have has no {short_repr(name)}: name columns of the target"
            )
        return place


def _take(rest: pl.DataFrame, clause: Clause, names: _Columns) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Split rows into the others and those that a clause applies to."""
    in_source, in_ours = pl.col(_THEIRS).is_not_null(), pl.col(_OURS).is_not_null()
    kinds = {
        "matched": in_source & in_ours,
        "not matched": in_source & in_ours.not_(),
        "not matched by source": in_source.not_() & in_ours,
    }
    taken = rest.filter(kinds[clause.kind])
    if clause.condition is not None:
        columns = clause.condition.columns
        condition = clause.condition.to_polars(names.types(columns, clause.kind)).fill_null(False)
        try:
            kept = names.select(taken, columns, clause.kind).filter(condition)
            taken = taken.filter(pl.col(_ROW).is_in(kept[_ROW].implode()))
        except polars_errors() as error:
            raise UsageError(f"a condition of the merge cannot be evaluated: {type(error).__name__}") from error
    return rest.filter(~pl.col(_ROW).is_in(taken[_ROW].implode())), taken


def _new_rows(taken: pl.DataFrame, clause: Clause, names: _Columns) -> pa.Table:
    """Build the new rows of a clause: each as often as the old row counts."""
    given, schema = clause.values or {}, names.schema
    unknown = [name for name in given if name not in schema.names]
    if unknown:
        raise UsageError(f"there is no column {unknown[0]}; there are: {', '.join(schema.names)}")
    inserted = clause.kind == "not matched"
    copied = schema.names if not given and clause.kind != "not matched by source" else schema.key_names * inserted
    values = [as_expression(name, value, schema).alias(name) for name, value in given.items()]
    read = [each.name for each in given.values() if isinstance(each, Column)]
    read += [root for each in given.values() if is_expression(each) for root in each.meta.root_names()]
    columns_read = names.select(taken, read, clause.kind)
    try:
        # With and not select: values alone would make one row.
        valued = columns_read.with_columns(values)
    except polars_errors() as error:
        raise UsageError(f"a value of the merge cannot be computed: {type(error).__name__}") from error
    columns: dict[str, pl.Series] = {}
    for name in schema.names:
        if name in given:
            columns[name] = valued.get_column(name)
        elif name in copied and name in names.source.names:
            columns[name] = taken.get_column(_SOURCE + name)
        elif not inserted:
            columns[name] = taken.get_column(name)
    new = conform_columns(to_arrow(columns), schema)
    if inserted:
        return new
    _check_keys(taken, new, schema)
    return repeat_present_rows(new.append_column(DIFF, taken[DIFF].to_arrow()))


def _check_keys(taken: pl.DataFrame, new: pa.Table, schema: Schema) -> None:
    """Raise a UsageError if an update would change a key."""
    keys = list(schema.key_names)
    before = conform_columns(
        to_arrow({name: taken.get_column(name) for name in keys}), restrict_columns(schema, tuple(keys))
    )
    if not new.select(keys).equals(before) and not _is_same(new.select(keys), before):
        raise UsageError("key columns cannot be updated: delete the rows and insert others")


def _is_same(left: pa.Table, right: pa.Table) -> bool:
    """Return whether two tables hold the same rows, where NaN is the same as NaN."""
    frames = [pl.DataFrame(pl.from_arrow(table)) for table in (left, right)]
    return frames[0].equals(frames[1], null_equal=True)


def _source(rows: object, schema: Schema) -> pa.Table:
    if isinstance(rows, list | tuple) and not rows:
        return schema.arrow.empty_table()
    table = _as_table(rows, schema)
    missing = [name for name in schema.key_names if name not in table.column_names]
    if missing:
        raise UsageError(f"the source of a merge needs the key columns: {', '.join(missing)} is not there")
    known = [name for name in schema.names if name in table.column_names]
    others = [name for name in table.column_names if name not in known]
    conformed = conform_columns(table.select(known), restrict_columns(schema, tuple(known)))
    for name in others:
        conformed = conformed.append_column(name, _comparable(table.column(name)))
    return conformed


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Cast a column that the collection lacks to a type that conditions know; return it unchanged if there is none."""
    try:
        return column.cast(parse_type(column.type))
    except (UnsupportedType, pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return column


def _as_table(rows: object, schema: Schema) -> pa.Table:
    """Convert rows to a table; infer the types of columns that the collection lacks."""
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


def _parse_values(values: SetLike | None) -> dict[str, object]:
    """Return new values by column; none stand for those of the source."""
    if values is not None and not isinstance(values, Mapping):
        raise UsageError(f"say what to set by column, such as {{'total': 0}}, not {short_repr(values)}")
    return dict(values) if values is not None else {}
