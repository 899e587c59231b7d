"""A batch of changes by key, applied in one commit: upserts, and deletes where `_change_type` says so.

    insert, update_postimage, upsert    the row takes the place of what is there with its key
    delete                              what is there with its key goes
    update_preimage                     says nothing that the others do not

A key may come several times if something says which one is the last: the column that
is named as the sequence. Without one, a key that comes twice is an error. Of changes of
a key that are last together, a row that comes wins over one that goes: that is how a
change feed gives an update whose images it cannot pair. Two different rows that come
are an error. (Changes of a change log, by its `_sequence`, count in the order of lines.)
"""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from timespine.client.engines import Access, Compute, Grain, Look, RowDelta
from timespine.columnar.ingest.update_table import conform
from timespine.columnar.predicate.keyset import KeySet
from timespine.columnar.schema.schema import Schema
from timespine.errors import UsageError, shown
from timespine.spark.change_types import (
    CHANGE_TYPE,
    COMMIT_VERSION,
    DELETE_KINDS,
    IGNORED_KINDS,
    SEQUENCE,
    UPSERT_KINDS,
)
from timespine.spark.write.write_task import refuse_null_keys


def changes_delta(access: Access, rows: pa.Table, sequence: str | None) -> Compute:
    """Compute the delta of changes by key to the rows that are there."""
    _, known = access.schema(access.known())
    if not known.key:
        raise UsageError("changes are applied by key, and this collection has no key columns: append them with _diff")
    last = latest(rows, known, sequence)

    def compute(schema: Schema) -> Look:
        names = [name for name in last.column_names if name in schema.names]
        came = conform(last.filter(pa.array(_kinds(last) == "come")).select(names), schema)
        keys = conform(last.select(names), schema).select(list(schema.key_names))
        return Look(lambda old: RowDelta(old, came), keys=KeySet(keys), grain=Grain.NEWS)

    return compute


def latest(rows: pa.Table, schema: Schema, sequence: str | None) -> pa.Table:
    """Of every key, the last change."""
    refuse_null_keys(rows, schema)
    _check_columns(rows, schema, sequence)
    frame = pl.DataFrame(pl.from_arrow(rows))
    if CHANGE_TYPE in frame.columns:
        unknown = frame[CHANGE_TYPE].unique().drop_nulls().to_list()
        wrong = [kind for kind in unknown if kind not in (*UPSERT_KINDS, *DELETE_KINDS, *IGNORED_KINDS)]
        if wrong or frame[CHANGE_TYPE].null_count():
            named = shown(wrong[0]) if wrong else "null"
            raise UsageError(
                f"{CHANGE_TYPE} is one of {', '.join((*UPSERT_KINDS, *DELETE_KINDS, *IGNORED_KINDS))}, not {named}"
            )
        frame = frame.filter(~pl.col(CHANGE_TYPE).is_in(IGNORED_KINDS))
    keys = list(schema.key_names)
    if sequence is not None:
        if frame[sequence].null_count():
            raise UsageError(f"column {sequence} says which change is the last, and has nulls: fill them")
        return _last(frame, keys, sequence).to_arrow()
    repeats = len(frame) - frame.select(keys).n_unique()
    if repeats:
        raise UsageError(
            f"{repeats} rows repeat the key of another one: give each key once, or name the column that says which one "
            f"is the last (sequenceBy; in a change feed that is {COMMIT_VERSION})"
        )
    return frame.to_arrow()


def _last(frame: pl.DataFrame, keys: list[str], sequence: str) -> pl.DataFrame:
    """Of every key, what comes last by its sequence."""
    ordered = frame.sort(sequence, maintain_order=True)
    if sequence == SEQUENCE:  # lines of a change log, which count in the order in which they stand
        return ordered.unique(keys, keep="last")
    last = ordered.filter(pl.col(sequence).eq_missing(pl.col(sequence).last().over(keys)))
    if CHANGE_TYPE in last.columns:
        comes = ~pl.col(CHANGE_TYPE).is_in(DELETE_KINDS)
        last = last.filter(comes | ~comes.any().over(keys))
    once = last.unique(keys, keep="last", maintain_order=True)
    if len(once) < len(last):
        coming = last if CHANGE_TYPE not in last.columns else last.filter(comes).drop(CHANGE_TYPE)
        ties = coming.unique().height - coming.select(keys).n_unique()
        if ties:
            raise UsageError(
                f"{ties} rows repeat the key and the {sequence} of another one, and differ: "
                "it must say which one is the last"
            )
    return once


def _check_columns(rows: pa.Table, schema: Schema, sequence: str | None) -> None:
    if sequence is not None and sequence not in rows.column_names:
        raise UsageError(f"there is no column {shown(sequence)} to say which change is the last")
    extra = {CHANGE_TYPE, sequence}
    foreign = [name for name in rows.column_names if name not in schema.names and name not in extra]
    if foreign:
        raise UsageError(f"there is no column {shown(foreign[0])} in the collection")


def _kinds(rows: pa.Table) -> pl.Series:
    """Whether rows come or go."""
    if CHANGE_TYPE not in rows.column_names:
        return pl.repeat("come", rows.num_rows, eager=True)
    kinds = pl.Series(rows.column(CHANGE_TYPE))
    return pl.select(pl.when(kinds.is_in(DELETE_KINDS)).then(pl.lit("go")).otherwise(pl.lit("come"))).to_series()
