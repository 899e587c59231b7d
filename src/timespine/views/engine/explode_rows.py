"""Rows for each element of an array."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from timespine.views.engine.lowering import WEIGHT, evaluate_columns, memory_type
from timespine.views.plan.algebra import Explode, names_of


def explode_rows(plan: Explode, rows: pl.DataFrame, more: Sequence[str] = (WEIGHT,)) -> pl.DataFrame:
    """Give a row for each element of an array, with the kept columns and some more."""
    element = plan.element.name
    own = [column.name for column in plan.kept]
    found = evaluate_columns(rows, [(element, plan.array)], [*own, *more])
    count = pl.col(element).list.len()
    # SUBTLE: the versions of Polars explode an empty array differently, and a null alike: to one row with a null
    # (test_explode.py).
    found = found.with_columns(pl.when(count > 0).then(pl.col(element))) if plan.is_outer else found.filter(count > 0)
    arrays = [element]
    if plan.position is not None:
        places = pl.int_ranges(0, count, dtype=pl.Int32).alias(plan.position.name)
        found = found.with_columns(places)
        arrays.append(plan.position.name)
    values = pl.col(element).cast(memory_type(plan.element.type))
    return found.explode(arrays).with_columns(values).select([*names_of(plan), *more])
