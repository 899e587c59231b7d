"""Relations along times: the rows of a key as of each time that touches it, and the changes between these.

A timed change is a row with a count and a time. With C for the rows as of the last refresh, and d for timed changes:

    the rows of key k as of time t     C(k) + sum of d(k) at times <= t
    the change of f at (k, t)          f(rows of k as of t) - f(rows of k as of the touched time before t)

f treats the rows of each key apart, so all (k, t) are evaluated at once, with t as one more column of the key.
"""

from __future__ import annotations

import polars as pl

from timespine.columnar.schema.schema import TIME
from timespine.views.engine.lowering import WEIGHT

AT = "_at"
"""The column of the time that rows are as of."""

_NEXT = "_next"


def sum_timed(rows: pl.DataFrame) -> pl.DataFrame:
    """Sum the counts of equal rows at equal times, and drop those that count 0."""
    names = [name for name in rows.columns if name != WEIGHT]
    return rows.group_by(names).agg(pl.col(WEIGHT).sum()).filter(pl.col(WEIGHT) != 0).select(rows.columns)


def last_times(pairs: pl.DataFrame) -> pl.DataFrame:
    """Return the last touched time of each key."""
    return pairs.filter(pl.col(_NEXT).is_null()).drop(_NEXT)


def touched_times(changes: list[tuple[pl.DataFrame, dict[str, str]]], names: list[str], before: int) -> pl.DataFrame:
    """Return the keys that changes touch with the times at which they do, and with the time of the last refresh.

    Each change comes with the names of its key columns, by those of the result. The column `_next` has the next touched
    time of the same key.
    """
    parts = [
        each.select([*(pl.col(own).alias(name) for name, own in renamed.items()), pl.col(TIME).alias(AT)])
        for each, renamed in changes
    ]
    pairs = pl.concat(parts).unique()
    first = pairs.with_columns(pl.lit(before, pl.Int64).alias(AT)).unique()
    pairs = pl.concat([pairs, first]).sort(AT)
    following = pl.col(AT).shift(-1)
    return pairs.with_columns((following.over(names) if names else following).alias(_NEXT))


def rows_at(old: pl.DataFrame, changes: pl.DataFrame, pairs: pl.DataFrame, keys: dict[str, str]) -> pl.DataFrame:
    """Return the rows of each touched key as of each of its times; `keys` has the own names by those of the pairs."""
    at = pairs.drop(_NEXT).rename(keys)
    names = list(keys.values())
    early = old.join(at, on=names, how="inner", nulls_equal=True) if names else old.join(at, how="cross")
    late = changes.join(at, on=names, how="inner", nulls_equal=True) if names else changes.join(at, how="cross")
    late = late.filter(pl.col(TIME) <= pl.col(AT)).drop(TIME)
    order = [*(name for name in early.columns if name not in (AT, WEIGHT)), AT, WEIGHT]
    return sum_timed(pl.concat([early.select(order), late.select(order)]))


def differences_along(states: pl.DataFrame, pairs: pl.DataFrame, names: list[str], before: int) -> pl.DataFrame:
    """Return the timed changes between the states of each key, which are labelled with their times."""
    known = states.join(pairs, on=[*names, AT], how="left", nulls_equal=True)
    come = known.filter(pl.col(AT) > before).with_columns(pl.col(AT).alias(TIME))
    go = known.filter(pl.col(_NEXT).is_not_null()).with_columns(pl.col(_NEXT).alias(TIME), -pl.col(WEIGHT))
    return sum_timed(pl.concat([come, go]).drop(AT, _NEXT))
