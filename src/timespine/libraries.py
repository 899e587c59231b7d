"""Large libraries that are imported on first use: their import takes longer than to open a store and list it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

from timespine.first_use import Library, is_instance_of

if TYPE_CHECKING:
    import polars as pl
    import polars.selectors as cs
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
else:
    pl = Library("polars")
    cs = Library("polars.selectors")
    pc = Library("pyarrow.compute")
    pq = Library("pyarrow.parquet")

__all__ = ["cs", "is_expression", "is_frame", "is_lazy_frame", "is_series", "pc", "pl", "pq"]


def is_expression(value: object) -> TypeGuard[pl.Expr]:
    """Return whether a value is an expression of Polars, without an import of it."""
    return is_instance_of(value, "polars", "Expr")


def is_frame(value: object) -> TypeGuard[pl.DataFrame]:
    """Return whether a value is a DataFrame of Polars, without an import of it."""
    return is_instance_of(value, "polars", "DataFrame")


def is_lazy_frame(value: object) -> TypeGuard[pl.LazyFrame]:
    """Return whether a value is a LazyFrame of Polars, without an import of it."""
    return is_instance_of(value, "polars", "LazyFrame")


def is_series(value: object) -> TypeGuard[pl.Series]:
    """Return whether a value is a Series of Polars, without an import of it."""
    return is_instance_of(value, "polars", "Series")
