"""Enrich the rows of a DataFrame from a checkpoint of an arrangement: executors map its files, and nothing is shuffled.

A join reads the whole table on its other side. Here a task looks up the keys of its rows in sorted, mapped files: it
touches the pages that it needs, and the workers of a machine share them. The driver chooses one checkpoint, and all
tasks read that one, however often they are repeated.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from timespine.arrangement.opened_checkpoint import OpenedCheckpoint
from timespine.columnar.ingest.cast import mismatch
from timespine.columnar.schema.schema import shown_names
from timespine.errors import UsageError, short_repr
from timespine.spark.enrich_task import EnrichTask
from timespine.spark.setup.worker_python import check_workers
from timespine.spark.type_mapping import arrow_columns, struct_type, unsigned_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PINS_MAX = 8
"""Checkpoints of one folder that a session keeps from being deleted: one for each of the newest calls."""

How = Literal["left", "inner"]

_pinned: weakref.WeakKeyDictionary[Any, dict[tuple[str, int], OpenedCheckpoint]] = weakref.WeakKeyDictionary()
"""The checkpoints that DataFrames of a session read, the oldest first."""


def enrich(
    frame: DataFrame,
    folder: str | os.PathLike[str] | OpenedCheckpoint,
    *,
    on: str | Sequence[str] | Mapping[str, str],
    columns: Sequence[str] | None = None,
    how: How = "left",
) -> DataFrame:
    """Add columns of the rows that a checkpoint has for the keys of a DataFrame.

    `folder` is the folder of an arrangement, or an open checkpoint: its newest one now is read, also by tasks that run
    later. `on` names the columns that rows are arranged by, or the first of them; a dictionary maps columns of the
    DataFrame to those. `columns` are the columns to add, by default all others. A row with several matches comes
    several times, one without any with nulls, or not at all if `how` is "inner". A null in a key matches nothing.

    The checkpoint stays while the session has made fewer than PINS_MAX newer ones of its folder, and until `release`.
    """
    if how not in ("left", "inner"):
        raise UsageError(f"how is 'left' or 'inner', not {short_repr(how)}")
    spark = frame.sparkSession
    opened = _pin(spark, folder)
    names = frame.columns
    keys = _keys(names, on, opened)
    added = _added(names, set(keys.values()), columns, opened)
    _check_types(frame, keys, opened)
    check_workers(spark)
    # SUBTLE: `mapInArrow` parses names of columns as expressions. So columns have other names (test_enrich.py).
    places = {arranged: names.index(name) for name, arranged in keys.items()}
    task = EnrichTask(opened.folder, opened.number, places, added, how)
    schema = _result_schema(frame, added, opened)
    inside = frame.toDF(*(f"c{place}" for place in range(len(names))))
    return inside.mapInArrow(task, schema).toDF(*names, *added)


def release_pins(spark: SparkSession) -> int:
    """Let the checkpoints of the DataFrames of a session be deleted; return their number."""
    pins = _pinned.pop(spark, {})
    for each in pins.values():
        each.close()
    return len(pins)


def _pin(spark: SparkSession, folder: str | os.PathLike[str] | OpenedCheckpoint) -> OpenedCheckpoint:
    """Open a checkpoint for the life of the session."""
    if isinstance(folder, OpenedCheckpoint):
        opened = OpenedCheckpoint(folder.folder, folder.number)
    else:
        opened = OpenedCheckpoint(folder)
    pins = _pinned.setdefault(spark, {})
    known = pins.pop((opened.folder, opened.number), None)
    if known is not None:
        opened.close()
        opened = known
    pins[opened.folder, opened.number] = opened
    own = [place for place in pins if place[0] == opened.folder]
    for place in own[:-PINS_MAX]:
        pins.pop(place).close()
    return opened


def _keys(names: Sequence[str], on: object, opened: OpenedCheckpoint) -> dict[str, str]:
    """Return the columns of the DataFrame that hold the key, each with its arranged column."""
    if isinstance(on, Mapping):
        keys = dict(on)
    else:
        listed = [on] if isinstance(on, str) else on
        if not isinstance(listed, Sequence):
            raise UsageError(f"on is a column, a list or a dictionary of columns, not {short_repr(on)}")
        keys = {name: name for name in listed}
    by = opened.layout.by
    if set(keys.values()) != set(by[: len(keys)]) or len(set(keys.values())) < len(keys) or not keys:
        raise UsageError(
            f"on names the columns {shown_names(by)} that rows are arranged by, or the first of them, not "
            f"{shown_names([*keys.values()])}"
        )
    for name in keys:
        if list(names).count(name) != 1:
            there = "no column" if name not in names else "more than one column"
            raise UsageError(f"the DataFrame has {there} {short_repr(name)}: it has {shown_names(names)}")
    return keys


def _added(
    names: Sequence[str], keys: set[str], columns: Sequence[str] | None, opened: OpenedCheckpoint
) -> tuple[str, ...]:
    """Return the columns to add."""
    schema = opened.layout.schema
    if isinstance(columns, str):
        raise UsageError("`columns` must be a list of names of columns")
    added = tuple(name for name in schema.names if name not in keys) if columns is None else tuple(columns)
    for name in added:
        schema.field(name)
    if len(set(added)) < len(added):
        repeated = next(name for place, name in enumerate(added) if name in added[:place])
        raise UsageError(f"`columns` names {short_repr(repeated)} twice")
    taken = {name.lower() for name in names}
    twice = [name for name in added if name.lower() in taken]
    if twice:
        raise UsageError(f"the DataFrame has {shown_names(twice)} already: choose columns, or rename its own first")
    return added


def _check_types(frame: DataFrame, keys: Mapping[str, str], opened: OpenedCheckpoint) -> None:
    """Raise a UsageError if a column of the DataFrame cannot be compared with its arranged column."""
    types = opened.layout.schema.types
    from pyspark.sql.types import StructType

    given = arrow_columns(StructType([field for field in frame.schema.fields if field.name in keys]))
    for field in given:
        wanted = types[keys[field.name]]
        reason = mismatch(unsigned_type(field.type, wanted), wanted)
        if reason is not None:
            raise UsageError(f"column {short_repr(field.name)} {reason}")


def _result_schema(frame: DataFrame, added: Sequence[str], opened: OpenedCheckpoint) -> Any:
    """Return the columns of the result, under plain names."""
    from pyspark.sql.types import StructField, StructType

    shape = opened.layout.schema.arrow
    new = struct_type(shape.empty_table().select(list(added)).schema).fields
    kinds = [(field.dataType, field.nullable) for field in frame.schema.fields] + [
        (each.dataType, True) for each in new
    ]
    return StructType([StructField(f"c{place}", kind, nullable) for place, (kind, nullable) in enumerate(kinds)])
