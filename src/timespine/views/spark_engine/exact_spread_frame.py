"""Variances, covariances and correlations on Spark, as the process computes them (`engine.exact_spreads`).

Tasks sum the parts of each group and exponent, Spark adds those up, and one function makes the answer of each group. So
both engines give the same bits, which functions of Spark do not: theirs depend on the order of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl
import pyarrow as pa

from timespine.spark.quoted_names import quoted
from timespine.views.engine.accumulators import Accumulator
from timespine.views.engine.exact_spreads import PAIRED, spread_of, spread_parts
from timespine.views.engine.lowering import WEIGHT


def exact_spread_frame(frame: Any, keys: list[str], each: Accumulator) -> Any:
    """Compute an aggregate of weighted rows by group, exactly."""
    from pyspark.sql import functions as F

    plain = [f"k{place}" for place in range(len(keys))]
    value, function = quoted(each.argument), each.call.function
    one, two = (f"{value}.a0", f"{value}.a1") if function in PAIRED else (value, value)
    given = frame.selectExpr(
        *(f"{quoted(name)} AS {new}" for name, new in zip(keys, plain, strict=True)),
        f"CAST({one} AS DOUBLE) AS x",
        f"CAST({two} AS DOUBLE) AS y",
        f"{quoted(WEIGHT)} AS w",
    ).where("x IS NOT NULL AND y IS NOT NULL")
    types = {field.name: field.dataType.simpleString() for field in given.schema.fields}
    named = [f"{name} {types[name]}" for name in plain]
    parts = given.mapInArrow(
        _parts_task(plain, function in PAIRED), ", ".join([*named, "t int, e int, m decimal(38,0)"])
    )
    summed = parts.groupBy(*plain, "t", "e").agg(F.expr("sum(m)").alias("m"))
    gathered = summed.groupBy(*plain).agg(F.expr("collect_list(struct(t, e, CAST(m AS STRING) AS m))").alias("parts"))
    made = gathered.mapInArrow(_spread_task(plain, function), ", ".join([*named, "spread double"]))
    if not keys:  # one row, also of no rows
        return made.groupBy().agg(F.expr("max(spread)").alias(each.name))
    back = (f"{new} AS {quoted(name)}" for name, new in zip(keys, plain, strict=True))
    return made.selectExpr(*back, f"spread AS {quoted(each.name)}")


def _parts_task(plain: list[str], is_paired: bool) -> Any:
    """Make the function for `mapInArrow` that sums the parts of each group and exponent in a partition."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = pl.DataFrame(pl.from_arrow(pa.Table.from_batches([batch])))
            parts = spread_parts(rows.rename({"x": "_x", "y": "_y", "w": WEIGHT}), plain, is_paired)
            sums = pl.col("_sum").cast(pl.Decimal(38, 0)).alias("m")
            made = parts.select(*plain, pl.col("_t").alias("t"), pl.col("_e").alias("e"), sums).to_arrow()
            wanted = [
                *(batch.schema.field(name) for name in plain),
                *(pa.field(name, pa.int32()) for name in ("t", "e")),
                pa.field("m", pa.decimal128(38, 0)),
            ]
            yield from made.cast(pa.schema(wanted)).to_batches()

    return run


def _spread_task(plain: list[str], function: str) -> Any:
    """Make the function for `mapInArrow` that makes the answer of each group."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = []
            for parts in batch.column("parts").to_pylist():
                sums, exponents = ([part[name] for part in parts] for name in ("t", "e"))
                found.append(spread_of(function, sums, exponents, [int(part["m"]) for part in parts]))
            keys = (batch.column(name) for name in plain)
            yield pa.RecordBatch.from_arrays([*keys, pa.array(found, pa.float64())], names=[*plain, "spread"])

    return run
