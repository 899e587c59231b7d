"""Rows of a refresh as DataFrames: inputs, their changes, and the stages of the view.

What few keys touch is looked up by the driver, which reads only the row groups that can have them. What many keys
touch is read by the executors, and restricted by a semi join.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pyarrow as pa

from timespine.client.api_for_engines import ReadOptions, extent_of, open_changes, open_snapshot
from timespine.columnar.schema.schema import DIFF
from timespine.spark.quoted_names import quoted
from timespine.spark.read.to_spark import to_spark
from timespine.spark.type_mapping import struct_type, to_spark_schema
from timespine.views.engine.accumulators import Grouping
from timespine.views.engine.evaluate import Keys, consolidate_rows
from timespine.views.engine.lowering import WEIGHT, to_memory
from timespine.views.engine.store_source import InputReader, StoreSource, stage_names
from timespine.views.plan.algebra import Aggregate, InputScan, PlanNode
from timespine.views.plan.delta import NEW, OLD
from timespine.views.spark_engine.frames import SparkKeys, SparkRows, consolidate_frame, union_frames
from timespine.views.spark_engine.scalar_text import values_text

LOOKUP_ROWS = 50_000
"""Most changes, and most keys, for which the driver looks up what they touch."""

SCAN_ROWS = 2_000_000
"""Most rows of an input that the driver reads to find some by other columns than the first ones of its key."""


INLINE_CELLS = 2_000
"""Most values that are written into the text of a query: Spark plans better if it knows all rows."""


def arrow_schema_of(plan: PlanNode) -> pa.Schema:
    """Return the columns of a plan and the counts, in types of Spark."""
    return to_spark_schema(pa.schema([*((column.name, column.type) for column in plan.columns), (WEIGHT, pa.int64())]))


@dataclass(slots=True)
class SparkSource:
    """The inputs and the stages of one view, for one refresh on Spark."""

    spark: Any
    store: StoreSource
    """Where the driver reads."""
    pending: dict[str, Any] = field(default_factory=dict)
    """Changes of inputs that are views of the same refresh, as DataFrames, where these have many rows."""

    def local(self, frame: pl.DataFrame, schema: pa.Schema) -> Any:
        """Give rows of the driver as a DataFrame."""
        table = frame.to_arrow().select(schema.names).cast(schema)
        if not table.num_rows:
            return self.spark.createDataFrame([], struct_type(schema))
        if table.num_rows * len(schema) <= INLINE_CELLS and not any(pa.types.is_nested(each.type) for each in schema):
            return self.spark.sql(values_text(table))
        return self.spark.createDataFrame(table)

    def rows_of(self, plan: PlanNode, frame: pl.DataFrame) -> SparkRows:
        """Give rows of a plan that are on the driver."""
        return SparkRows(local=frame, make=lambda: self.local(frame, arrow_schema_of(plan)), is_small=True)

    # Inputs.

    def changes(self, scan: InputScan) -> SparkRows:
        """Read the net changes of an input."""
        reader = self.store.inputs[scan.input]
        if scan.input in self.pending:
            return SparkRows(self._pending(scan))
        until = reader.after if reader.pending is None else reader.stored
        if reader.pending is None or until != reader.before:
            with open_changes(reader.handle, reader.before, until, ReadOptions(_with_key(reader, scan))) as rows:
                if extent_of(rows)[0] > LOOKUP_ROWS:
                    frame = _named(to_spark(rows, self.spark), reader, scan, quoted(DIFF))
                    if reader.pending is None:
                        return SparkRows(frame)
                    names = [column.name for column in scan.columns]
                    added = self.store._named(reader._pending([source for _, source in scan.outputs]), scan)
                    return SparkRows(
                        consolidate_frame(union_frames([frame, self.local(added, arrow_schema_of(scan))]), names)
                    )
        found = consolidate_rows(self.store.changes(scan))
        return self.rows_of(scan, found)

    def is_small(self, scan: InputScan) -> bool:
        """Return whether an input has few changes, and so few rows that the driver finds the touched ones itself."""
        reader = self.store.inputs[scan.input]
        if scan.input in self.pending:
            return False
        if reader.pending is None:
            with open_changes(reader.handle, reader.before, reader.after, ReadOptions()) as rows:
                if extent_of(rows)[0] > LOOKUP_ROWS:
                    return False
        elif len(reader.pending) > LOOKUP_ROWS:
            return False
        with open_snapshot(reader.handle, reader.before, ReadOptions()) as rows:
            return extent_of(rows)[0] <= SCAN_ROWS

    def rows(self, scan: InputScan, version: str, keys: SparkKeys | None) -> SparkRows:
        """Read an input as of before or after, at least the rows of some keys, with their counts."""
        reader = self.store.inputs[scan.input]
        if keys is not None and keys.local is not None and self._is_found(reader, scan, keys):
            wanted = Keys(keys.names, keys.local)
            return self.rows_of(scan, wanted.only(self.store.rows(scan, version, wanted)))
        is_pending = version == NEW and (reader.pending is not None or scan.input in self.pending)
        time = reader.before if version == OLD else reader.stored if is_pending else reader.after
        assert time is not None
        present = [reader.names[source] for _, source in scan.outputs]
        with open_snapshot(reader.handle, time, ReadOptions(present)) as rows:
            self.store.fetched += extent_of(rows)[0]
            frame = _named(to_spark(rows, self.spark), reader, scan, "1L")
        if not is_pending:
            return SparkRows(frame)
        if scan.input in self.pending:
            added = self._pending(scan)
        else:
            local = self.store._named(reader._pending([source for _, source in scan.outputs]), scan)
            added = self.local(local, arrow_schema_of(scan))
        return SparkRows(consolidate_frame(union_frames([frame, added]), [column.name for column in scan.columns]))

    def _pending(self, scan: InputScan) -> Any:
        made = [f"{quoted(source)} AS {quoted(column.name)}" for column, source in scan.outputs]
        frame = self.pending[scan.input].selectExpr(*made, quoted(WEIGHT))
        return consolidate_frame(frame, [column.name for column in scan.columns])

    def _is_found(self, reader: InputReader, scan: InputScan, keys: SparkKeys) -> bool:
        """Return whether the driver can find the rows of some keys without reading too many others."""
        if scan.input in self.pending:
            return False
        sources = {column.name: source for column, source in scan.outputs}
        wanted = {reader.names[sources[name]] for name in keys.names}
        state = reader.handle.known()
        _, schema = reader.handle.schema(state)
        if wanted == set(schema.key_names[: len(wanted)]):
            return True
        return reader.extent(sorted(wanted)) <= SCAN_ROWS

    # Stages.

    def has_stage(self, node: Aggregate) -> bool:
        """Return whether an aggregate has a stage."""
        return node in self.store.stages

    def groups_of(self, grouping: Grouping, found: pl.DataFrame) -> SparkRows:
        """Give accumulated groups that are on the driver."""
        schema = to_spark_schema(groups_schema(grouping))
        return SparkRows(local=found, make=lambda: self.local(found, schema), is_small=True)

    def groups(self, node: Aggregate, keys: SparkKeys | None, *, is_small: bool = False) -> SparkRows:
        """Read accumulated groups as of before, at least those of some keys; `is_small` if they are few for sure."""
        grouping = Grouping(node)
        names = stage_names(grouping)
        if is_small or (keys is not None and keys.local is not None):
            wanted = Keys(keys.names, keys.local) if keys is not None and keys.local is not None else None
            found = self.store.groups(node, wanted)
            assert found is not None
            return self.groups_of(grouping, wanted.only(found) if wanted is not None else found)
        handle, time = self.store.stages[node]
        with open_snapshot(handle, time, ReadOptions()) as rows:
            self.store.fetched += extent_of(rows)[0]
            frame = to_spark(rows, self.spark)
        renamed = zip(names, grouping.names, strict=True)
        return SparkRows(frame.selectExpr(*(f"{quoted(one)} AS {quoted(two)}" for one, two in renamed)))

    def collect(self, frame: Any, limit: int) -> pl.DataFrame | None:
        """Bring rows to the driver if there are at most `limit`; None if there are more."""
        found = self.collect_all(frame.limit(limit + 1))
        return None if len(found) > limit else found

    def collect_all(self, frame: Any) -> pl.DataFrame:
        """Bring rows to the driver that are known to be few."""
        return to_memory(pl.DataFrame(pl.from_arrow(frame.toArrow())))


def groups_schema(grouping: Grouping) -> pa.Schema:
    """Return the columns of accumulated groups."""
    keys = [(column.name, column.type) for column in grouping.node.keys]
    return pa.schema(
        [*keys, *((each.name, each.type) for each in grouping.accumulators), (grouping.names[-1], pa.int64())]
    )


def _with_key(reader: InputReader, scan: InputScan) -> list[str]:
    """Return the present names of the columns of a scan, and of the key: changes are read in pieces by it."""
    _, schema = reader.handle.schema(reader.handle.known())
    return list(dict.fromkeys([*(reader.names[source] for _, source in scan.outputs), *schema.key_names]))


def _named(frame: Any, reader: InputReader, scan: InputScan, weight: str) -> Any:
    """Give rows the names of the plan."""
    made = [f"{quoted(reader.names[source])} AS {quoted(column.name)}" for column, source in scan.outputs]
    return frame.selectExpr(*made, f"{weight} AS {quoted(WEIGHT)}")
