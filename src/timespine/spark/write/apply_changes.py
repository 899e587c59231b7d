"""Apply a batch of changes by key in one commit: upserts, and deletes by `_change_type`.

    insert, update_postimage, upsert    the row replaces the one with its key
    delete                              the row with its key is deleted
    update_preimage                     ignored: it adds no information

A key may occur several times if a sequence column orders its changes; without one, a
repeated key is an error. Among the last changes of a key with equal sequence, an upsert
takes precedence over a delete: a change feed has such pairs for an update whose images it
cannot pair. Two upserts with different rows are an error. (Changes of a change log, by its
`_sequence`, apply in the order of lines.)
"""

from __future__ import annotations

import pyarrow as pa

from timespine.client.api_for_engines import CollectionHandle, Compute, Grain, Look, RowDelta
from timespine.columnar.ingest.update_table import conform_columns
from timespine.columnar.predicate.key_set import KeySet
from timespine.columnar.schema.schema import Schema
from timespine.errors import UsageError, short_repr
from timespine.libraries import pl
from timespine.spark.change_columns import (
    CHANGE_TYPE,
    COMMIT_VERSION,
    DELETE_KINDS,
    IGNORED_KINDS,
    SEQUENCE,
    UPSERT_KINDS,
)
from timespine.spark.write.write_task import refuse_null_keys


def changes_delta(handle: CollectionHandle, rows: pa.Table, sequence: str | None) -> Compute:
    """Compute the delta of changes by key to the rows of the collection."""
    _, known = handle.schema(handle.known())
    if not known.key:
        raise UsageError("changes are applied by key, and this collection has no key columns: append them with _diff")
    last = latest_changes(rows, known, sequence)

    def compute(schema: Schema) -> Look:
        names = [name for name in last.column_names if name in schema.names]
        came = conform_columns(last.filter(pa.array(_kinds(last) == "come")).select(names), schema)
        keys = conform_columns(last.select(names), schema).select(list(schema.key_names))
        return Look(lambda old: RowDelta(old, came), keys=KeySet(keys), grain=Grain.NEWS)

    return compute


def latest_changes(rows: pa.Table, schema: Schema, sequence: str | None) -> pa.Table:
    """Keep the last change of every key."""
    refuse_null_keys(rows, schema)
    _check_columns(rows, schema, sequence)
    frame = pl.DataFrame(pl.from_arrow(rows))
    if CHANGE_TYPE in frame.columns:
        unknown = frame[CHANGE_TYPE].unique().drop_nulls().to_list()
        wrong = [kind for kind in unknown if kind not in (*UPSERT_KINDS, *DELETE_KINDS, *IGNORED_KINDS)]
        if wrong or frame[CHANGE_TYPE].null_count():
            named = short_repr(wrong[0]) if wrong else "null"
            raise UsageError(
                f"{CHANGE_TYPE} is one of {', '.join((*UPSERT_KINDS, *DELETE_KINDS, *IGNORED_KINDS))}, not {named}"
            )
        frame = frame.filter(~pl.col(CHANGE_TYPE).is_in(IGNORED_KINDS))
    keys = list(schema.key_names)
    if sequence is not None:
        if frame[sequence].null_count():
            raise UsageError(f"column {sequence} orders the changes, and has nulls: fill them")
        return _last(frame, keys, sequence).to_arrow()
    repeats = len(frame) - frame.select(keys).n_unique()
    if repeats:
        raise UsageError(
            f"{repeats} rows repeat the key of another one: give each key once, or name the column that orders "
            f"them (sequenceBy; in a change feed that is {COMMIT_VERSION})"
        )
    return frame.to_arrow()


def _last(frame: pl.DataFrame, keys: list[str], sequence: str) -> pl.DataFrame:
    """Keep the last change of every key by its sequence."""
    ordered = frame.sort(sequence, maintain_order=True)
    if sequence == SEQUENCE:  # lines of a change log, which apply in their order
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
                f"{ties} rows repeat the key and the {sequence} of another one, and differ: the column must order them"
            )
    return once


def _check_columns(rows: pa.Table, schema: Schema, sequence: str | None) -> None:
    if sequence is not None and sequence not in rows.column_names:
        raise UsageError(f"there is no column {short_repr(sequence)} to order the changes by")
    extra = {CHANGE_TYPE, sequence}
    foreign = [name for name in rows.column_names if name not in schema.names and name not in extra]
    if foreign:
        raise UsageError(f"there is no column {short_repr(foreign[0])} in the collection")


def _kinds(rows: pa.Table) -> pl.Series:
    """Map each change type to upsert or delete."""
    if CHANGE_TYPE not in rows.column_names:
        return pl.repeat("come", rows.num_rows, eager=True)
    kinds = pl.Series(rows.column(CHANGE_TYPE))
    return pl.select(pl.when(kinds.is_in(DELETE_KINDS)).then(pl.lit("go")).otherwise(pl.lit("come"))).to_series()
