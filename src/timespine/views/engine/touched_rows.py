"""Rows of inputs that a refresh touches, read once for all views and terms of it.

Views of one refresh ask for the same rows: those of the orders that changed, before and after. So each input is read
once for its changes, and once for each key that a term asks for, in the columns that any of the views needs:

    rows after, of some keys     = those that were read before + those of the keys that were not asked for yet
    rows before, of the same     = rows after - changes

The second holds by the definition of net changes; only keys that occur in the changes have to be worked out.
Rows after come from what is kept of a small input (`engine.kept_rows`), from an open arrangement by these columns, or
from a read of the store; if the columns are the first ones of its key, that skips parts and row groups.
tests/views/test_touched_rows.py compares all of it with reads of the store.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import polars as pl
import pyarrow as pa

from timespine.client.api_for_engines import (
    CollectionHandle,
    ReadOptions,
    Rows,
    arranged_rows,
    open_changes,
    open_snapshot,
    restrict_to_keys,
)
from timespine.columnar.schema.schema import DIFF
from timespine.views.engine.evaluate import consolidate_rows
from timespine.views.engine.kept_rows import kept_columns, kept_rows, moved_rows
from timespine.views.engine.lowering import WEIGHT, to_memory


@dataclass(slots=True)
class TouchedRows:
    """One input between two times, in the columns that some views need."""

    handle: CollectionHandle
    columns: list[str]
    before: int
    after: int
    fetched: int = 0
    """The number of rows that were read."""
    _changes: pl.DataFrame | None = None
    _rows: dict[tuple[str, ...], tuple[pl.DataFrame, pl.DataFrame]] = field(default_factory=dict)
    """By the columns of keys: the keys that were asked for, and the rows after that have them."""
    _kept: pl.DataFrame | None = None
    """All rows after, if the input is small."""
    _moved: tuple[pl.DataFrame, pl.DataFrame] | None = None
    """Of a small input: what tells changed rows apart, and the rows before that have it."""
    _looked: bool = False
    """Whether it was found out that it is, or not."""

    def changes(self) -> pl.DataFrame:
        """Return the net changes."""
        if self._changes is None:
            with open_changes(self.handle, self.before, self.after, ReadOptions(self.columns)) as rows:
                self._changes = self._frame(rows)
        return self._changes

    def rows(self, time: int, columns: list[str], keys: pl.DataFrame) -> pl.DataFrame:
        """Return the rows of some keys as of before or after, in some columns."""
        names = self._ordered(keys.columns)
        found = _semi(self._after(names, keys.select(names)), keys, names)
        got = found.select([*columns, WEIGHT])
        if time == self.after:
            return got
        assert time == self.before, (time, self.before, self.after)
        changed = _semi(self.changes(), keys, names)
        if not len(changed):
            return got
        # Rows of keys that did not change are the same before and after: only the others are added up.
        if self._kept is not None:
            return self._kept_before(found, names, keys).select([*columns, WEIGHT])
        moved = changed.select(names).unique()
        here = [name for name in names if name in columns]
        if len(here) < len(names):
            return consolidate_rows(pl.concat([got, _negated(changed.select([*columns, WEIGHT]))]))
        same = got.join(moved, on=names, how="anti", nulls_equal=True)
        both = pl.concat([_semi(got, moved, names), _negated(changed.select([*columns, WEIGHT]))])
        return pl.concat([same, consolidate_rows(both)])

    def _kept_before(self, after: pl.DataFrame, names: list[str], keys: pl.DataFrame) -> pl.DataFrame:
        """Return the rows before of some keys of a small input, from its rows after of these keys."""
        told = self._told_apart()
        if self._moved is None:
            assert self._kept is not None
            touched = self.changes().select(told).unique()
            met = _semi(self._kept, touched, told).select(self.changes().columns)
            self._moved = touched, consolidate_rows(pl.concat([met, _negated(self.changes())]))
        touched, before = self._moved
        same = after.join(touched, on=told, how="anti", nulls_equal=True).select(before.columns)
        return pl.concat([same, _semi(before, keys, names)])

    def all_rows(self, time: int, columns: list[str]) -> pl.DataFrame | None:
        """Return all rows as of before or after, in some columns; None if the input is not small."""
        whole = self._whole()
        if whole is None:
            return None
        if time != self.after:
            assert time == self.before, (time, self.before, self.after)
            whole = moved_rows(whole, _negated(self.changes()), self._told_apart())
        return whole.select([*columns, WEIGHT])

    def _after(self, names: list[str], keys: pl.DataFrame) -> pl.DataFrame:
        """Return the rows after of at least some keys; read those that were not asked for yet."""
        whole = self._whole()
        if whole is not None:
            return whole
        known = self._rows.get(tuple(names))
        missing = keys if known is None else keys.join(known[0], on=names, how="anti", nulls_equal=True)
        if len(missing):
            found = self._read(names, missing)
            if known is not None:
                missing, found = pl.concat([known[0], missing]), pl.concat([known[1], found])
            known = self._rows[tuple(names)] = missing, found
        return known[1] if known is not None else self.changes().clear()

    def _whole(self) -> pl.DataFrame | None:
        """Return all rows after, if the input is small."""
        if not self._looked:
            self._looked = True
            period = (self.before, self.after)
            self._kept = kept_rows(self.handle, self.columns, period, self.changes, self._told_apart())
        return self._kept

    def _told_apart(self) -> list[str]:
        """Return the columns that tell rows apart: those of the key that there are, or all."""
        _, schema = self.handle.schema(self.handle.known())
        return [name for name in schema.key_names if name in self.columns] or self.columns

    def _read(self, names: list[str], keys: pl.DataFrame) -> pl.DataFrame:
        """Read the rows after of some keys."""
        id, schema = self.handle.schema(self.handle.known())
        wanted = keys.to_arrow().cast(pa.schema([schema.arrow.field(name) for name in names]))
        arranged = arranged_rows(self.handle, wanted, self.after, id)
        if arranged is not None:
            return self._named(arranged)
        with open_snapshot(self.handle, self.after, ReadOptions(self.columns), "column") as rows:
            restrict_to_keys(rows, wanted)
            return _semi(self._frame(rows), keys, names)

    def _ordered(self, names: list[str]) -> list[str]:
        """Put the columns of keys in the order of the key of the input: its first ones skip parts and row groups."""
        _, schema = self.handle.schema(self.handle.known())
        places = {name: place for place, name in enumerate(schema.key_names)}
        return sorted(names, key=lambda name: (places.get(name, len(places)), name))

    def _frame(self, rows: Rows) -> pl.DataFrame:
        return self._named(rows.to_arrow())

    def _named(self, table: pa.Table) -> pl.DataFrame:
        frame = pl.DataFrame(pl.from_arrow(table.select([*self.columns, DIFF])))
        self.fetched += len(frame)
        return to_memory(frame.rename({DIFF: WEIGHT}).select([*self.columns, WEIGHT]))


def _semi(rows: pl.DataFrame, keys: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    return rows.join(keys, on=names, how="semi", nulls_equal=True)


def _negated(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(-pl.col(WEIGHT))


class TouchedInputs:
    """The inputs of all views of one refresh."""

    def __init__(self) -> None:
        self._columns: dict[str, set[str]] = {}
        self._rows: dict[tuple[str, int, int], TouchedRows] = {}

    def expect(self, handle: CollectionHandle, columns: Iterable[str]) -> None:
        """Note columns that a view will ask an input for, before the first view does."""
        self._columns.setdefault(handle.id, set()).update(columns)

    def of(self, handle: CollectionHandle, before: int, after: int) -> TouchedRows:
        """Return the rows of an input between two times."""
        key = (handle.id, before, after)
        if key not in self._rows:
            columns = sorted(self._columns[handle.id] | kept_columns(handle))
            self._rows[key] = TouchedRows(handle, columns, before, after)
        return self._rows[key]
