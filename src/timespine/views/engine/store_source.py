"""Rows of a refresh from the store: inputs as of two times, their net changes, and the stages of the view."""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl
import pyarrow as pa

from timespine.client.api_for_engines import (
    CollectionHandle,
    ReadOptions,
    Rows,
    extent_of,
    open_changes,
    open_snapshot,
    restrict_to_keys,
)
from timespine.columnar.schema.schema import DIFF
from timespine.errors import UsageError
from timespine.views.engine.accumulators import Grouping
from timespine.views.engine.evaluate import Keys, consolidate_rows
from timespine.views.engine.kept_rows import kept_groups
from timespine.views.engine.lowering import WEIGHT, memory_type, to_memory
from timespine.views.engine.touched_rows import TouchedRows
from timespine.views.plan.algebra import Aggregate, InputScan, PlanNode, Top, names_of
from timespine.views.plan.delta import NEW, OLD


@dataclass(slots=True)
class InputReader:
    """One input of a view between two times."""

    handle: CollectionHandle
    names: dict[str, str]
    """The present names of its columns, by those in the text."""
    before: int | None
    """The time of the last refresh; None if there was none."""
    after: int
    """The time of this refresh."""
    pending: pl.DataFrame | None = None
    """Changes of an input that is a view refreshed by the same commit: they are not stored yet."""
    stored: int | None = None
    """The time up to which such an input is stored."""
    touched: TouchedRows | None = None
    """Its rows that the refresh touches, shared with other views."""

    def extent(self, columns: list[str] | None = None) -> int:
        """Return the number of rows that are stored after the refresh, at most, by what is known without reading.

        SUBTLE: a view of the same refresh is not complete at the time of this refresh before the one commit, so that
        it would be waited for in vain (tests/spark/test_views_on_spark.py, a chain that is one commit).
        """
        time = self.after if self.stored is None else self.stored
        if time < 0:
            return 0
        with open_snapshot(self.handle, time, ReadOptions(columns)) as rows:
            return extent_of(rows)[0]

    def rows(self, version: str, columns: list[str], keys: Keys | None) -> pl.DataFrame:
        """Read rows as of one time, under the names of the text."""
        if version == NEW and self.pending is not None:
            old = self._snapshot(self.stored, columns, keys)
            added = self._pending(columns)
            return consolidate_rows(pl.concat([old, keys.only(added) if keys is not None else added]))
        time = self.before if version == OLD else self.after
        if self.touched is not None and self.pending is None and time is not None:
            shared = self._shared(self.touched, time, columns, keys)
            if shared is not None:
                return shared
        return self._snapshot(time, columns, keys)

    def _shared(self, touched: TouchedRows, time: int, columns: list[str], keys: Keys | None) -> pl.DataFrame | None:
        """Read rows through what the views of a refresh share; None if they do not share all rows."""
        present = [self.names[name] for name in columns]
        if keys is None:
            whole = touched.all_rows(time, present)
            if whole is None:
                return None
            frame = whole
        else:
            wanted = keys.frame.rename({name: self.names[name] for name in keys.names})
            frame = touched.rows(time, present, wanted)
        self._check_counts(frame, time)
        return frame.rename(dict(zip(present, columns, strict=True)))

    def changes(self, columns: list[str]) -> pl.DataFrame:
        """Read the net changes, under the names of the text."""
        until = self.after if self.pending is None else self.stored
        if self.pending is not None and until == self.before:
            return self._pending(columns)
        present = [self.names[name] for name in columns]
        if self.touched is not None and self.pending is None:
            return self.touched.changes().select([*present, WEIGHT]).rename(dict(zip(present, columns, strict=True)))
        with open_changes(self.handle, self.before, until, ReadOptions(present)) as rows:
            frame = self._frame(rows, columns)
        return frame if self.pending is None else consolidate_rows(pl.concat([frame, self._pending(columns)]))

    def _pending(self, columns: list[str]) -> pl.DataFrame:
        assert self.pending is not None
        return consolidate_rows(self.pending.select([*columns, WEIGHT]))

    def _snapshot(self, time: int | None, columns: list[str], keys: Keys | None) -> pl.DataFrame:
        assert time is not None
        present = [self.names[name] for name in columns]
        with open_snapshot(self.handle, time, ReadOptions(present), "column") as rows:
            if keys is not None:
                restrict_to_keys(rows, self._keys(keys, rows.schema))
            frame = self._frame(rows, columns)
        self._check_counts(frame, time)
        return frame

    def _check_counts(self, frame: pl.DataFrame, time: int) -> None:
        if len(frame) and frame[WEIGHT].min() < 0:  # type: ignore[operator]
            raise UsageError(
                f"{self.handle.name} has rows with a negative count as of {time}: a view needs counts from 1 on"
            )

    def _keys(self, keys: Keys, schema: pa.Schema) -> pa.Table:
        present = [self.names[name] for name in keys.names]
        wanted = pa.schema([schema.field(name) for name in present])
        return keys.frame.rename(dict(zip(keys.names, present, strict=True))).to_arrow().cast(wanted)

    def _frame(self, rows: Rows, columns: list[str]) -> pl.DataFrame:
        frame = pl.DataFrame(pl.from_arrow(rows.to_arrow()))
        present = {self.names[name]: name for name in columns}
        return to_memory(frame.rename({**present, DIFF: WEIGHT}).select([*columns, WEIGHT]))


@dataclass(frozen=True, slots=True)
class StoredView:
    """The rows of the view itself, as of its last refresh."""

    plan: PlanNode
    handle: CollectionHandle
    time: int
    names: dict[str, str]
    """Its columns, by those of the plan."""

    def rows(self) -> pl.DataFrame:
        """Read them, under the names of the plan."""
        with open_snapshot(self.handle, self.time, ReadOptions(), "column") as rows:
            frame = pl.DataFrame(pl.from_arrow(rows.to_arrow()))
        made = [pl.col(self.names[column.name]).alias(column.name) for column in self.plan.columns]
        return to_memory(frame.select([*made, pl.col(DIFF).alias(WEIGHT)]))


@dataclass(slots=True)
class StoreSource:
    """The inputs and the stages of one view, for one refresh."""

    inputs: dict[str, InputReader]
    stages: dict[Aggregate, tuple[CollectionHandle, int]] = field(default_factory=dict)
    """The stages of aggregates, and the time that they are read as of."""
    view: StoredView | None = None
    """The view, if it was refreshed before."""
    fetched: int = 0
    """The number of rows read."""

    def rows(self, scan: InputScan, version: str, keys: Keys | None) -> pl.DataFrame:
        """Read an input, all of it or the rows of some keys, with their counts."""
        reader = self.inputs[scan.input]
        names = {column.name: source for column, source in scan.outputs}
        wanted = keys.renamed({name: names[name] for name in keys.names}) if keys is not None else None
        frame = reader.rows(version, list(names.values()), wanted)
        return self._named(frame, scan)

    def changes(self, scan: InputScan) -> pl.DataFrame:
        """Read the net changes of an input."""
        return self._named(self.inputs[scan.input].changes([source for _, source in scan.outputs]), scan)

    def groups(self, node: Aggregate, keys: Keys | None) -> pl.DataFrame | None:
        """Read accumulated groups, all or those of some keys; None if the aggregate has no stage."""
        found = self.stages.get(node)
        if found is None:
            return None
        handle, time = found
        grouping = Grouping(node)
        if keys is not None and not len(keys.frame):
            return empty_groups(grouping)
        names = dict(zip(grouping.names, stage_names(grouping), strict=True))
        kept = kept_groups(handle, time)
        if kept is not None:
            frame = kept.select([pl.col(new).alias(old) for old, new in names.items()])
            frame = frame if keys is None else keys.only(frame)
            self.fetched += len(frame)
            return frame
        with open_snapshot(handle, time, ReadOptions(), "column") as rows:
            if keys is not None:
                present = [names[name] for name in keys.names]
                wanted = pa.schema([rows.schema.field(name) for name in present])
                restrict_to_keys(
                    rows, keys.frame.rename(dict(zip(keys.names, present, strict=True))).to_arrow().cast(wanted)
                )
            frame = pl.DataFrame(pl.from_arrow(rows.to_arrow()))
        self.fetched += len(frame)
        return to_memory(frame.rename({new: old for old, new in names.items()}).select(grouping.names))

    def has_groups(self, node: Aggregate) -> bool:
        """Return whether an aggregate has a stage."""
        return node in self.stages

    def first_rows(self, node: Top) -> pl.DataFrame | None:
        """Read the first rows in an order as of before, if the view is nothing else and has all columns of them."""
        if self.view is None or self.view.plan is not node or not self.view.names.keys() >= set(names_of(node)):
            return None
        frame = self.view.rows()
        self.fetched += len(frame)
        return frame

    def _named(self, frame: pl.DataFrame, scan: InputScan) -> pl.DataFrame:
        self.fetched += len(frame)
        return frame.rename({source: column.name for column, source in scan.outputs})


def stage_names(grouping: Grouping) -> list[str]:
    """Return the names of the columns of a stage: its keys by number, then its accumulators."""
    return [*(f"key{place}" for place in range(len(grouping.keys))), *grouping.names[len(grouping.keys) :]]


def empty_groups(grouping: Grouping) -> pl.DataFrame:
    """Return no groups."""
    types = {column.name: memory_type(column.type) for column in grouping.node.keys}
    types |= {each.name: memory_type(each.type) for each in grouping.accumulators}
    return pl.DataFrame(schema={**types, grouping.names[-1]: pl.Int64})
