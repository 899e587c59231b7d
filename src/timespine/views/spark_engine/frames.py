"""Relations on Spark: DataFrames with a column of counts, and the nodes of plans on them. All of it is lazy.

Every function gives the rows that `engine.evaluate` and `engine.windows` give in the process; expressions are text of
Spark SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import polars as pl

from timespine.spark.quoted_names import quoted
from timespine.spark.setup.worker_python import is_connect
from timespine.views.engine.lowering import WEIGHT
from timespine.views.plan.algebra import Explode, Join, PlanNode, SortKey, Top, WindowCall, WindowNode, names_of
from timespine.views.plan.expressions import Expression
from timespine.views.spark_engine.scalar_text import expression_text, spark_type


class SparkRows:
    """Rows of a plan with their counts: a DataFrame, or rows of the driver that become one when it is asked for."""

    def __init__(
        self,
        frame: Any = None,
        *,
        local: pl.DataFrame | None = None,
        make: Callable[[], Any] | None = None,
        is_small: bool = False,
        is_computed: bool = False,
    ) -> None:
        self._frame = frame
        self._make = make
        self.local = local
        """The rows on the driver, if they are there."""
        self.is_small = is_small
        """Whether they follow from so few changes that the driver may ask for them."""
        self.is_computed = is_computed
        """Whether a job has computed them, and Spark keeps them."""

    @property
    def frame(self) -> Any:
        """The DataFrame: the columns of the plan, and the counts."""
        if self._frame is None:
            assert self._make is not None
            self._frame = self._make()
        return self._frame

    @property
    def is_empty(self) -> bool:
        """Whether there are surely no rows."""
        return self.local is not None and not len(self.local)


class SparkKeys:
    """A restriction: rows that have one of these combinations of values; nulls are equal."""

    def __init__(self, names: tuple[str, ...], local: pl.DataFrame | None, make: Callable[[], Any]) -> None:
        self.names = names
        """Columns of the restricted plan."""
        self.local = local
        """The combinations on the driver, each once, if they are there."""
        self._make = make
        self._frame: Any = None

    @property
    def frame(self) -> Any:
        """The combinations under the names, each once, as a DataFrame."""
        if self._frame is None:
            self._frame = self._make()
        return self._frame

    def part(self, names: Sequence[str]) -> SparkKeys | None:
        """Return the restriction of some of the columns; None if they are none."""
        kept = tuple(name for name in self.names if name in names)
        if not kept:
            return None
        if kept == self.names:
            return self
        local = self.local.select(kept).unique() if self.local is not None else None
        return SparkKeys(kept, local, lambda: columns(self.frame, kept).distinct())

    def renamed(self, names: dict[str, str]) -> SparkKeys:
        """Return the restriction under other names."""
        made = [f"{quoted(name)} AS {quoted(names[name])}" for name in self.names]
        local = self.local.rename(names) if self.local is not None else None
        return SparkKeys(tuple(names[name] for name in self.names), local, lambda: self.frame.selectExpr(*made))

    def only(self, rows: Any) -> Any:
        """Keep the rows that satisfy the restriction."""
        return semi_join(rows, self.frame, self.names)


def columns(frame: Any, names: Sequence[str]) -> Any:
    """Select columns by name."""
    return frame.selectExpr(*map(quoted, names))


def semi_join(rows: Any, keys: Any, names: Sequence[str]) -> Any:
    """Keep the rows whose values occur in keys of the same names; nulls are equal."""
    other = keys.selectExpr(*(f"{quoted(name)} AS `_key{place}`" for place, name in enumerate(names)))
    return rows.join(other, _expr(_same(names)), "left_semi")


def _same(names: Sequence[str]) -> str:
    return " AND ".join(f"{quoted(name)} <=> `_key{place}`" for place, name in enumerate(names)) or "TRUE"


def _expr(text: str) -> Any:
    from pyspark.sql import functions as F

    return F.expr(text)


def consolidate_frame(frame: Any, names: Sequence[str]) -> Any:
    """Sum the counts of equal rows, and drop those that count 0."""
    if not names:
        total = frame.groupBy().agg(_expr(f"sum({quoted(WEIGHT)})").alias(WEIGHT))
        return total.where(f"{quoted(WEIGHT)} <> 0")
    grouped = frame.groupBy(*(_expr(quoted(name)) for name in names))
    summed = grouped.agg(_expr(f"sum({quoted(WEIGHT)})").alias(WEIGHT))
    return columns(summed, [*names, WEIGHT]).where(f"{quoted(WEIGHT)} <> 0")


def project(frame: Any, outputs: Sequence[tuple[str, Expression]], keep: Sequence[str] = (WEIGHT,)) -> Any:
    """Evaluate expressions over rows, and keep some columns."""
    made = [f"{expression_text(each)} AS {quoted(name)}" for name, each in outputs]
    return frame.selectExpr(*made, *map(quoted, keep))


def filter_frame(frame: Any, condition: Expression) -> Any:
    """Keep the rows for which a condition is true."""
    return frame.where(_expr(expression_text(condition)))


def explode_frame(plan: Explode, frame: Any) -> Any:
    """Give a row for each element of an array, with the kept columns and the counts."""
    places = [] if plan.position is None else [plan.position.name]
    function = f"{'posexplode' if places else 'explode'}{'_outer' if plan.is_outer else ''}"
    names = ", ".join(map(quoted, [*places, plan.element.name]))
    made = f"{function}({expression_text(plan.array)}) AS {f'({names})' if places else names}"
    kept = [quoted(column.name) for column in plan.kept]
    return columns(frame.selectExpr(*kept, quoted(WEIGHT), made), [*names_of(plan), WEIGHT])


def negated(frame: Any, names: Sequence[str]) -> Any:
    """Return the opposite counts."""
    return frame.selectExpr(*map(quoted, names), f"- {quoted(WEIGHT)} AS {quoted(WEIGHT)}")


def union_frames(frames: Sequence[Any]) -> Any:
    """Return all rows of frames with the same columns in the same order."""
    whole = frames[0]
    for each in frames[1:]:
        whole = whole.unionAll(each)
    return whole


def join_frames(plan: Join, left: Any, right: Any) -> Any:
    """Join the rows of two plans."""
    tests = [f"{quoted(one.name)} = {quoted(two.name)}" for one, two in plan.keys]
    if plan.condition is not None:
        tests.append(expression_text(plan.condition))
    condition = _expr(" AND ".join(f"({each})" for each in tests) or "TRUE")
    if plan.kind == "inner":
        other = right.withColumnRenamed(WEIGHT, "_w2")
        pairs = left.join(other, condition, "inner")
        return pairs.selectExpr(*map(quoted, names_of(plan)), f"{quoted(WEIGHT)} * `_w2` AS {quoted(WEIGHT)}")
    there = consolidate_frame(right, names_of(plan.right)).where(f"{quoted(WEIGHT)} > 0").drop(WEIGHT)
    return left.join(there, condition, "left_semi" if plan.kind == "semi" else "left_anti")


def combine_frames(kind: str, left: Any, right: Any, names: Sequence[str]) -> Any:
    """Combine the counts of rows of two relations with the same columns."""
    quotes = list(map(quoted, names))
    both = left.selectExpr(*quotes, f"{quoted(WEIGHT)} AS `_left`", "0L AS `_right`").unionAll(
        right.selectExpr(*quotes, "0L AS `_left`", f"{quoted(WEIGHT)} AS `_right`")
    )
    counted = both.groupBy(*map(_expr, quotes)).agg(
        _expr("sum(`_left`)").alias("_left"), _expr("sum(`_right`)").alias("_right")
    )
    count = {
        "intersect": "CAST(`_left` > 0 AND `_right` > 0 AS BIGINT)",
        "intersect all": "greatest(least(`_left`, `_right`), 0L)",
        "except": "CAST(`_left` > 0 AND `_right` <= 0 AS BIGINT)",
        "except all": "greatest(`_left` - `_right`, 0L)",
    }[kind]
    return counted.selectExpr(*quotes, f"{count} AS {quoted(WEIGHT)}").where(f"{quoted(WEIGHT)} <> 0")


def single_rows(frame: Any, names: Sequence[str]) -> Any:
    """Return each row as often as it counts."""
    repeated = f"explode(array_repeat(0, CAST({quoted(WEIGHT)} AS INT))) AS `_once`"
    return columns(frame.selectExpr(*map(quoted, names), repeated), names)


def _order_text(order: Sequence[SortKey], names: Sequence[str]) -> str:
    """Return an order, in which the columns that it does not name break ties."""
    parts = []
    for each in order:
        nulls = "LAST" if each.nulls_last else "FIRST"
        parts.append(f"{quoted(each.column.name)} {'DESC' if each.descending else 'ASC'} NULLS {nulls}")
    named = {each.column.name for each in order}
    return ", ".join([*parts, *(f"{quoted(name)} ASC NULLS FIRST" for name in names if name not in named)])


def top_frame(plan: Top, frame: Any) -> Any:
    """Return the first rows in an order; the other columns break ties."""
    names = names_of(plan)
    first = single_rows(frame, names).orderBy(_orders(plan.order, names)).limit(plan.limit)
    return consolidate_frame(first.selectExpr(*map(quoted, names), f"1L AS {quoted(WEIGHT)}"), names)


def _orders(order: Sequence[SortKey], names: Sequence[str]) -> list[Any]:
    from pyspark.sql import functions as F

    made = []
    for each in order:
        column = F.col(quoted(each.column.name))
        descending = column.desc_nulls_last() if each.nulls_last else column.desc_nulls_first()
        ascending = column.asc_nulls_last() if each.nulls_last else column.asc_nulls_first()
        made.append(descending if each.descending else ascending)
    named = {each.column.name for each in order}
    return [*made, *(F.col(quoted(name)).asc_nulls_first() for name in names if name not in named)]


def window_frame(plan: WindowNode, frame: Any) -> Any:
    """Return each row as often as it counts, with its values over its partition."""
    names = names_of(plan.child)
    over = ", ".join(quoted(column.name) for column in plan.partition)
    made = []
    for column, call in plan.calls:
        text = _window_text(call, over, names)
        made.append(f"CAST({text} AS {spark_type(column.type)}) AS {quoted(column.name)}")
    single = single_rows(frame, names)
    return single.selectExpr(*map(quoted, names), *made, f"1L AS {quoted(WEIGHT)}")


def _window_text(call: WindowCall, over: str, names: Sequence[str]) -> str:
    parts = [f"PARTITION BY {over}"] if over else []
    if call.order:
        parts.append(f"ORDER BY {_order_text(call.order, names if call.is_placed else ())}")
    parts += [call.frame] if call.frame else []
    if call.function in _WITHOUT_ARGUMENT:
        return f"{call.function}() OVER ({' '.join(parts)})"
    argument = "1" if call.argument is None else expression_text(call.argument)
    if call.function == "ntile":
        return f"ntile({call.extra}) OVER ({' '.join(parts)})"
    more = f", {call.extra}" if call.extra else ""
    return f"{call.function}({argument}{more}) OVER ({' '.join(parts)})"


_WITHOUT_ARGUMENT = ("row_number", "rank", "dense_rank", "percent_rank", "cume_dist")


def cut_off(frame: Any) -> Any:
    """Compute rows, let Spark keep them, and forget how they were made.

    SUBTLE: PySpark 4.3 looks for what a server of Spark Connect keeps in the active session, not in that of the frame
    (tests/spark/test_connect.py).
    """
    made = frame.localCheckpoint()
    if is_connect(frame.sparkSession):
        made._plan._spark_session = frame.sparkSession
        made = type(frame)(made._plan, frame.sparkSession)
    return made


def forget_rows(computed: Any) -> None:
    """Let Spark forget rows that it keeps since `cut_off`.

    A server of Spark Connect forgets them when the DataFrame is gone.
    """
    if not is_connect(computed.sparkSession):
        computed._jdf.queryExecution().logical().rdd().unpersist(False)


def with_plan_names(frame: Any, plan: PlanNode) -> Any:
    """Select the columns of a plan and the counts, in order."""
    return columns(frame, [*names_of(plan), WEIGHT])
