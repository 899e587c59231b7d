"""Rows of small inputs and stages, kept from one refresh to the next, so that a refresh reads changes alone.

    rows after = rows before + changes

They are kept in the cache of the store, whose limit bounds them. Only rows that share their key with a change are
added up; all others stay as they are. What is kept has the time that it is as of, and is used for this time alone.
tests/views/test_touched_rows.py compares all of it with reads of the store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from timespine.client.api_for_engines import CollectionHandle, ReadOptions, open_snapshot
from timespine.columnar.schema.schema import DIFF
from timespine.views.engine.evaluate import consolidate_rows
from timespine.views.engine.lowering import WEIGHT, to_memory

KEPT_ROWS = 1 << 18
"""The most updates of an input that is kept whole: to find keys among them takes about as long as to plan a read."""

KEPT_GROUPS = 1 << 14
"""The most updates of a stage that is kept whole: of more, a read by key takes less than to move them."""

KEPT_SHARE = 8
"""An input that takes more than one of these shares of the cache is not kept."""


@dataclass(frozen=True, slots=True)
class KeptRows:
    """All rows of an input as of a time."""

    time: int
    schema: int
    """The id of the schema that its columns are named by."""
    columns: frozenset[str]
    frame: pl.DataFrame | None
    """The rows; None if they take too much memory."""


def kept_columns(handle: CollectionHandle) -> frozenset[str]:
    """Return the columns in which an input is kept."""
    known = _kept(handle)
    return frozenset() if known is None or known.frame is None else known.columns


def kept_rows(
    handle: CollectionHandle,
    columns: list[str],
    period: tuple[int, int],
    changes: Callable[[], pl.DataFrame],
    told_apart: list[str],
) -> pl.DataFrame | None:
    """Return all rows of an input at the end of a period, with some columns at least; None if it is not small.

    `changes` gives its net changes in the period, in these columns.
    """
    before, after = period
    known = _kept(handle)
    wanted = frozenset(columns)
    if known is not None and known.frame is None and known.columns <= wanted:
        return None
    if known is not None and known.frame is not None and known.time == after and wanted <= known.columns:
        return known.frame
    if sum(part.rows for part in handle.known().parts()) > KEPT_ROWS:
        return None
    if known is not None and known.frame is not None and known.time == before and wanted == known.columns:
        frame = moved_rows(known.frame, changes(), told_apart)
    else:
        with open_snapshot(handle, after, ReadOptions(columns), "column") as rows:
            frame = pl.DataFrame(pl.from_arrow(rows.to_arrow()))
        frame = to_memory(frame.rename({DIFF: WEIGHT}).select([*columns, WEIGHT]))
    size = int(frame.estimated_size())
    is_large = size > handle.context.cache.limit_bytes // KEPT_SHARE
    kept = KeptRows(after, handle.schema(handle.known())[0], wanted, None if is_large else frame)
    handle.context.cache.put(_key(handle), kept, 0 if is_large else size)
    return frame


def _key(handle: CollectionHandle) -> tuple[str, str]:
    return "view input", handle.id


def _kept(handle: CollectionHandle) -> KeptRows | None:
    """Return what is kept of an input under its present schema."""
    known: KeptRows | None = handle.context.cache.get(_key(handle))
    return known if known is not None and known.schema == handle.schema(handle.known())[0] else None


def moved_rows(rows: pl.DataFrame, changed: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    """Add changes to rows: only those that have the values of a change in some columns are added up."""
    if not len(changed):
        return rows
    touched = changed.select(names).unique()
    same = rows.join(touched, on=names, how="anti", nulls_equal=True)
    met = rows.join(touched, on=names, how="semi", nulls_equal=True)
    return pl.concat([same, consolidate_rows(pl.concat([met, changed.select(met.columns)]))], rechunk=True)


# Stages.


def kept_groups(handle: CollectionHandle, time: int) -> pl.DataFrame | None:
    """Return all groups of a stage as of the time of its view; None if it is not small."""
    known: tuple[int, pl.DataFrame] | None = handle.context.cache.get(_stage_key(handle))
    if known is not None and known[0] == time:
        return known[1]
    if sum(part.rows for part in handle.known().parts()) > KEPT_GROUPS:
        return None
    with open_snapshot(handle, time, ReadOptions(), "column") as rows:
        frame = to_memory(pl.DataFrame(pl.from_arrow(rows.to_arrow())).drop(DIFF))
    _keep_groups(handle, time, frame)
    return frame


def move_groups(handle: CollectionHandle, period: tuple[int, int], changed: pl.DataFrame) -> None:
    """Follow a refresh that was committed: add what it changed to the groups that are kept."""
    before, after = period
    known: tuple[int, pl.DataFrame] | None = handle.context.cache.get(_stage_key(handle))
    if known is None or known[0] != before:
        return
    frame = known[1]
    if len(changed):
        names = list(handle.schema(handle.known())[1].key_names)
        new = changed.filter(pl.col(WEIGHT) > 0).select(frame.columns)
        touched = changed.select(names).unique()
        same = frame.join(touched, on=names, how="anti", nulls_equal=True) if names else frame.clear()
        frame = pl.concat([same, new], rechunk=True)
    _keep_groups(handle, after, frame)


def _keep_groups(handle: CollectionHandle, time: int, frame: pl.DataFrame) -> None:
    size = int(frame.estimated_size())
    if size <= handle.context.cache.limit_bytes // KEPT_SHARE:
        handle.context.cache.put(_stage_key(handle), (time, frame), size)


def _stage_key(handle: CollectionHandle) -> tuple[str, str]:
    return "view stage", handle.id
