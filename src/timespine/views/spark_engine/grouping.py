"""Aggregates on Spark: the accumulators of `engine.accumulators`, as text of Spark SQL.

Stages have the same columns, whichever engine wrote them. Sums of whole numbers are worked out in decimals and cast
back, so that only a total beyond its type is an error. Sums of doubles are exact: tasks add the parts of each exponent
(`engine.exact_sums`), Spark adds those up, and one function rounds the total of a group once. Variances and their like
are computed as those are (`exact_spread_frame`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl
import pyarrow as pa

from timespine.spark.quoted_names import quoted
from timespine.views.engine.accumulators import (
    ADD,
    AGAIN,
    COUNT,
    EXACT,
    GREATEST,
    LEAST,
    ROUNDED,
    Accumulator,
    Grouping,
    is_spread,
    shown_sum,
)
from timespine.views.engine.exact_sums import ExactSum, exact_parts
from timespine.views.engine.lowering import WEIGHT
from timespine.views.plan.algebra import Aggregate
from timespine.views.spark_engine.exact_spread_frame import exact_spread_frame
from timespine.views.spark_engine.frames import columns, project, single_rows
from timespine.views.spark_engine.scalar_text import spark_type

_FEW_DIGITS = 27
"""Decimals with at most this number of digits can be multiplied by a count of ten digits."""


def _expr(text: str) -> Any:
    from pyspark.sql import functions as F

    return F.expr(text)


class SparkGrouping:
    """The work of one aggregate node on DataFrames."""

    def __init__(self, node: Aggregate) -> None:
        self.plain = Grouping(node)
        self.node = node
        self.keys = self.plain.keys
        self.names = self.plain.names
        self.accumulators = self.plain.accumulators

    def _arguments(self, rows: Any) -> Any:
        """Evaluate the arguments of all aggregates, beside keys and counts."""
        made = [
            (f"arg{place}", call.argument)
            for place, (_, call) in enumerate(self.node.calls)
            if call.argument is not None
        ]
        return project(rows, made, [*self.keys, WEIGHT])

    def _grouped(self, frame: Any, made: list[tuple[str, str]]) -> Any:
        aggregates = [_expr(text).alias(name) for name, text in made]
        return frame.groupBy(*(_expr(quoted(name)) for name in self.keys)).agg(*aggregates)

    def accumulate(self, rows: Any, *, follow: bool = False) -> Any:
        """Accumulate weighted rows by group.

        With `follow`, of changes: accumulators that changes do not lead to are null, and the least and greatest of
        what was retracted stand beside the others.
        """
        frame = self._arguments(rows)
        made = []
        exact: list[Accumulator] = []
        spreads: list[Accumulator] = []
        repeated: list[Accumulator] = []
        for each in self.accumulators:
            if each.kind in _AGAIN and follow:
                made.append((each.name, f"CAST(NULL AS {spark_type(each.type)})"))
            elif each.kind == EXACT:
                exact.append(each)
            elif each.kind == ROUNDED:
                continue  # it comes with the exact sum
            elif each.kind == AGAIN:
                (spreads if is_spread(each) else repeated).append(each)
            else:
                made.append((each.name, _accumulated(each)))
            if follow and each.kind in (LEAST, GREATEST):
                function = "min" if each.kind == LEAST else "max"
                made.append((f"{each.name}_gone", f"{function}({quoted(each.argument)}) FILTER (WHERE {_W} < 0)"))
        made.append((COUNT, f"coalesce(CAST(sum({_W}) AS BIGINT), 0L)"))
        groups = self._grouped(frame, made)
        if repeated:
            groups = self._beside(groups, self._over_single_rows(frame, repeated))
        for each in exact:
            groups = self._beside(groups, exact_sum_frame(frame, self.keys, each))
        for each in spreads:
            groups = self._beside(groups, exact_spread_frame(frame, self.keys, each))
        if follow:
            return groups
        return columns(groups, self.names)

    def _over_single_rows(self, frame: Any, wanted: Sequence[Accumulator]) -> Any:
        """Aggregate rows as often as they count, by the functions of Spark."""
        names = [name for name in frame.columns if name != WEIGHT]
        made = []
        for each in wanted:
            made.append((each.name, f"CAST({_again_text(each)} AS {spark_type(each.type)})"))
        return self._grouped(single_rows(frame, names), made)

    def _beside(self, groups: Any, other: Any) -> Any:
        """Put the columns of the groups of another frame beside those of a frame."""
        if not self.keys:
            return groups.crossJoin(other)
        renamed = [f"{quoted(name)} AS `_other{place}`" for place, name in enumerate(self.keys)]
        rest = [quoted(name) for name in other.columns if name not in self.keys]
        condition = " AND ".join(f"{quoted(name)} <=> `_other{place}`" for place, name in enumerate(self.keys))
        both = groups.join(other.selectExpr(*renamed, *rest), _expr(condition), "left")
        return both.drop(*(f"_other{place}" for place in range(len(self.keys))))

    def show(self, groups: Any, weight: int = 1) -> Any:
        """Show the aggregates of accumulated groups, each with a count."""
        made = [quoted(name) for name in self.keys]
        for place, (column, call) in enumerate(self.node.calls):
            made.append(f"CAST({_shown(call, place)} AS {spark_type(call.type)}) AS {quoted(column.name)}")
        return groups.selectExpr(*made, f"{weight}L AS {quoted(WEIGHT)}")

    def fold(self, old: Any, changes: Any) -> Any:
        """Add accumulated changes to the groups that were there; `_again` says which are to be computed again."""
        renamed = [f"{quoted(name)} AS {quoted(name + '_old')}" for name in self.names if name not in self.keys]
        both = self._beside(changes, old.selectExpr(*map(quoted, self.keys), *renamed))
        made, again = [], ["FALSE"]
        for each in self.accumulators:
            now, before, gone = (quoted(each.name + suffix) for suffix in ("", "_old", "_gone"))
            if each.kind == ADD:
                made.append(f"{_sum_text(now, before, each.type)} AS {quoted(each.name)}")
            elif each.kind in _AGAIN:
                again.append("TRUE")
                made.append(f"CAST(NULL AS {spark_type(each.type)}) AS {quoted(each.name)}")
            else:
                least = each.kind == LEAST
                again.append(f"coalesce({gone} {'<=' if least else '>='} {before}, FALSE)")
                made.append(f"{'least' if least else 'greatest'}({now}, {before}) AS {quoted(each.name)}")
        number = f"{quoted(COUNT)} + coalesce({quoted(COUNT + '_old')}, 0L) AS {quoted(COUNT)}"
        folded = both.selectExpr(*map(quoted, self.keys), *made, number, f"{' OR '.join(again)} AS `_again`")
        return folded.where(f"{quoted(COUNT)} <> 0") if self.keys else folded


_AGAIN = (AGAIN, EXACT, ROUNDED)
"""What Spark computes again from the rows of each touched group: its SQL has no whole numbers of 2,000 bits."""

_W = quoted(WEIGHT)


def _sum_text(now: str, before: str, kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return f"CAST(coalesce({now}, 0) + coalesce({before}, 0) AS {spark_type(kind)})"
    return f"coalesce({now}, 0L) + coalesce({before}, 0L)"


def _accumulated(each: Accumulator) -> str:
    """Return the accumulator over the weighted rows of a group."""
    value = quoted(each.argument)
    if each.part == "number":
        return f"coalesce(CAST(sum({_W}) FILTER (WHERE {value} IS NOT NULL) AS BIGINT), 0L)"
    if each.part == "sum":
        return _weighted_sum(each, value)
    function = "min" if each.kind == LEAST else "max"
    return f"{function}({value}) FILTER (WHERE {_W} > 0)"


def _weighted_sum(each: Accumulator, value: str) -> str:
    argument = each.call.argument
    assert argument is not None
    if not pa.types.is_decimal(each.type):
        return f"coalesce(CAST(sum(CAST({value} AS DECIMAL(19,0)) * CAST({_W} AS DECIMAL(10,0))) AS BIGINT), 0L)"
    scale = each.type.scale
    digits = argument.type.precision if pa.types.is_decimal(argument.type) else 19  # of a whole number
    times = f"CAST({value} AS DECIMAL({min(digits, _FEW_DIGITS)},{scale})) * CAST({_W} AS DECIMAL(10,0))"
    if digits > _FEW_DIGITS:
        # Beyond this a product has no room: it is an error if such a row counts otherwise, and does not fit.
        other = f"CAST({times} AS {spark_type(argument.type)})"
        times = f"CASE {_W} WHEN 1 THEN {value} WHEN -1 THEN - {value} ELSE {other} END"
    return f"coalesce(CAST(sum({times}) AS {spark_type(each.type)}), CAST(0 AS {spark_type(each.type)}))"


def _again_text(each: Accumulator) -> str:
    """Return an aggregate over rows of which each counts 1."""
    value, function = quoted(each.argument), each.call.function
    if "\0" in function:
        return function.replace("\0", value)
    if function.endswith(" distinct"):
        return f"{function.removesuffix(' distinct')}(DISTINCT {value})"
    if function in ("min_by", "max_by"):  # ties are broken by the value itself
        order = f"CASE WHEN {value}.a1 IS NOT NULL THEN struct({value}.a1, {value}.a0) END"
        return f"{function}({value}.a0, {order})"
    return f"{function}({value})"


def _shown(call: Any, place: int) -> str:
    """Return the value of an aggregate from its accumulators."""
    if call.argument is None:
        return quoted(COUNT)
    if call.function == "count":
        return quoted(f"number{place}")
    if call.function not in ("sum", "avg"):
        return quoted(f"value{place}")
    total, number = quoted(f"sum{place}"), quoted(f"number{place}")
    if call.function == "sum":
        return f"CASE WHEN {number} <> 0 THEN {total} END"
    safe = f"CASE WHEN {number} <> 0 THEN {number} END"
    if pa.types.is_decimal(call.type):
        given = call.argument.type
        return (
            f"CAST({total} AS DECIMAL({min(given.precision + 10, 38)},{given.scale})) / CAST({safe} AS DECIMAL(20,0))"
        )
    return f"CAST({total} AS DOUBLE) / CAST({safe} AS DOUBLE)"


# Sums of doubles.


def exact_sum_frame(frame: Any, keys: list[str], each: Accumulator) -> Any:
    """Sum doubles by group: exactly, and rounded once."""
    plain = [f"k{place}" for place in range(len(keys))]
    given = frame.selectExpr(
        *(f"{quoted(name)} AS {new}" for name, new in zip(keys, plain, strict=True)),
        f"CAST({quoted(each.argument)} AS DOUBLE) AS x",
        f"{_W} AS w",
    ).where("x IS NOT NULL")
    types = {field.name: field.dataType.simpleString() for field in given.schema.fields}
    ddl = ", ".join([*(f"{name} {types[name]}" for name in plain), _PARTS])
    parts = given.mapInArrow(_parts_task(plain), ddl)
    summed = parts.groupBy(*plain, "e").agg(
        _expr("sum(m)").alias("m"), *(_expr(f"sum({flag})").alias(flag) for flag in ("nan", "up", "down"))
    )
    gathered = summed.groupBy(*plain).agg(
        _expr("collect_list(struct(e, CAST(m AS STRING) AS m, nan, up, down))").alias("parts")
    )
    made = ", ".join([*(f"{name} {types[name]}" for name in plain), "exact binary", "total double"])
    rounded = gathered.mapInArrow(_round_task(plain), made)
    sums = [f"exact AS {quoted(each.name)}", f"total AS {quoted(shown_sum(each))}"]
    named = (f"{new} AS {quoted(name)}" for name, new in zip(keys, plain, strict=True))
    if not keys:  # one row, also of no rows
        return (
            rounded.groupBy()
            .agg(_expr("max(exact)").alias("exact"), _expr("max(total)").alias("total"))
            .selectExpr(*sums)
        )
    return rounded.selectExpr(*named, *sums)


_PARTS = "e int, m decimal(38,0), nan bigint, up bigint, down bigint"


def _parts_task(plain: list[str]) -> Any:
    """Make the function for `mapInArrow` that adds the parts of each group and exponent in a partition."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = pl.DataFrame(pl.from_arrow(pa.Table.from_batches([batch])))
            parts = exact_parts(rows.rename({"w": WEIGHT}), plain, "x")
            made = parts.select(
                *plain,
                pl.col("_e").alias("e"),
                pl.col("_sum").cast(pl.Decimal(38, 0)).alias("m"),
                pl.col("_nan").alias("nan"),
                pl.col("_up").alias("up"),
                pl.col("_down").alias("down"),
            ).to_arrow()
            wanted = [
                *(batch.schema.field(name) for name in plain),
                *(pa.field("e", pa.int32()), pa.field("m", pa.decimal128(38, 0))),
                *(pa.field(name, pa.int64()) for name in ("nan", "up", "down")),
            ]
            yield from made.cast(pa.schema(wanted)).to_batches()

    return run


def _round_task(plain: list[str]) -> Any:
    """Make the function for `mapInArrow` that makes the exact total of each group, and rounds it."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            totals = []
            encoded = []
            for parts in batch.column("parts").to_pylist():
                lists = [[part[name] for part in parts] for name in ("e", "m", "nan", "up", "down")]
                lists[1] = [int(each) for each in lists[1]]
                total = ExactSum.of_parts(*lists)
                encoded.append(total.encode())
                totals.append(total.rounded())
            arrays = [pa.array(encoded, pa.binary()), pa.array(totals, pa.float64())]
            keys = (batch.column(name) for name in plain)
            yield pa.RecordBatch.from_arrays([*keys, *arrays], names=[*plain, "exact", "total"])

    return run
