"""Window functions and the first rows in an order, over whole partitions."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pyarrow as pa

from timespine.client.api_for_engines import REPEATED_MAX
from timespine.errors import UsageError
from timespine.views.engine.accumulators import decline_large_sums
from timespine.views.engine.lowering import WEIGHT, Declined, evaluate_columns, memory_type
from timespine.views.plan.algebra import SortKey, Top, WindowCall, WindowNode, names_of

RANKS = ("row_number", "rank", "dense_rank")

TOTALS = ("count", "sum", "min", "max")
SHIFTS = ("lag", "lead")
_LAST = "_last"

RUNNING = ("", "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW")
"""The frames of aggregates in an order that the process computes."""


def computes(call: WindowCall) -> bool:
    """Return whether the process computes a window function."""
    if call.function in RANKS:
        return not call.frame
    if call.function in SHIFTS:
        return not call.frame and (not call.extra or call.extra.isdigit())
    if call.function not in TOTALS:
        return False
    if not call.order:
        return not call.frame
    return call.frame in RUNNING and (call.argument is None or pa.types.is_integer(call.argument.type))


def top_rows(plan: Top, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the first rows in an order; the other columns break ties."""
    ordered = _sorted(rows, plan.order, names_of(plan))
    before = pl.col(WEIGHT).cum_sum() - pl.col(WEIGHT)
    kept = pl.min_horizontal(pl.col(WEIGHT), (plan.limit - before).clip(0))
    return ordered.with_columns(kept.alias(WEIGHT)).filter(pl.col(WEIGHT) > 0)


def top_after(plan: Top, before: pl.DataFrame, changed: pl.DataFrame) -> pl.DataFrame | None:
    """Return the first rows after a change from those before it; None if that takes rows that came after these.

    With fewer rows than the limit, those before are all there were. Otherwise they tell exactly what there is up to the
    last of them, of which there may be more: if there is still as much as the limit, the rows behind do not matter.
    """
    ordered = _sorted(before, plan.order, names_of(plan))
    both = pl.concat([ordered, changed.select(ordered.columns)])
    if before[WEIGHT].sum() >= plan.limit:
        # The last row stands behind those that are equal to it.
        is_last = pl.int_range(pl.len()) == len(ordered) - 1
        both = _sorted(both.with_columns(is_last.alias(_LAST)), plan.order, [*names_of(plan), _LAST])
        both = both.head(both[_LAST].arg_true()[0] + 1).drop(_LAST) if len(ordered) else both.clear()
    left = both.group_by(names_of(plan)).agg(pl.col(WEIGHT).sum()).filter(pl.col(WEIGHT) > 0)
    if before[WEIGHT].sum() >= plan.limit and left[WEIGHT].sum() < plan.limit:
        return None
    return top_rows(plan, left)


def top_around(plan: Top, after: pl.DataFrame, changed: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the first rows before and after a change, from all rows after it, each once.

    With k the limit and m the number of rows that came, the first k rows before are among the rows that went and the
    first k + m rows after: without those that came, k of these are left, and they stand before all others.
    """
    came = int(changed.filter(pl.col(WEIGHT) > 0)[WEIGHT].sum())
    head = top_rows(replace(plan, limit=plan.limit + came), after)
    earlier = pl.concat([head, changed.with_columns(-pl.col(WEIGHT)).select(head.columns)])
    summed = earlier.group_by(names_of(plan)).agg(pl.col(WEIGHT).sum()).filter(pl.col(WEIGHT) > 0)
    return top_rows(plan, summed), top_rows(plan, head)


def window_rows(plan: WindowNode, rows: pl.DataFrame) -> pl.DataFrame:
    """Return each row as often as it counts, with its values over its partition."""
    names = names_of(plan.child)
    if rows[WEIGHT].cast(pl.Float64).sum() > REPEATED_MAX:
        raise UsageError(f"a window function gives each row as often as it counts: more than {REPEATED_MAX} rows here")
    single = (
        rows.select(pl.col(names).repeat_by(pl.col(WEIGHT)).explode())
        if len(rows) and rows[WEIGHT].max() != 1
        else rows
    )
    got = single.select(names)
    over = [column.name for column in plan.partition]
    for column, call in plan.calls:
        if call.function in RANKS:
            got = _ranked(got, names, over, column.name, call)
        elif call.function in SHIFTS:
            got = _shifted(got, names, over, column.name, call)
        elif call.order:
            got = _running(got, names, over, column.name, call)
        else:
            got = _totaled(got, over, column.name, call)
    return got.with_columns(pl.lit(1, pl.Int64).alias(WEIGHT))


def _shifted(rows: pl.DataFrame, names: list[str], over: list[str], name: str, call: WindowCall) -> pl.DataFrame:
    """Add the value of an earlier or a later row of the partition to each row."""
    assert call.argument is not None
    ordered = _sorted(rows, call.order, names)
    value = evaluate_columns(ordered, [(name, call.argument)], ordered.columns)
    steps = int(call.extra or 1) * (1 if call.function == "lag" else -1)
    return value.with_columns(pl.col(name).shift(steps).over(over)).select([*rows.columns, name])


def _running(rows: pl.DataFrame, names: list[str], over: list[str], name: str, call: WindowCall) -> pl.DataFrame:
    """Add an aggregate of the rows up to each row, or up to its peers."""
    ordered = _sorted(rows, call.order, names)
    if call.argument is None:
        value = ordered.with_columns(pl.lit(1, pl.Int64).alias(name))
    else:
        value = evaluate_columns(ordered, [(name, call.argument)], ordered.columns)
    argument = pl.col(name)
    number = argument.is_not_null().cast(pl.Int64).cum_sum()
    if call.function == "count":
        made = number
    elif call.function == "sum":
        made = pl.when(number > 0).then(argument.cast(pl.Int64).fill_null(0).cum_sum())
        wide = value.select(argument.cast(pl.Int128).abs().sum())[name][0]
        if wide is not None and wide > (1 << 63) - 1:
            raise Declined("a running sum that may be too large for its type")
    else:
        made = (argument.cum_min() if call.function == "min" else argument.cum_max()).forward_fill()
    got = value.with_columns(made.over(over).cast(memory_type(call.type)).alias(name))
    if not call.frame:
        peers = list(dict.fromkeys([*over, *(each.column.name for each in call.order)]))
        got = got.with_columns(pl.col(name).last().over(peers))
    return got.select([*rows.columns, name])


def _totaled(rows: pl.DataFrame, over: list[str], name: str, call: WindowCall) -> pl.DataFrame:
    """Add an aggregate of the whole partition to each row."""
    if call.argument is None:
        return rows.with_columns(pl.len().over(over).cast(pl.Int64).alias(name))
    value = evaluate_columns(rows, [(name, call.argument)], rows.columns)
    argument = pl.col(name)
    if call.function == "count":
        made = argument.count().over(over).cast(pl.Int64)
    elif call.function == "sum":
        decline_large_sums(value, over, name, call)
        wide = argument.cast(pl.Int128) if value.schema[name].is_integer() else argument
        made = pl.when(argument.count().over(over) > 0).then(wide.sum().over(over)).cast(memory_type(call.type))
    else:
        made = (argument.min() if call.function == "min" else argument.max()).over(over)
    return value.with_columns(made.alias(name)).select([*rows.columns, name])


def _ranked(rows: pl.DataFrame, names: list[str], over: list[str], name: str, call: WindowCall) -> pl.DataFrame:
    """Add the place of each row in its partition."""
    ordered = _sorted(rows, call.order, names)
    if call.function == "row_number":
        return ordered.with_columns((pl.int_range(pl.len()).over(over) + 1).cast(pl.Int32).alias(name))
    # One row for each place: rows that the order does not tell apart share it.
    shared = list(dict.fromkeys([*over, *(each.column.name for each in call.order)]))
    counted = ordered.group_by(shared, maintain_order=True).agg(pl.len().cast(pl.Int64).alias("_members"))
    members = pl.col("_members") if call.function == "rank" else pl.col("_members").clip(1, 1)
    places = counted.with_columns((members.cum_sum().over(over) - members + 1).cast(pl.Int32).alias(name))
    return ordered.join(places.drop("_members"), on=shared, how="left", nulls_equal=True)


def _sorted(rows: pl.DataFrame, order: tuple[SortKey, ...], names: list[str]) -> pl.DataFrame:
    """Sort rows by an order, then by all columns, nulls first."""
    named = [each.column.name for each in order]
    rest = [name for name in names if name not in named]
    return rows.sort(
        [*named, *rest],
        descending=[*(each.descending for each in order), *(False for _ in rest)],
        nulls_last=[*(each.nulls_last for each in order), *(False for _ in rest)],
    )
