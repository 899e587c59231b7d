"""Views computed on Spark: changes from changes, first builds, and whole queries that are compared with what is stored.

Results of few rows come to the driver, and are committed as those of the process are. Those of many are written by
tasks, as runs that the same commit refers to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa

from timespine.client.api_for_engines import (
    AppendTime,
    CollectionHandle,
    ReadOptions,
    RefreshTransaction,
    open_snapshot,
)
from timespine.columnar.schema.schema import DIFF, Schema
from timespine.errors import UsageError
from timespine.spark.quoted_names import quoted
from timespine.spark.read.to_spark import to_spark
from timespine.spark.type_mapping import arrow_columns, struct_type, to_spark_schema, to_spark_table
from timespine.spark.write import driver_or_tasks
from timespine.views.compute_changes import Compiled, ViewDelta, stage_changes
from timespine.views.engine.accumulators import Grouping
from timespine.views.engine.evaluate import consolidate_rows
from timespine.views.engine.lowering import WEIGHT, to_memory
from timespine.views.engine.store_source import StoreSource, stage_names
from timespine.views.plan.delta import NEW
from timespine.views.spark_engine.evaluate import SparkEvaluator
from timespine.views.spark_engine.frames import SparkRows, columns, consolidate_frame, negated, union_frames
from timespine.views.spark_engine.replace_table_names import with_tables
from timespine.views.spark_engine.scalar_text import spark_type
from timespine.views.spark_engine.session import not_installed
from timespine.views.spark_engine.source import SparkSource

Inputs = Mapping[str, tuple[CollectionHandle, Mapping[str, str]]]
"""The inputs of a view by their names in the text, with the present names of their columns."""


@dataclass(frozen=True, slots=True)
class LargeRows:
    """Rows with counts that stay on Spark: tasks write them."""

    frame: Any
    """The rows under the names of the collection, cached."""
    count: int
    """The number of rows."""

    def __len__(self) -> int:
        return self.count

    def collect(self) -> pl.DataFrame:
        """Bring all rows to the driver."""
        return to_memory(pl.DataFrame(pl.from_arrow(self.frame.toArrow())))


@contextlib.contextmanager
def spark_errors(what: str) -> Iterator[None]:
    """Turn an error of Spark into one that says what was not done; raise a UsageError if it is not installed."""
    try:
        from pyspark.errors import PySparkException
    except ImportError:
        raise not_installed() from None

    try:
        yield
    except PySparkException as error:
        lines = [each for each in str(error).splitlines() if each.strip()]
        raise UsageError(f"{what}: Spark says: {lines[0] if lines else type(error).__name__}") from error


# Changes from changes, and whole plans.


@dataclass(slots=True)
class SparkRefresh:
    """The computation of one view on Spark; what it caches lives until it is closed."""

    spark: Any
    compiled: Compiled
    source: SparkSource
    evaluator: SparkEvaluator

    @staticmethod
    def begin(
        spark: Any,
        compiled: Compiled,
        source: StoreSource,
        pending: dict[str, Any],
        stack: contextlib.ExitStack,
        *,
        by_driver: bool = False,
    ) -> SparkRefresh:
        """Begin a computation that the stack ends; with `by_driver`, the driver may compute small parts of it."""
        made = SparkSource(spark, source, pending)
        evaluator = SparkEvaluator(made, by_driver=by_driver)
        stack.callback(evaluator.close)
        return SparkRefresh(spark, compiled, made, evaluator)

    def changes(self) -> ViewDelta:
        """Compute what changed from what changed below."""
        assert self.compiled.plan is not None
        changed = self.evaluator.changes(self.compiled.plan)
        if changed.local is not None:
            made = [pl.col(column.name).alias(name) for name, column in self.compiled.named]
            view: Any = consolidate_rows(changed.local.select([*made, pl.col(WEIGHT)]))
        else:
            view = self._settle(self._select(changed.frame), [name for name, _ in self.compiled.named])
        stages: list[Any] = []
        touched = 0
        for node in self.compiled.aggregates:
            old, new = self.evaluator.groups.get(node, (None, None))
            stages.append(self._stage(Grouping(node), old, new))
            touched += len(stages[-1])
        return ViewDelta(view, stages, self.source.store.fetched, touched)

    def _stage(self, grouping: Grouping, old: SparkRows | None, new: SparkRows | None) -> Any:
        """Return the rows of a stage that come and go."""
        there = [(rows, weight) for rows, weight in ((new, 1), (old, -1)) if rows is not None]
        if all(rows.local is not None for rows, _ in there):
            return stage_changes(
                grouping, old.local if old is not None else None, new.local if new is not None else None
            )
        return self._settle(
            union_frames([_staged(grouping, rows.frame, n) for rows, n in there]), stage_names(grouping)
        )

    def whole(self, stored: Sequence[CollectionHandle] = (), before: int | None = None) -> ViewDelta:
        """Compute the view and its stages whole; minus what is stored, if a time is given that it is stored as of."""
        assert self.compiled.plan is not None
        frame = self._select(self.evaluator.rows(self.compiled.plan, NEW))
        for node in self.compiled.aggregates:
            if node not in self.evaluator.groups:
                self.evaluator.rows(node, NEW)
        frames = [(frame, [name for name, _ in self.compiled.named])]
        for node in self.compiled.aggregates:
            grouping = Grouping(node)
            frames.append((_staged(grouping, self.evaluator.groups[node][1].frame, 1), stage_names(grouping)))
        made: list[Any] = []
        for place, (each, names) in enumerate(frames):
            if before is not None:
                if place >= len(stored):
                    break
                each = union_frames([each, negated(stored_frame(self.spark, stored[place], before, names), names)])
            made.append(self._settle(each, names))
        return ViewDelta(made[0], made[1:], self.source.store.fetched)

    def _select(self, frame: Any) -> Any:
        made = [f"{quoted(column.name)} AS {quoted(name)}" for name, column in self.compiled.named]
        return frame.selectExpr(*made, quoted(WEIGHT))

    def _settle(self, frame: Any, names: Sequence[str]) -> Any:
        return settled(consolidate_frame(frame, names), self.evaluator.keep)


def settled(frame: Any, keep: Callable[[Any], Any]) -> pl.DataFrame | LargeRows:
    """Run the job of a result: few rows come to the driver, many stay cached."""
    kept = keep(frame)
    table = kept.limit(driver_or_tasks.SMALL_ROWS + 1).toArrow()
    if table.num_rows <= driver_or_tasks.SMALL_ROWS:
        return to_memory(pl.DataFrame(pl.from_arrow(table)))
    return LargeRows(kept, kept.count())


def _staged(grouping: Grouping, groups: Any, weight: int) -> Any:
    renamed = zip(grouping.names, stage_names(grouping), strict=True)
    return groups.selectExpr(
        *(f"{quoted(one)} AS {quoted(two)}" for one, two in renamed), f"{weight}L AS {quoted(WEIGHT)}"
    )


def stored_frame(spark: Any, handle: CollectionHandle, time: int, names: Sequence[str]) -> Any:
    """Read what is stored of a view or a stage as a DataFrame with counts."""
    with open_snapshot(handle, time, ReadOptions(list(names))) as rows:
        frame = to_spark(rows, spark)
    return frame.selectExpr(*map(quoted, names), f"1L AS {quoted(WEIGHT)}")


# Whole queries, as the user wrote them.


Pending = Mapping[str, tuple[int, Any]]
"""Inputs that are views of the same refresh: the times that they are stored as of, -1 if never, and their changes."""


def input_frames(inputs: Inputs, time: int, spark: Any, pending: Pending) -> dict[str, Any]:
    """Read inputs as of a time as DataFrames, with the columns under the names of the text.

    SUBTLE: what a view of the same refresh becomes is not stored before the one commit of all views. It is what is
    stored of it, and its changes (tests/spark/test_views_on_spark.py, a chain that is one commit).
    """
    frames = {}
    for name, (handle, named) in inputs.items():
        present = list(named.values())
        if name in pending:
            frame = _changed_frame(spark, handle, present, *pending[name])
        else:
            with open_snapshot(handle, time, ReadOptions(present)) as rows:
                frame = to_spark(rows, spark)
        frames[name] = frame.selectExpr(
            *(f"{quoted(column)} AS {quoted(written)}" for written, column in named.items())
        )
    return frames


def _changed_frame(spark: Any, handle: CollectionHandle, names: Sequence[str], before: int, changes: Any) -> Any:
    """Return the rows of a view after a refresh that is not committed: each row as often as it counts."""
    _, schema = handle.schema(handle.known())
    wanted = pa.schema([*((name, schema.types[name]) for name in names), (WEIGHT, pa.int64())])
    if isinstance(changes, pl.DataFrame):
        net = consolidate_rows(changes.select(wanted.names)).to_arrow().cast(wanted)
        # Without rows Spark cannot tell the types from the table.
        table = to_spark_table(net, to_spark_schema(wanted)) if net.num_rows else []
        added = spark.createDataFrame(table, struct_type(wanted))
    else:
        added = columns(changes.frame, wanted.names)
    parts = [stored_frame(spark, handle, before, names)] if before >= 0 else []
    counted = consolidate_frame(union_frames([*parts, added]), names).where(f"{quoted(WEIGHT)} > 0")
    copies = f"explode(sequence(1L, {quoted(WEIGHT)})) AS {quoted(DIFF)}"
    return columns(counted.selectExpr(*map(quoted, names), copies), names)


def query_frame(
    query: Any,
    inputs: Inputs,
    time: int,
    spark: Any,
    function: Callable[[Any], Any] | None = None,
    pending: Pending | None = None,
) -> Any:
    """Return the DataFrame of a query, or of a function of DataFrames, over inputs as of a time."""
    frames = input_frames(inputs, time, spark, pending or {})
    if function is not None:
        made = function(frames)
        if not hasattr(made, "selectExpr"):
            raise UsageError(f"the function of a view returns a DataFrame, not {type(made).__name__}")
        return made
    return with_tables(query, frames, spark)


def query_schema(frame: Any) -> pa.Schema:
    """Return the columns of a query, with the types that Spark gives them."""
    found: pa.Schema = arrow_columns(frame.schema)
    return found


def query_delta(
    frame: Any, schema: pa.Schema, stored: tuple[CollectionHandle, int] | None, stack: contextlib.ExitStack
) -> ViewDelta:
    """Compute a whole query, minus what is stored."""
    spark = frame.sparkSession
    made = frame.selectExpr(
        *(f"CAST({quoted(each.name)} AS {spark_type(each.type)}) AS {quoted(each.name)}" for each in schema),
        f"1L AS {quoted(WEIGHT)}",
    )
    if stored is not None:
        handle, time = stored
        made = union_frames([made, negated(stored_frame(spark, handle, time, schema.names), schema.names)])
    kept: list[Any] = []

    def keep(each: Any) -> Any:
        kept.append(each.persist())
        return kept[-1]

    stack.callback(lambda: [each.unpersist() for each in kept])
    return ViewDelta(settled(consolidate_frame(made, schema.names), keep))


# Committing many rows.


def append_large(
    transaction: RefreshTransaction,
    handle: CollectionHandle,
    schema: Schema,
    rows: LargeRows,
    time: int,
    stack: contextlib.ExitStack,
) -> None:
    """Let tasks write rows as runs at a time; add the steps that commit them."""
    made = [f"CAST({quoted(name)} AS {spark_type(schema.types[name])}) AS {quoted(name)}" for name in schema.names]
    frame = rows.frame.selectExpr(*made, f"{quoted(WEIGHT)} AS {quoted(DIFF)}")
    when = AppendTime((time,), False, time + 1)
    for step in driver_or_tasks.append_by_tasks(handle, frame, when, stack):
        transaction.add(step)


def repeated_keys(rows: LargeRows, before: Any | None, key: Sequence[str]) -> int:
    """Count the keys that have several rows after a change; `before` has what is stored."""
    whole = columns(rows.frame, [*key, WEIGHT])
    if before is not None:
        whole = union_frames([whole, columns(before, [*key, WEIGHT])])
    return int(consolidate_frame(whole, key).where(f"{quoted(WEIGHT)} > 1").count())
