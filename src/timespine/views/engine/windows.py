"""Window functions and the first rows in an order, over whole partitions."""

from __future__ import annotations

import polars as pl

from timespine.views.engine.lowering import WEIGHT, evaluate_columns, memory_type
from timespine.views.plan.algebra import SortKey, Top, WindowCall, WindowNode, names_of

RANKS = ("row_number", "rank", "dense_rank")


def top_rows(plan: Top, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the first rows in an order; the other columns break ties."""
    ordered = _sorted(rows, plan.order, names_of(plan))
    before = pl.col(WEIGHT).cum_sum() - pl.col(WEIGHT)
    kept = pl.min_horizontal(pl.col(WEIGHT), (plan.limit - before).clip(0))
    return ordered.with_columns(kept.alias(WEIGHT)).filter(pl.col(WEIGHT) > 0)


def window_rows(plan: WindowNode, rows: pl.DataFrame) -> pl.DataFrame:
    """Return each row as often as it counts, with its values over its partition."""
    names = names_of(plan.child)
    single = (
        rows.select(pl.col(names).repeat_by(pl.col(WEIGHT)).explode())
        if len(rows) and rows[WEIGHT].max() != 1
        else rows
    )
    got = single.select(names)
    over = [column.name for column in plan.partition]
    for column, call in plan.calls:
        got = (
            _ranked(got, names, over, column.name, call)
            if call.function in RANKS
            else _totaled(got, over, column.name, call)
        )
    return got.with_columns(pl.lit(1, pl.Int64).alias(WEIGHT))


def _totaled(rows: pl.DataFrame, over: list[str], name: str, call: WindowCall) -> pl.DataFrame:
    """Add an aggregate of the whole partition to each row."""
    if call.argument is None:
        return rows.with_columns(pl.len().over(over).cast(pl.Int64).alias(name))
    value = evaluate_columns(rows, [(name, call.argument)], rows.columns)
    argument = pl.col(name)
    if call.function == "count":
        made = argument.count().over(over).cast(pl.Int64)
    elif call.function == "sum":
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
