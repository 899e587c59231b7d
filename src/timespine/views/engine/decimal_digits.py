"""The digits of decimals as whole numbers of 128 bits, and their rounding as in Spark."""

from __future__ import annotations

import polars as pl

from timespine.views.plan.expressions import DIGITS

WIDE = pl.Int128


def unscaled(decimal: pl.Expr, scale: int) -> pl.Expr:
    """Return the digits of a decimal as a whole number."""
    return decimal.cast(pl.Decimal(DIGITS, scale)).to_physical()


def scaled(digits: pl.Expr, scale: int) -> pl.Expr:
    """Return the decimal with these digits."""
    unit = (
        pl.lit(1).cast(pl.Decimal(DIGITS, 0))
        if scale == 0
        else pl.lit(f"0.{'0' * (scale - 1)}1").str.to_decimal(scale=scale)
    )
    return digits.cast(pl.Decimal(DIGITS, 0)).cast(pl.Decimal(DIGITS, scale)) * unit.cast(pl.Decimal(DIGITS, scale))


def half_up(number: pl.Expr, divisor: pl.Expr) -> pl.Expr:
    """Divide whole numbers, and round halves away from zero, as Spark does."""
    size, by = number.abs(), divisor.abs()
    quotient = (size * 2 + by) // (by * 2)
    return pl.when((number < 0) != (divisor < 0)).then(pl.lit(0, WIDE) - quotient).otherwise(quotient)
