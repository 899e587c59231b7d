"""A table of counts and sums that follows a collection, from nothing but what changed: each batch exactly once.

Every change counts with its diff: what is retracted is taken away again, so the sums are always those of the rows
that are there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import timespine as ts
from examples.spark_pipeline.change_log import CHANGE_TYPE, DELETE, DIFF, UPSERT, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

COUNT, TOTAL = "count", "total"

NO_GROUP = "(none)"
"""The group of rows that say nothing: a key cannot be null."""

FRACTIONS = pa.decimal128(38, 6)
"""How numbers with fractions are summed: binary ones would not add up to the same in another order."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Counts and sums per group."""

    rows: ts.Collection
    """What is summed."""
    table: ts.Collection
    """The sums."""
    by: str | None
    """The column whose values are the groups; None: all rows are one."""
    measure: str | None
    """The column that is summed; None: rows are only counted."""

    @property
    def about(self) -> str:
        """What the table says."""
        what = COUNT if self.measure is None else f"{COUNT} and sum of {self.measure}"
        return f"{what} per {self.by}" if self.by is not None else what

    @property
    def measured(self) -> str:
        """What is summed, in words."""
        return "no sum" if self.measure is None else f"sum of {self.measure}"

    @property
    def key(self) -> str:
        """The key column of the table."""
        return self.table.schema.key_names[0]

    def group(self) -> Column:
        """Make the expression for the group of a row."""
        from pyspark.sql import functions as F

        found = F.lit("all") if self.by is None else F.col(quoted(self.by)).cast("string")
        return F.coalesce(found, F.lit(NO_GROUP)).alias(self.key)

    def total(self, times: Column) -> Column:
        """Make the expression for the sum over rows, each as often as it counts."""
        from pyspark.sql import functions as F

        if self.measure is None:
            return F.lit(None).cast("bigint")
        is_whole = pa.types.is_integer(self.table.schema.types[TOTAL])
        number = F.expr(f"try_cast({quoted(self.measure)} AS {'BIGINT' if is_whole else 'DECIMAL(28, 6)'})")
        return F.coalesce(F.sum(number * times), F.lit(0)).cast("bigint" if is_whole else "decimal(38, 6)")

    def summed(self, frame: DataFrame, times: Column) -> DataFrame:
        """Count and sum rows per group, each as often as it counts."""
        from pyspark.sql import functions as F

        sums = [F.sum(times).cast("bigint").alias(COUNT)]
        if self.measure is not None:
            sums.append(self.total(times).alias(TOTAL))
        return frame.groupBy(self.group()).agg(*sums)

    def follow(self, done: Callable[..., Any] | None = None) -> Callable[[DataFrame, int], None]:
        """Make the function for `foreachBatch` of a stream of changes."""
        write = ts.spark.foreach_batch(self.table, "upsert", sink="sums", done=done)

        def add(changes: DataFrame, batch: int) -> None:
            write(self.added(changes), batch)
            # The session of a batch is one of its own, and no other code would release what was read for it.
            ts.spark.release(changes.sparkSession)

        return add

    def added(self, changes: DataFrame) -> DataFrame:
        """Compute the groups that changes touch, as they are then; a group without rows is deleted.

        If the batch is in already, this is wrong, and unused: `foreach_batch` passes over it.
        """
        from pyspark.sql import functions as F

        names = [name for name in (COUNT, TOTAL) if name in self.table.schema.names]
        with self.table.snapshot() as now:
            known = now.to_spark(changes.sparkSession)
        known = known.select(quoted(self.key), *(F.col(name).alias(f"old_{name}") for name in names))
        both = self.summed(changes, F.col(DIFF)).join(known, self.key, "left")
        new = [(F.col(name) + F.coalesce(f"old_{name}", F.lit(0))).cast(self.kind(name)).alias(name) for name in names]
        kind = F.when(F.col(COUNT) == 0, F.lit(DELETE)).otherwise(F.lit(UPSERT))
        return both.select(quoted(self.key), *new).withColumn(CHANGE_TYPE, kind)

    def kind(self, name: str) -> str:
        """Return the type of a column of the table, as Spark names it."""
        return "bigint" if pa.types.is_integer(self.table.schema.types[name]) else "decimal(38, 6)"

    def kept(self, spark: SparkSession) -> DataFrame:
        """Read the table."""
        with self.table.snapshot() as now:
            frame: DataFrame = now.to_spark(spark)
            return frame

    def worked_out(self, spark: SparkSession) -> DataFrame:
        """Compute from all rows what the table should be."""
        from pyspark.sql import functions as F

        with self.rows.snapshot() as now:
            return self.summed(now.to_spark(spark), F.lit(1))


def sums_of(store: ts.Store, rows: ts.Collection) -> Sums:
    """Create a table of sums for a collection: by its first text, of its first number, apart from the key."""
    types = {name: kind for name, kind in rows.schema.types.items() if name not in rows.schema.key_names}
    by = next((name for name, kind in types.items() if pa.types.is_string(kind)), None)
    measure = next((name for name, kind in types.items() if _is_number(kind)), None)
    total = {} if measure is None else {TOTAL: pa.int64() if pa.types.is_integer(types[measure]) else FRACTIONS}
    name = "sums" if by is None else "by_" + "".join(each if each.isalnum() else "_" for each in by.lower())
    table = store.create(
        name, key={"group" if by is None else by: "string"}, value={COUNT: "int64", **total}, timeline="counter"
    )
    return Sums(rows, table, by, measure)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
