"""Conditions on renamed columns: the same condition, by the new names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from timespine.columnar.predicate.comparisons import ColumnCondition, CompareColumns
from timespine.columnar.predicate.predicate import Constant, Junction, Not, Predicate
from timespine.errors import InvalidCondition, short_repr


def rename_columns(predicate: Predicate, names: Mapping[str, str]) -> Predicate:
    """Return a predicate that tests columns by their new names; `names` maps old names to new ones.

    Raises an InvalidCondition if it is a polars expression whose columns have other names: those are used unchanged.
    """
    if isinstance(predicate, Constant) or all(names.get(name, name) == name for name in predicate.columns):
        return predicate
    if isinstance(predicate, ColumnCondition):
        return replace(predicate, column=names.get(predicate.column, predicate.column))
    if isinstance(predicate, CompareColumns):
        left, right = (names.get(name, name) for name in (predicate.left, predicate.right))
        return replace(predicate, left=left, right=right)
    if isinstance(predicate, Not):
        return Not(rename_columns(predicate.term, names))
    if isinstance(predicate, Junction):
        return Junction(predicate.every, tuple(rename_columns(term, names) for term in predicate.inside))
    renamed = next(name for name in predicate.columns if names.get(name, name) != name)
    raise InvalidCondition(
        f"column {short_repr(renamed)} of a polars expression was renamed: write the condition as text, or with "
        "col(...)"
    )
